/*
 * compiler.h - what we ask of the compiler, by name. No code, no state.
 */
#ifndef SG_PRELOAD_BASE_COMPILER_H
#define SG_PRELOAD_BASE_COMPILER_H

#define SG_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define SG_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define SG_EXPORT __attribute__((visibility("default")))
#define SG_INTERNAL __attribute__((visibility("hidden"))) /* on a hot declaration: no detour through the GOT */
#define SG_APART __attribute__((noinline))                /* often enough, but not to be paid for by those around it */
#define SG_INLINE inline __attribute__((always_inline))   /* where a caller's own case of it is far shorter */
#define SG_AT_START __attribute__((section(".data"))) /* every start touches it: on the page that it touches anyway */
#define SG_COLD __attribute__((cold, noinline))
#define SG_WILL_WRITE(ptr) __builtin_prefetch((ptr), 1)
#define SG_UNUSED __attribute__((unused))
#define SG_ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* The largest page size the architecture's kernels use: what must not share a page is aligned to this. */
#if defined(__x86_64__)
#define SG_PAGE_MAX 4096
#elif defined(__aarch64__)
#define SG_PAGE_MAX 65536
#else
#error "sparkguard is written for x86-64 and aarch64"
#endif

/* Above every address that a program gets without asking for a high one, and above the size of every block. */
#if defined(__x86_64__)
#define SG_ADDRESS_LIMIT (UINT64_C(1) << 47)
#else
#define SG_ADDRESS_LIMIT (UINT64_C(1) << 52)
#endif

/* Initial-exec: one instruction from the thread pointer, no __tls_get_addr, which would allocate. */
#define SG_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

#endif
