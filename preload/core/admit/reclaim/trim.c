/*
 * trim.c - see trim.h.
 */
#include "admit/reclaim/trim.h"

#include "account/thread_record.h"
#include "admit/reclaim/raw_thread.h"
#include "admit/reclaim/stack.h"
#include "base/atomics.h"
#include "base/clock.h"
#include "base/elf_symbols.h"
#include "base/lock.h"
#include "base/procfs.h"
#include "base/syscall.h"
#include "shared/givers.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#define PAUSE_NS UINT64_C(1000000000)
#define OFFER_BYTES (UINT64_C(64) << 20)     /* freed memory that others are told of */
#define OFFER_PAUSE_NS UINT64_C(10000000000) /* and so long after a try they are not: it may have been no freed heap */
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
    uint32_t is_asked;     /* (atomic) another process has asked: the raw thread answers */
    uint32_t question;     /* and this is the number of its question */
    uint64_t offered_ns;   /* CLOCK_MONOTONIC of the last answer; 0: none. Of the watchdog's thread */
    struct sg_raw_thread thread;
} trim;

void sg_trim_set_heap(void)
{
    sg_store_relaxed(&is_glibcs, 1u);
}

static void withdraw_offer(void)
{
    sg_fetch_and(&sg_entry_own()->slot.flags, ~(uint32_t)SG_SLOT_TRIMS);
}

/* On the raw thread, or on the only one. Neither function of glibc allocates or calls a hook. */
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
    if (sg_exchange(&trim.is_asked, 0u) != 0) {
        withdraw_offer();
        sg_givers_answer(trim.question);
    }
}

/* Takes the raw thread for this thread of the program, if no other one has it. False: release nothing. */
static bool take_thread(void)
{
    uint32_t owner = sg_load(&trim.is_taken), pid = sg_sys_getpid();
    if (sg_load_relaxed(&is_glibcs) == 0 || owner == pid ||
        !sg_cas_u32(&trim.is_taken, &owner, pid)) /* the PID: a child forked meanwhile does not wait for its parent */
        return false;
    if (trim.pid != pid) {
        sg_raw_thread_atfork_child(&trim.thread);
        sg_store(&trim.is_asked, 0u);
    }
    trim.pid = pid;
    return true;
}

static void release_thread(void)
{
    sg_store(&trim.is_taken, 0u);
}

static bool begin_thread(uint64_t wanted_bytes)
{
    if (sg_load(&trim.thread.is_running) != 0)
        return false;
    sg_store(&trim.wanted_bytes, wanted_bytes);
    sg_store(&trim.has_given, 0u);
    return sg_raw_thread_begin(&trim.thread, give_back, NULL);
}

/* True if the raw thread has given memory back. */
static bool give_back_and_wait(uint64_t missing_bytes)
{
    if (!begin_thread(missing_bytes))
        return false;
    trim.tried_ns = sg_clock_ns(CLOCK_MONOTONIC);
    (void)sg_raw_thread_wait(&trim.thread, WAIT_MS);
    return sg_load(&trim.thread.is_running) == 0 && sg_load(&trim.has_given) != 0;
}

/* The same on the only thread of the program, which has interrupted no call of the heap. No handler comes meanwhile. */
static bool give_back_here(uint64_t missing_bytes)
{
    int saved = errno;
    if (sg_stack_is_interrupted(__builtin_frame_address(0)))
        return false;
    trim.tried_ns = sg_clock_ns(CLOCK_MONOTONIC);
    sg_store(&trim.wanted_bytes, missing_bytes);
    sg_store(&trim.has_given, 0u);
    sg_lock_hold_signals();
    give_back(NULL);
    sg_lock_let_signals();
    errno = saved;
    return sg_load(&trim.has_given) != 0;
}

static bool let_heap_give(uint64_t missing_bytes)
{
    if (trim.tried_ns != 0 && sg_clock_ns(CLOCK_MONOTONIC) - trim.tried_ns < PAUSE_NS)
        return false;
    bool has_given = *sg_thread_is_single != 0 ? give_back_here(missing_bytes) : give_back_and_wait(missing_bytes);
    if (has_given && trim.is_noted == 0) {
        trim.is_noted = 1;
        sg_segment_add_event("gave freed heap back before a refusal for the reserve");
    }
    return has_given;
}

bool sg_trim_heap(uint64_t missing_bytes)
{
    if (!take_thread())
        return false;
    bool has_given = let_heap_give(missing_bytes);
    release_thread();
    return has_given;
}

/* ---- for other processes ----------------------------------------------------------------------------------------- */

void sg_trim_answer(void)
{
    struct sg_registry_entry *entry = sg_entry_own();
    uint32_t asked = sg_load(&entry->pressure_asked);
    bool is_offered = (sg_load(&entry->slot.flags) & SG_SLOT_TRIMS) != 0;
    if (!is_offered || *sg_thread_is_single != 0 || asked == sg_load(&entry->pressure_answered) ||
        sg_load(&trim.is_asked) != 0 || !take_thread())
        return;
    trim.offered_ns = sg_clock_ns(CLOCK_MONOTONIC);
    trim.question = asked;
    sg_store(&trim.is_asked, 1u);
    if (!begin_thread(OFFER_BYTES)) {
        sg_store(&trim.is_asked, 0u);
        sg_givers_answer(asked);
        withdraw_offer();
    }
    release_thread();
}

/* Resident anonymous memory that no live block or mapping explains: a guess, which also has stacks, libraries' data and
 * what the program maps by system calls of its own. */
static uint64_t unexplained_bytes(void)
{
    uint64_t explained = sg_load(&sg_own->domain[SG_DOMAIN_HEAP].granted_bytes) +
                         sg_load(&sg_own->domain[SG_DOMAIN_MAPPED].granted_bytes) + sg_load(&sg_own->slot.sparse_bytes);
    uint64_t promised = sg_load(&sg_own->slot.promised_bytes), anonymous = sg_procfs_anonymous_bytes(0);
    explained -= promised < explained ? promised : explained;
    return anonymous > explained ? anonymous - explained : 0;
}

void sg_trim_show(void)
{
    uint32_t *flags = &sg_entry_own()->slot.flags;
    uint64_t now_ns = sg_clock_ns(CLOCK_MONOTONIC);
    bool has_callback = (sg_load(flags) & SG_SLOT_GIVES) != 0; /* its own thread answers */
    bool is_paused = trim.offered_ns != 0 && now_ns - trim.offered_ns < OFFER_PAUSE_NS;
    if (sg_load_relaxed(&is_glibcs) == 0 || *sg_thread_is_single != 0 || has_callback || is_paused ||
        unexplained_bytes() < OFFER_BYTES) {
        if ((sg_load(flags) & SG_SLOT_TRIMS) != 0 && sg_load(&trim.is_asked) == 0)
            withdraw_offer();
        return;
    }
    sg_fetch_or(flags, (uint32_t)SG_SLOT_TRIMS);
}
