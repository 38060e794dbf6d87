/*
 * self_check.c - see self_check.h.
 */
#include "hooks/measure/self_check.h"

#include "account/driver_pool.h"
#include "account/thread_record.h"
#include "admit/headroom.h"
#include "admit/refusal.h"
#include "admit/snapshot.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/pages.h"
#include "base/syscall.h"
#include "base/text.h"
#include "shared/decision_lock.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

#include <string.h>

#define RETURN_NS UINT64_C(3000000000) /* what is not back by then, never comes back */
#define MISSES_MAX 2
#define SURPRISES_MAX 3

/* A measurement costs some fifty system calls. Once two in a row have shown nothing new, or eight could not be
 * compared, one call of PACE_CALLS is measured. */
#define SETTLED 8
#define COMPARED 4
#define PACE_CALLS 64

/* A look at the machine. */
struct look {
    bool is_comparable; /* nothing else is under way */
    uint64_t unexplained_bytes;
    uint64_t available_bytes;
    uint64_t live_bytes; /* device memory of all guarded processes, with this process's contexts */
};

/* How far calls of one kind have been measured; allocations and frees are of two kinds. */
struct pace {
    uint32_t settled; /* (atomic) COMPARED for each measurement that showed nothing new, 1 for each not comparable */
    uint32_t calls;   /* (atomic) since then: one of PACE_CALLS is measured */
};

static struct {
    struct pace allocation, free;
    uint64_t owner; /* (atomic) the thread that measures a call; 0: none */
    struct look before;
    uint64_t shared_before; /* RssShmem before pinned memory was taken */
    uint32_t misses;        /* granted calls that took nothing from the machine, though there is no pool */
    uint32_t surprises;
    uint64_t kept_bytes; /* (atomic) what the pool kept of the last free, while SG_DRIVER_POOL_SERVES is unknown */
    struct {
        uint64_t time_ns, bytes; /* (atomic) a free whose bytes were not back at once; 0: none */
        struct look after;
    } late;
    bool is_kept; /* those bytes did not come back in time: the next call shows whether the driver has them */
    struct {
        uint64_t size_bytes, fall_bytes; /* (atomic) a call that seemed to take far more than its size; 0: none */
        uint32_t confirmed;              /* in a row: the free of such a block gave back as much */
    } excess;
} state;

void sg_self_check_resume(void)
{
    sg_store_relaxed(&state.allocation.settled, 0u);
    sg_store_relaxed(&state.free.settled, 0u);
}

/* After a measurement, or before one where it showed something new. */
static void note_measured(struct pace *pace, bool was_comparable)
{
    sg_add_relaxed(&pace->settled, was_comparable ? COMPARED : 1u);
}

/* Whether to measure the next call: often enough to notice a change, and where an earlier one left a question. */
static bool is_due(struct pace *pace)
{
    uint64_t late_ns = sg_load_relaxed(&state.late.bytes) != 0 ? sg_load_relaxed(&state.late.time_ns) : 0;
    if (sg_load_relaxed(&pace->settled) < SETTLED || sg_load_relaxed(&state.kept_bytes) != 0 ||
        sg_load_relaxed(&state.excess.size_bytes) != 0)
        return true;
    if (late_ns != 0 && sg_clock_ns(CLOCK_MONOTONIC) - late_ns >= RETURN_NS)
        return true;
    return sg_fetch_add(&pace->calls, 1u) % PACE_CALLS == PACE_CALLS - 1;
}

void sg_self_check_atfork_child(void)
{
    if (sg_headroom_unified() < 0) /* no CUDA yet, and nothing measured: a child touches none of this memory */
        return;
    sg_store_relaxed(&state.owner, UINT64_C(0));
    sg_store_relaxed(&sg_refusal_trust, (uint32_t)SG_DRIVER_TRUSTED);
    state.misses = state.surprises = 0;
    state.kept_bytes = 0;
    state.late.bytes = state.excess.size_bytes = 0;
    state.excess.confirmed = 0;
    state.is_kept = false;
    sg_self_check_resume();
}

/* ---- what was found ------------------------------------------------------------------------------------------- */

static uint32_t finding(enum sg_driver_fact fact)
{
    return sg_driver_finding(sg_load_relaxed(&sg_own->machine.driver_facts), fact);
}

static void find(enum sg_driver_fact fact, enum sg_finding what)
{
    uint32_t word = sg_load_relaxed(&sg_own->machine.driver_facts);
    if (sg_driver_finding(word, fact) == (uint32_t)what)
        return;
    word &= ~(3u << SG_DRIVER_FACT_SHIFT(fact));
    sg_store_relaxed(&sg_own->machine.driver_facts, word | (uint32_t)what << SG_DRIVER_FACT_SHIFT(fact));
    sg_self_check_resume();
}

/* The first finding stands. */
static void find_once(enum sg_driver_fact fact, bool holds)
{
    if (finding(fact) == SG_FACT_UNKNOWN)
        find(fact, holds ? SG_FACT_PROVED : SG_FACT_DISPROVED);
}

/* A counter-example disproves what other calls have shown. */
static void find_always(enum sg_driver_fact fact, bool holds)
{
    if (!holds || finding(fact) == SG_FACT_UNKNOWN)
        find(fact, holds ? SG_FACT_PROVED : SG_FACT_DISPROVED);
}

static void say(const char *event, const char *sentence)
{
    sg_segment_add_event(event);
    sg_log_line(sentence);
}

static void note_surprise(void)
{
    if (state.surprises < SURPRISES_MAX)
        sg_self_check_resume();
    if (++state.surprises != SURPRISES_MAX || sg_load_relaxed(&sg_refusal_trust) != SG_DRIVER_TRUSTED)
        return;
    sg_store_relaxed(&sg_refusal_trust, (uint32_t)SG_DRIVER_OBSERVED);
    say("the driver surprised the guard three times: requests for device memory are observed and not refused",
        "sparkguard: the driver did three times what the guard does not expect: from now on "
        "cudaMalloc is observed here and not refused (sparkguard --check --cuda)");
}

/* The kernel's counters lag by some MiB. So three quarters are all, and an eighth is nothing. */
static uint64_t all_of(uint64_t bytes)
{
    return bytes - bytes / 4;
}

static uint64_t nothing_of(uint64_t bytes)
{
    return bytes / 8;
}

/* ---- one measurement ------------------------------------------------------------------------------------------ */

/* Adds up the device memory of the other guarded processes. Returns what they have of it in flight. */
static uint64_t sum_others(uint64_t *live_bytes)
{
    struct sg_registry *registry = sg_entry_registry();
    uint32_t used = sg_entry_count(registry);
    uint64_t flight = 0;
    for (uint32_t i = 0; i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (entry == sg_entry_own() || !sg_entry_is_live(entry))
            continue;
        sg_entry_add_cut(&flight, sg_load(&entry->unbounded_flight_bytes));
        sg_entry_add_cut(live_bytes, sg_load(&entry->slot.device_bytes));
    }
    return flight;
}

/* Free pages in the lists of processors: in no counter of /proc/meminfo, and up to an eighth of the machine. A call may
 * be served from them, and a free may fill them. 0 where they cannot be read. Under the decision lock. */
static uint64_t listed_bytes(void)
{
    static char path[SG_PATH_CAPACITY + 64], all[65536]; /* too large for a small stack */
    static const char key[] = "count:";
    struct sg_text text = sg_text_begin(path, sizeof path);
    uint64_t pages = 0;
    sg_text_add(&text, sg_options.system_root);
    sg_text_add(&text, "/proc/zoneinfo");
    if (sg_text_read_file(path, all, sizeof all) <= 0)
        return 0;
    for (const char *line = all; line != NULL; line = strchr(line, '\n')) {
        line += strspn(line, "\n ");
        if (strncmp(line, key, sizeof key - 1) != 0)
            continue;
        line += sizeof key - 1;
        pages += sg_text_read_number(&line);
    }
    return pages * sg_page_bytes();
}

/* Under the decision lock. Reads the kernel's figures alone: a snapshot for decisions would count the request that is
 * in flight twice, and show that as memory that was short. */
static struct look look_at_machine(uint64_t own_flight)
{
    static struct sg_snapshot snapshot; /* too large for a small stack */
    uint64_t live = sg_load(&sg_own->domain[SG_DOMAIN_DEVICE].granted_bytes) + sg_load(&sg_own->unaccounted_bytes);
    bool is_alone = sum_others(&live) == 0 && sg_entry_sum(SG_SUM_UNBOUNDED) == own_flight;
    snapshot.has_cuda = true;
    sg_snapshot_refresh(&snapshot);
    return (struct look){
        .is_comparable = snapshot.is_whole && is_alone,
        .unexplained_bytes = sg_above(snapshot.unexplained_bytes, listed_bytes()),
        .available_bytes = snapshot.at[0].headroom_bytes,
        .live_bytes = live,
    };
}

/* Whether nobody took or freed device memory between the looks, which would be part of the difference. */
static bool are_comparable(const struct look *before, const struct look *after)
{
    return before->is_comparable && after->is_comparable && before->live_bytes == after->live_bytes;
}

/* Finds whether the bytes of a late free have come back since. */
static void look_for_late(const struct look *now)
{
    uint64_t bytes = state.late.bytes, least = state.late.after.unexplained_bytes;
    uint64_t since_ns = sg_clock_ns(CLOCK_MONOTONIC) - state.late.time_ns;
    if (bytes != 0 && !now->is_comparable && since_ns >= 2 * RETURN_NS)
        state.late.bytes = 0; /* a busy machine answers too late */
    if (bytes == 0 || !now->is_comparable)
        return;
    uint64_t taken = sg_above(now->live_bytes, state.late.after.live_bytes),
             given = sg_above(state.late.after.live_bytes, now->live_bytes);
    if (sg_above(least + taken, now->unexplained_bytes + given) >= bytes / 2) {
        state.late.bytes = 0;
    } else if (since_ns >= RETURN_NS) {
        state.late.bytes = 0;
        state.is_kept = true;
    }
}

static bool is_own_measurement(void)
{
    return sg_load_relaxed(&state.owner) == (uint64_t)(uintptr_t)&sg_self;
}

/* A thread that left its last measurement by longjmp begins a new one. */
static bool begin(void)
{
    uint64_t none = 0;
    return is_own_measurement() || sg_cas_u64(&state.owner, &none, (uint64_t)(uintptr_t)&sg_self);
}

static void end(void)
{
    sg_store(&state.owner, UINT64_C(0));
}

static uint64_t own_flight_of(const struct sg_request *request)
{
    return request->card.identity != 0 ? 0 : request->granted_bytes;
}

/* The process's own shared memory, of which pinned memory is a part. SG_UNKNOWN: cannot be read. Under the lock. */
static uint64_t shared_bytes(void)
{
    static char text[4096]; /* too large for a small stack */
    uint64_t kib = SG_UNKNOWN;
    if (sg_text_read_file("/proc/self/status", text, sizeof text) > 0)
        kib = sg_text_read_field(text, "RssShmem:", SG_UNKNOWN);
    return kib == SG_UNKNOWN ? SG_UNKNOWN : kib * 1024;
}

bool sg_self_check_begin(const struct sg_request *request)
{
    struct sg_lock_state lock;
    bool is_pinned = request->domain == SG_DOMAIN_PINNED;
    bool is_wanted = is_pinned ? finding(SG_DRIVER_PINNED) == SG_FACT_UNKNOWN : is_due(&state.allocation);
    if (!is_wanted || !begin())
        return false;
    sg_lock_acquire(&sg_decision_lock, &lock);
    if (is_pinned) {
        state.shared_before = shared_bytes();
    } else {
        state.before = look_at_machine(own_flight_of(request));
        look_for_late(&state.before);
    }
    sg_lock_release(&sg_decision_lock, &lock);
    return true;
}

/* ---- what a measurement shows --------------------------------------------------------------------------------- */

static void end_pinned(const struct sg_request *request, uint64_t after)
{
    uint64_t before = state.shared_before, rise = sg_above(after, before), size = request->size_bytes;
    if (before == SG_UNKNOWN || after == SG_UNKNOWN)
        return;
    if (rise >= all_of(size) || rise < nothing_of(size))
        find_once(SG_DRIVER_PINNED, rise >= all_of(size));
}

/* A request that was granted although it does not fit shows nothing, and neither does one that nobody judged, or one
 * that relied on what the driver's pool may have, or beside which another program took memory. */
static void note_answer(const struct sg_request *request, bool is_served, const struct look *after)
{
    uint64_t least = nothing_of(request->size_bytes);
    bool is_taken = sg_above(after->unexplained_bytes, state.before.unexplained_bytes) >= least ||
                    sg_above(state.before.available_bytes, after->available_bytes) >= least;
    if (!is_served && is_taken)
        return;
    if (request->card.identity != 0 || request->attempt.relies || sg_refusal_is_observed(request))
        return;
    find_always(SG_DRIVER_SERVES, is_served);
    if (!is_served)
        note_surprise();
}

/* Twice nothing, and never anything before: it is other memory. */
static void note_miss(bool has_pools)
{
    if (has_pools) {
        find_once(SG_DRIVER_POOL_SERVES, true);
        return;
    }
    if (finding(SG_DRIVER_TAKES) != SG_FACT_UNKNOWN)
        return;
    sg_self_check_resume();
    if (++state.misses < MISSES_MAX)
        return;
    find_once(SG_DRIVER_TAKES, false);
    if (sg_options.unified != SG_UNIFIED_AUTO)
        return;
    sg_store_relaxed(&sg_refusal_trust, (uint32_t)SG_DRIVER_ALONE);
    say("device memory is not the machine's memory: the driver alone judges requests for it",
        "sparkguard: device memory does not come out of this machine's memory: cudaMalloc is not guarded here, the "
        "driver "
        "alone judges it");
}

static void note_taken(uint64_t size, uint64_t fall)
{
    uint64_t kept = state.kept_bytes;
    state.kept_bytes = 0;
    if (fall < all_of(size))
        return;
    if (kept >= size)
        find_once(SG_DRIVER_POOL_SERVES, false);
    find(SG_DRIVER_TAKES, SG_FACT_PROVED);
    state.misses = 0;
    if (SG_UNLIKELY(sg_load_relaxed(&sg_refusal_trust) == SG_DRIVER_ALONE)) {
        sg_store_relaxed(&sg_refusal_trust, (uint32_t)SG_DRIVER_TRUSTED);
        sg_segment_add_event("device memory is the machine's memory after all: requests for it are judged again");
    }
    if (fall <= size + size / 4) {
        find_once(SG_DRIVER_SIZE, true);
        state.surprises -= state.excess.confirmed;
        state.excess.confirmed = 0;
    }
    state.excess.size_bytes = fall <= size + size / 4 ? 0 : size;
    state.excess.fall_bytes = fall;
}

/* Another program that is not guarded may have taken the rest of the fall. What the driver took comes back with the
 * block. */
static void note_given(uint64_t size, uint64_t back)
{
    if (state.excess.size_bytes != size)
        return;
    uint64_t fall = state.excess.fall_bytes, noise = nothing_of(size);
    state.excess.size_bytes = 0;
    if (back <= size + size / 4 || sg_above(fall, back) > noise || sg_above(back, fall) > noise)
        return;
    find_always(SG_DRIVER_SIZE, false);
    state.excess.confirmed++;
    note_surprise();
}

void sg_self_check_end(const struct sg_request *request, bool is_served, bool is_refused)
{
    struct sg_lock_state lock;
    struct look after = {0};
    uint64_t shared = 0;
    bool is_pinned = request->domain == SG_DOMAIN_PINNED, has_pools = false;
    sg_lock_acquire(&sg_decision_lock, &lock);
    if (is_pinned) {
        shared = shared_bytes();
    } else {
        after = look_at_machine(own_flight_of(request));
        has_pools = sg_driver_pool_is_used();
    }
    sg_lock_release(&sg_decision_lock, &lock);
    if (!is_pinned)
        note_measured(&state.allocation, are_comparable(&state.before, &after));
    if (is_pinned && is_served) {
        end_pinned(request, shared);
    } else if (!is_pinned && are_comparable(&state.before, &after)) {
        uint64_t size = request->size_bytes, fall = sg_above(after.unexplained_bytes, state.before.unexplained_bytes);
        if (is_refused || is_served)
            note_answer(request, is_served, &after);
        if (is_served && fall < nothing_of(size))
            note_miss(has_pools);
        if (is_served && state.is_kept && fall < nothing_of(size))
            note_surprise(); /* it has what it did not give back; a neighbour's memory would not serve this call */
        state.is_kept = false;
        if (is_served)
            note_taken(size, fall);
    }
    end();
}

void sg_self_check_begin_free(void)
{
    struct sg_lock_state lock;
    if (!is_due(&state.free) || !begin())
        return;
    sg_lock_acquire(&sg_decision_lock, &lock);
    state.before = look_at_machine(0);
    sg_lock_release(&sg_decision_lock, &lock);
}

void sg_self_check_end_free(uint64_t bytes, bool is_freed)
{
    struct sg_lock_state lock;
    if (!is_own_measurement())
        return;
    sg_lock_acquire(&sg_decision_lock, &lock);
    struct look after = look_at_machine(0);
    bool has_pools = sg_driver_pool_is_used();
    sg_lock_release(&sg_decision_lock, &lock);
    note_measured(&state.free, are_comparable(&state.before, &after));
    uint64_t back = sg_above(state.before.unexplained_bytes, after.unexplained_bytes);
    bool is_back = back >= all_of(bytes), is_kept = back < nothing_of(bytes);
    if (is_freed && are_comparable(&state.before, &after))
        note_given(bytes, back);
    if (is_freed && are_comparable(&state.before, &after) && (is_back || is_kept)) {
        find_once(has_pools ? SG_DRIVER_KEEPS : SG_DRIVER_RETURNS, has_pools ? is_kept : is_back);
        state.kept_bytes = has_pools && is_kept && finding(SG_DRIVER_POOL_SERVES) == SG_FACT_UNKNOWN ? bytes : 0;
        if (!has_pools && is_kept && finding(SG_DRIVER_RETURNS) == SG_FACT_DISPROVED && state.late.bytes == 0) {
            after.live_bytes -= bytes; /* the caller releases them next */
            state.late.bytes = bytes;
            state.late.after = after;
            state.late.time_ns = sg_clock_ns(CLOCK_MONOTONIC);
        }
    }
    end();
}
