/*
 * raw_thread.c - see raw_thread.h.
 *
 * The thread's memory, from the lowest address: a guard page, the stack, and the thread-local storage (TLS) around the
 * thread pointer. The distances of variables from the thread pointer are the same in every thread. So the storage
 * extends as far as the farthest variable that the thread may use, of this library or of libc. On x86-64 it lies below
 * the pointer (TLS variant II), on aarch64 above it (variant I; Drepper, "ELF Handling For Thread-Local Storage").
 */
#include "admit/reclaim/raw_thread.h"

#include "base/atomics.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "account/thread_record.h"
#include "base/pages.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#define STACK_BYTES (UINT64_C(256) << 10)
#define HEADER_BYTES \
    UINT64_C(8192)      /* for libc's data at the thread pointer (struct pthread, 2.3 KiB), and the rest of a block */
#define CONTROL_WORDS 8 /* of the header on x86-64, copied: tcb, dtv, self, two words, stack guard, pointer guard */

/* The flags of glibc's pthread_create: filters of system calls permit no others (Chromium's sandbox). */
#define THREAD_FLAGS \
    (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS | \
     CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID)

static char *thread_pointer(void)
{
    char *pointer;
#if defined(__x86_64__)
    __asm__("movq %%fs:0, %0" : "=r"(pointer));
#else
    __asm__("mrs %0, tpidr_el0" : "=r"(pointer));
#endif
    return pointer;
}

static uint64_t farther(uint64_t bytes, const void *variable)
{
    const char *pointer = thread_pointer(), *at = variable;
    uint64_t away = (uint64_t)(at < pointer ? pointer - at : at - pointer);
    return away > bytes ? away : bytes;
}

/* Size of the thread-local storage that the thread may use. */
static uint64_t storage_bytes(void)
{
    return sg_round_up(farther(farther(0, &sg_self), &errno) + HEADER_BYTES, SG_PAGE_MAX);
}

static bool get_memory(struct sg_raw_thread *thread)
{
    if (thread->memory != NULL)
        return true;
    uint64_t bytes = SG_PAGE_MAX + STACK_BYTES + storage_bytes() + HEADER_BYTES;
    char *memory = sg_sys_mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (sg_is_error(memory))
        return false;
    if (sg_syscall(SYS_mprotect, (long)(memory + SG_PAGE_MAX), (long)(bytes - SG_PAGE_MAX), PROT_READ | PROT_WRITE, 0,
                   0, 0) != 0) {
        (void)sg_sys_munmap(memory, bytes);
        return false;
    }
    thread->memory = memory;
    thread->bytes = bytes;
    return true;
}

/* Clears the storage and returns the new thread's thread pointer. The compiler's stack guard is copied, because all
 * threads have the same. */
static char *begin_storage(struct sg_raw_thread *thread)
{
    char *begin = thread->memory + SG_PAGE_MAX + STACK_BYTES;
    memset(begin, 0, (size_t)(thread->memory + thread->bytes - begin));
#if defined(__x86_64__)
    char *pointer = thread->memory + thread->bytes - HEADER_BYTES;
    memcpy(pointer, thread_pointer(), CONTROL_WORDS * sizeof(uint64_t));
    char **header = (char **)(void *)pointer;
    header[0] = header[2] = pointer; /* the values of %fs:0 and pthread_self */
    header[1] = NULL;                /* no storage of libraries that is allocated at first use */
    return pointer;
#else
    return begin + HEADER_BYTES;
#endif
}

/* Real-time scheduling is meant for the program, not for this thread, which could keep the program waiting. */
static void leave_real_time(void)
{
    const struct sched_param lowest = {0};
    long policy = sg_syscall(SYS_sched_getscheduler, 0, 0, 0, 0, 0, 0);
    if (policy < 0)
        return;
    if ((policy & ~(long)SCHED_RESET_ON_FORK) == SCHED_FIFO || (policy & ~(long)SCHED_RESET_ON_FORK) == SCHED_RR)
        (void)sg_syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, (long)&lowest, 0, 0, 0);
}

/* The new thread's first function. Its stack is empty, and it has no caller to return to. */
static void run_to_end(void (*run)(void *), void *argument)
{
    leave_real_time();
    run(argument);
    for (;;)
        (void)sg_syscall(SYS_exit, 0, 0, 0, 0, 0, 0);
}

typedef void first_function(void (*)(void *), void *);

static long clone_thread(char *stack, char *storage, struct sg_raw_thread *thread, void (*run)(void *), void *argument)
{
    uint32_t *is_running = &thread->is_running;
#if defined(__x86_64__)
    long result;
    register uint32_t *clear_tid __asm__("r10") = is_running;
    register char *pointer __asm__("r8") = storage;
    register first_function *first __asm__("r9") = run_to_end;
    __asm__ volatile("syscall\n\t"
                     "testq %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     ".cfi_remember_state\n\t"
                     ".cfi_undefined rip\n\t"
                     "movq %[run], %%rdi\n\t"
                     "movq %[argument], %%rsi\n\t"
                     "xorl %%ebp, %%ebp\n\t"
                     "callq *%[first]\n\t"
                     ".cfi_restore_state\n"
                     "1:"
                     : "=a"(result)
                     : "a"(SYS_clone), "D"((long)THREAD_FLAGS), "S"(stack), "d"(&thread->tid), "r"(clear_tid),
                       "r"(pointer), [run] "r"(run), [argument] "r"(argument), [first] "r"(first)
                     : "rcx", "r11", "memory", "cc");
    return result;
#else
    register long x8 __asm__("x8") = SYS_clone;
    register long x0 __asm__("x0") = THREAD_FLAGS;
    register char *x1 __asm__("x1") = stack;
    register uint32_t *x2 __asm__("x2") = &thread->tid;
    register char *x3 __asm__("x3") = storage;
    register uint32_t *x4 __asm__("x4") = is_running;
    register first_function *first __asm__("x9") = run_to_end;
    __asm__ volatile("svc 0\n\t"
                     "cbnz x0, 1f\n\t"
                     ".cfi_remember_state\n\t"
                     ".cfi_undefined x30\n\t"
                     "mov x0, %[run]\n\t"
                     "mov x1, %[argument]\n\t"
                     "mov x29, xzr\n\t"
                     "mov x30, xzr\n\t"
                     "blr %[first]\n\t"
                     ".cfi_restore_state\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3),
                       "r"(x4), [run] "r"(run), [argument] "r"(argument), [first] "r"(first)
                     : "memory", "cc");
    return x0;
#endif
}

bool sg_raw_thread_begin(struct sg_raw_thread *thread, void (*run)(void *), void *argument)
{
    const uint64_t all = ~(UINT64_C(1) << (SIGSYS - 1)); /* a sandbox sends SIGSYS to the thread whose call it traps */
    uint64_t before = 0;
    if (sg_load(&thread->is_running) != 0 || !get_memory(thread))
        return false;
    sg_store(&thread->is_running, 1u);
    char *stack = thread->memory + SG_PAGE_MAX + STACK_BYTES, *storage = begin_storage(thread);
    (void)sg_sys_sigprocmask(0 /* SIG_BLOCK */, &all, &before);
    long result = clone_thread(stack, storage, thread, run, argument);
    (void)sg_sys_sigprocmask(2 /* SIG_SETMASK */, &before, NULL);
    if (result <= 0)
        sg_store(&thread->is_running, 0u);
    return result > 0;
}

/* Whether the kernel still has the thread. It clears is_running a moment before it removes the thread and frees the
 * thread id for reuse. */
static bool is_in_kernel(uint32_t tid)
{
    return tid != 0 && sg_syscall(SYS_tgkill, sg_sys_getpid(), tid, 0, 0, 0, 0) == 0;
}

bool sg_raw_thread_wait(struct sg_raw_thread *thread, unsigned timeout_ms)
{
    const struct timespec step = {0, 1000000}, short_step = {0, 20000};
    uint32_t tid = sg_load(&thread->tid);
    if (tid == 0)
        return false;
    uint64_t until_ns = sg_clock_ns(CLOCK_MONOTONIC) + timeout_ms * UINT64_C(1000000);
    while (sg_load(&thread->is_running) != 0 && sg_load(&thread->tid) == tid && sg_clock_ns(CLOCK_MONOTONIC) < until_ns)
        (void)sg_sys_futex(&thread->is_running, FUTEX_WAIT, 1, &step); /* not private: the kernel's wake is not */
    bool has_ended = sg_load(&thread->is_running) == 0;
    while (has_ended && is_in_kernel(tid) && sg_clock_ns(CLOCK_MONOTONIC) < until_ns)
        (void)sg_syscall(SYS_nanosleep, (long)&short_step, 0, 0, 0, 0, 0);
    if (has_ended)
        (void)sg_cas_u32(&thread->tid, &tid, 0);
    return true;
}

void sg_raw_thread_atfork_child(struct sg_raw_thread *thread)
{
    sg_store(&thread->is_running, 0u);
    sg_store(&thread->tid, 0u);
}
