/*
 * helper.c - see helper.h.
 */
#include "helper.h"

#include "lock.h"
#include "process.h"
#include "real.h"
#include "segment.h"
#include "syscall.h"
#include "text.h"
#include "thread.h"

#include <errno.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>

#define STACK_BYTES (256 * 1024)
#define SECOND_NS UINT64_C(1000000000)

static size_t tls_bytes SG_AT_START; /* that every thread's stack holds besides */
static uint32_t running;             /* (atomic) helpers, from before each is made until it has done its work */

static int add_tls(struct dl_phdr_info *library, size_t size, void *sum)
{
    (void)size;
    for (unsigned i = 0; i < library->dlpi_phnum; i++)
        if (library->dlpi_phdr[i].p_type == PT_TLS)
            *(size_t *)sum += library->dlpi_phdr[i].p_memsz + library->dlpi_phdr[i].p_align;
    return 0;
}

void sg_helper_prepare(void)
{
    (void)dl_iterate_phdr(add_tls, &tls_bytes);
}

static void *run(void *argument)
{
    struct sg_helper *helper = argument;
    (void)sg_thread_pause(); /* nothing that happens here is the program's */
    sg_store(&helper->presence, (uint32_t)SG_HELPER_RUNNING);
    (void)sg_syscall(SYS_prctl, 15 /* PR_SET_NAME */, (long)"sparkguard", 0, 0, 0, 0);
    helper->work();
    sg_fetch_sub(&running, 1u);
    sg_store(&helper->is_unwanted, 0u);
    sg_store(&helper->not_before_ns, sg_sys_clock_ns(CLOCK_MONOTONIC) + SECOND_NS);
    sg_store(&helper->presence, (uint32_t)SG_HELPER_ABSENT); /* wakes sg_helper_stop within its step */
    return NULL;
}

/* `stack_bytes` 0: as large as the program's threads have them. */
static int create(struct sg_helper *helper, size_t stack_bytes)
{
    pthread_t thread;
    pthread_attr_t attributes;
    int result = pthread_attr_init(&attributes);
    if (result != 0)
        return result;
    if (stack_bytes != 0)
        (void)pthread_attr_setstacksize(&attributes, stack_bytes);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    result = SG_REAL(pthread_create)(&thread, &attributes, run, helper);
    (void)pthread_attr_destroy(&attributes);
    return result;
}

/* With all signals blocked: they are the program's threads' to handle. All but glibc's own two (setuid and its like send one of
 * them to every thread, and wait until each has answered) and SIGSYS, as in lock.c. Blocked first, for what a handler takes is the program's. */
static bool start(struct sg_helper *helper)
{
    const uint64_t all = ~(UINT64_C(3) << 31 | UINT64_C(1) << (SIGSYS - 1)); /* 32, SIGCANCEL, and 33, SIGSETXID */
    uint64_t before = 0;
    (void)sg_sys_sigprocmask(0 /* SIG_BLOCK */, &all, &before);
    const struct sg_thread_pause pause = sg_thread_pause();
    sg_fetch_add(&running, 1u);
    int result = create(helper, STACK_BYTES + tls_bytes);
    if (result == EINVAL) /* before sg_helper_prepare, or there is more static TLS than the files say */
        result = create(helper, 0);
    if (result != 0)
        sg_fetch_sub(&running, 1u);
    sg_thread_resume(&pause);
    (void)sg_sys_sigprocmask(2 /* SIG_SETMASK */, &before, NULL);
    return result == 0;
}

bool sg_helper_is_due(const struct sg_helper *helper)
{
    return sg_self.layers == 0 && !sg_lock_is_forking() && sg_segment_is_own() &&
           sg_sys_clock_ns(CLOCK_MONOTONIC) >= sg_load(&helper->not_before_ns);
}

void sg_helper_begin(struct sg_helper *helper)
{
    uint32_t absent = SG_HELPER_ABSENT;
    if (!sg_cas_u32(&helper->presence, &absent, SG_HELPER_STARTING))
        return;
    int saved_errno = errno;
    sg_store(&helper->is_unwanted, 0u); /* whoever wanted the last one gone may have said so too late */
    if (!start(helper)) {
        char event[64];
        struct sg_text text = sg_text_begin(event, sizeof event);
        sg_text_add(&text, "no ");
        sg_text_add(&text, helper->name);
        sg_text_add(&text, ": a thread could not be made");
        sg_segment_add_event(event);
        sg_store(&helper->not_before_ns, sg_sys_clock_ns(CLOCK_MONOTONIC) + 10 * SECOND_NS);
        sg_store(&helper->presence, (uint32_t)SG_HELPER_ABSENT);
    }
    errno = saved_errno;
}

bool sg_helper_stop(struct sg_helper *helper, unsigned most_ms)
{
    uint32_t is_running = SG_HELPER_RUNNING;
    const struct timespec step = {0, 1000000}, short_step = {0, 50000};
    for (int i = 0; i < 400 && sg_load(&helper->presence) == SG_HELPER_STARTING;
         i++) /* in a child that forks at once */
        (void)sg_sys_futex(&helper->presence, FUTEX_WAIT_PRIVATE, SG_HELPER_STARTING, &short_step);
    if (!sg_cas_u32(&helper->presence, &is_running, SG_HELPER_LEAVING)) /* else it has: by itself, or told by another */
        return sg_load(&helper->presence) == SG_HELPER_LEAVING ||
               sg_sys_clock_ns(CLOCK_MONOTONIC) < sg_load(&helper->not_before_ns);
    sg_store(&helper->is_unwanted, 1u);
    helper->wake();
    for (unsigned i = 0; i < most_ms && sg_load(&helper->presence) == SG_HELPER_LEAVING; i++)
        (void)sg_sys_futex(&helper->presence, FUTEX_WAIT_PRIVATE, SG_HELPER_LEAVING, &step);
    return true;
}

bool sg_helper_is_alone(void)
{
    return sg_process_is_left_to(sg_load(&running));
}

void sg_helper_refork(struct sg_helper *helper)
{
    sg_store(&running, 0u);
    sg_store(&helper->presence, (uint32_t)SG_HELPER_ABSENT);
    sg_store(&helper->is_unwanted, 0u);
    sg_store(&helper->not_before_ns, 0u);
}
