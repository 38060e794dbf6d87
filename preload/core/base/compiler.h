/*
 * compiler.h - names for compiler attributes and for limits of the architecture. No code, no state.
 */
#ifndef SG_PRELOAD_BASE_COMPILER_H
#define SG_PRELOAD_BASE_COMPILER_H

#define SG_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define SG_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define SG_EXPORT __attribute__((visibility("default")))
/* The version of glibc's oldest symbols, for references that glibc before 2.34 must satisfy from another library. */
#if defined(__aarch64__)
#define SG_GLIBC_FIRST "GLIBC_2.17"
#else
#define SG_GLIBC_FIRST "GLIBC_2.2.5"
#endif

#define SG_INTERNAL __attribute__((visibility("hidden"))) /* for hot declarations: accessed without the GOT */
#define SG_APART __attribute__((noinline))                /* not cold, but kept out of a caller's fast path */
#define SG_INLINE inline __attribute__((always_inline))   /* for callers whose constants make the code far shorter */
#define SG_AT_START __attribute__((section(".data")))     /* used at each start: on the page of .data touched anyway */
#define SG_AT_FORK SG_AT_START /* written by each forked child, and not contended for: also on that page */
#define SG_COLD __attribute__((cold, noinline))
#define SG_WILL_WRITE(ptr) __builtin_prefetch((ptr), 1)
#define SG_UNUSED __attribute__((unused))
#define SG_ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* The largest page size of the architecture's kernels. Objects that must not share a page are aligned to this. */
#if defined(__x86_64__)
#define SG_PAGE_MAX 4096
#elif defined(__aarch64__)
#define SG_PAGE_MAX 65536
#else
#error "sparkguard is written for x86-64 and aarch64"
#endif

/* Above every address that mmap returns without a hint for a high address, and above the size of every block. */
#if defined(__x86_64__)
#define SG_ADDRESS_LIMIT (UINT64_C(1) << 47)
#else
#define SG_ADDRESS_LIMIT (UINT64_C(1) << 52)
#endif

/* Initial-exec: the variable is at a fixed offset from the thread pointer. Other models call __tls_get_addr, which may
 * allocate and so re-enter malloc. */
#define SG_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

#endif
