/*
 * trim.c - see trim.h.
 */
#include "admit/reclaim/trim.h"

#include "account/thread_record.h"
#include "admit/reclaim/raw_thread.h"
#include "base/atomics.h"
#include "base/clock.h"
#include "base/elf_symbols.h"
#include "base/syscall.h"
#include "shared/segment.h"

#include <stddef.h>
#include <string.h>
#include <time.h>

#define PAUSE_NS UINT64_C(1000000000)
enum { WAIT_MS = 1000 };

/* struct mallinfo2 of glibc 2.33; older headers lack it. */
struct heap_figures {
    size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks;
    size_t fordblks; /* free bytes of all arenas, resident or not */
    size_t keepcost;
};

static uint32_t is_glibcs; /* (atomic) */

static struct {
    uint32_t is_taken;     /* (atomic) a thread of the program waits for the raw thread, or sets it up */
    uint32_t pid;          /* whose thread it is: a forked child has none */
    uint64_t tried_ns;     /* CLOCK_MONOTONIC of the last try; 0: none */
    uint64_t wanted_bytes; /* (atomic) */
    uint32_t has_given;    /* (atomic) */
    uint32_t is_noted;     /* the record has the event */
    struct sg_raw_thread thread;
} trim;

void sg_trim_set_heap(void)
{
    sg_store_relaxed(&is_glibcs, 1u);
}

/* On the raw thread. Neither function allocates or calls a hook. */
static void give_back(void *unused)
{
    struct heap_figures (*figures)(void);
    int (*give)(size_t);
    void *found = sg_elf_symbols_next("mallinfo2");
    (void)unused;
    memcpy(&figures, &found, sizeof figures);
    found = sg_elf_symbols_next("malloc_trim");
    memcpy(&give, &found, sizeof give);
    if (figures != NULL && give != NULL && figures().fordblks >= sg_load(&trim.wanted_bytes) && give(0) != 0)
        sg_store(&trim.has_given, 1u);
}

/* True if the raw thread has given memory back. */
static bool run_thread(void)
{
    uint64_t now_ns = sg_clock_ns(CLOCK_MONOTONIC);
    if (trim.pid != sg_sys_getpid())
        sg_raw_thread_atfork_child(&trim.thread);
    trim.pid = sg_sys_getpid();
    if ((trim.tried_ns != 0 && now_ns - trim.tried_ns < PAUSE_NS) || sg_load(&trim.thread.is_running) != 0)
        return false;
    trim.tried_ns = now_ns;
    sg_store(&trim.has_given, 0u);
    if (!sg_raw_thread_begin(&trim.thread, give_back, NULL))
        return false;
    (void)sg_raw_thread_wait(&trim.thread, WAIT_MS);
    bool has_given = sg_load(&trim.thread.is_running) == 0 && sg_load(&trim.has_given) != 0;
    if (has_given && trim.is_noted == 0) {
        trim.is_noted = 1;
        sg_segment_add_event("gave freed heap back before a refusal for the reserve");
    }
    return has_given;
}

bool sg_trim_heap(uint64_t missing_bytes)
{
    uint32_t owner = sg_load(&trim.is_taken), pid = sg_sys_getpid();
    if (sg_load_relaxed(&is_glibcs) == 0 || *sg_thread_is_single != 0 || owner == pid ||
        !sg_cas_u32(&trim.is_taken, &owner, pid)) /* the PID: a child forked meanwhile does not wait for its parent */
        return false;
    sg_store(&trim.wanted_bytes, missing_bytes);
    bool has_given = run_thread();
    sg_store(&trim.is_taken, 0u);
    return has_given;
}
