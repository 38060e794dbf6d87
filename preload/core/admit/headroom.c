/*
 * headroom.c - see headroom.h.
 */
#include "admit/headroom.h"

#include "admit/bounds.h"
#include "admit/containers.h"
#include "base/pages.h"
#include "base/atomics.h"
#include "base/compiler.h"
#include "account/commits.h"
#include "account/tracker.h"
#include "shared/job.h"
#include "account/ledger.h"
#include "admit/managed_pages.h"
#include "base/options.h"
#include "admit/snapshot.h"
#include "shared/segment.h"
#include "shared/settings.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/text.h"
#include "account/thread_record.h"
#include "account/timeline.h"
#include "account/driver_pool.h"
#include "admit/cgroup.h"
#include "shared/claims.h"
#include "shared/own_entry.h"
#include "shared/registry.h"
#include "shared/peers.h"

#include <sys/sysinfo.h>

#define SNAPSHOT_AGE_NS UINT64_C(5000000)
#define CLAIMS_AGE_NS UINT64_C(1000000000)
#define SCAN_PAUSE_NS UINT64_C(100000000)
#define BEYOND_BYTES (UINT64_C(32) << 20) /* small requests may go so far above the limit */
#define TAKEN_MAX (UINT64_C(1) << 60)
#define ARRAY_CREDIT_PART 256 /* array credit of a thread: this part of the slack, at most */

struct sg_headroom_last sg_headroom_last;

static struct {
    int64_t slack[2];    /* by enum sg_headroom_line, of the tightest constraint in the snapshot */
    int64_t alone_slack; /* slack above the floor if all requests under way came to nothing */
    uint64_t most[2];    /* (atomic) the same, as a place in the order of all requests, and within the limit; 0: none */
    uint64_t snapshot_ns; /* (atomic) time of the snapshot, 0: none; written after `most` */
    uint64_t asked;       /* all that had been requested before the snapshot */
    uint64_t landed[2];   /* sg_entry_own_landed before the snapshot, by its argument */
    uint64_t settings;    /* (atomic) changes by sparkguard --set before it; written after `most` */
    uint32_t has_options; /* (atomic) the options had been read before the snapshot */
    uint32_t has_limit;   /* (atomic) a process of the job has a limit */
    uint64_t scan_ns;     /* when promises were last scanned */
    uint64_t scan_cost_ns;
    uint64_t option_limit_bytes;                               /* SPARKGUARD_LIMIT; 0: none, or not known yet */
    uint64_t seen_set_limit, seen_set_reserve;                 /* by sparkguard --set, as last seen */
    uint64_t claims_ns, claimed_bytes[SG_CONSTRAINT_CAPACITY]; /* the last claims that were added up, and when */
    bool is_blind;         /* the last event was "not guarding", and not "guarding again" */
    bool is_beyond_limit;  /* the last event was note_beyond_limit's */
    bool is_device_hidden; /* SPARKGUARD_UNIFIED=on and a discrete card: MemAvailable never shows device memory */
} state;

static int32_t unified_known = -1; /* (atomic) not in `state`, which this value would move from .bss to .data */

int sg_headroom_unified(void)
{
    if (sg_options.unified == SG_UNIFIED_ON)
        return 1;
    return sg_options.unified == SG_UNIFIED_OFF ? 0 : sg_load_relaxed(&unified_known);
}

void sg_headroom_set_unified(int unified, bool is_hidden)
{
    sg_store_relaxed(&unified_known, unified);
    state.is_device_hidden = is_hidden;
    sg_own->machine.unified = sg_headroom_unified();
    if (sg_own->machine.unified == 1 && !is_hidden) {
        sg_fetch_or(&sg_own->slot.flags, (uint32_t)SG_SLOT_UNIFIED);
        sg_fetch_or(&sg_entry_own()->slot.flags, (uint32_t)SG_SLOT_UNIFIED);
        sg_driver_pool_learn();
    } else if (sg_own->machine.unified == 0 && (sg_load_relaxed(&sg_own->slot.flags) & SG_SLOT_UNIFIED) != 0) {
        sg_fetch_and(&sg_own->slot.flags, ~(uint32_t)SG_SLOT_UNIFIED);
        sg_fetch_and(&sg_entry_own()->slot.flags, ~(uint32_t)SG_SLOT_UNIFIED);
    }
}

void sg_headroom_forget(void)
{
    sg_store(&state.snapshot_ns, 0);
    sg_store(&state.most[SG_HEADROOM_RESERVE], 0);
    sg_store(&state.most[SG_HEADROOM_FLOOR], 0);
}

void sg_headroom_atfork_child(void)
{
    sg_headroom_forget();
    state.scan_ns = 0;
    state.landed[false] = state.landed[true] = 0;
    state.is_blind = false;
}

/* Whether sparkguard --set has changed something since the snapshot: what it has set counts at the next request.
 * Pairs with the count of control.c. */
static bool is_set_since(void)
{
    return sg_settings_changes() != sg_load_relaxed(&state.settings);
}

/* Constructors of other libraries may allocate before the options can be read: a snapshot by the defaults serves only
 * until then. */
static bool is_old(void)
{
    uint64_t snapshot_ns = sg_load(&state.snapshot_ns);
    return snapshot_ns == 0 || is_set_since() ||
           sg_load_relaxed(&state.has_options) != (uint32_t)sg_options_are_read() ||
           sg_clock_ns(CLOCK_MONOTONIC) - snapshot_ns >= SNAPSHOT_AGE_NS;
}

/* MemFree and freeram are the same counter of the kernel (si_meminfo). */
uint64_t sg_headroom_measure_free(void)
{
    struct sysinfo info = {0};
    if (sg_options.system_root[0] == '\0' && sg_syscall(SYS_sysinfo, (long)&info, 0, 0, 0, 0, 0) == 0)
        return (uint64_t)info.freeram * info.mem_unit;
    sg_headroom_refresh(0, false);
    return sg_headroom_last.snapshot.free_bytes;
}

uint64_t sg_headroom_available_with(uint64_t free_bytes)
{
    if (is_old())
        sg_headroom_refresh(0, false);
    uint64_t available = sg_headroom_last.snapshot.at[0].headroom_bytes + free_bytes;
    return available > sg_headroom_last.snapshot.free_bytes ? available - sg_headroom_last.snapshot.free_bytes : 0;
}

uint64_t sg_headroom_machine_bytes(void)
{
    const struct sg_constraint *machine = &sg_headroom_last.snapshot.at[0];
    return machine->limit_bytes > machine->reserve_bytes ? machine->limit_bytes - machine->reserve_bytes : 0;
}

uint64_t sg_headroom_under_way(const struct sg_peer_sums *others, uint64_t own_flight_bytes, uint32_t parts)
{
    uint64_t bytes = 0;
    if ((parts & SG_HEADROOM_FLIGHT) != 0)
        bytes += others->flight_bytes + own_flight_bytes;
    else if ((parts & SG_HEADROOM_STALLED) != 0)
        bytes += others->stalled_bytes;
    if ((parts & SG_HEADROOM_QUEUED_BEFORE) != 0)
        bytes += others->queued_before_bytes;
    if ((parts & SG_HEADROOM_QUEUED_AFTER) != 0)
        bytes += others->queued_after_bytes;
    return bytes;
}

/* The sums over the other processes for a constraint. */
static const struct sg_peer_sums *sums_of(uint32_t constraint)
{
    return constraint == 0 ? &sg_headroom_last.peers.machine
                           : &sg_headroom_last.peers.level[sg_headroom_last.snapshot.at[constraint].level];
}

uint64_t sg_headroom_claimed_by_others(uint32_t constraint)
{
    return sums_of(constraint)->claimed_bytes;
}

uint64_t sg_headroom_taken(uint32_t constraint, uint32_t parts)
{
    bool is_machine = constraint == 0;
    const struct sg_peer_sums *others = sums_of(constraint);
    /* Requests in flight are read before own promises: another thread's bytes move from the first to the second. */
    uint64_t taken = sg_headroom_under_way(others, sg_entry_own_flight(!is_machine), parts);
    if ((parts & SG_HEADROOM_FLIGHT) != 0)
        taken += sg_entry_own_landed(!is_machine) - state.landed[!is_machine];
    uint64_t promised = sg_ledger_promised_bytes(), touched = sg_headroom_last.snapshot.at[constraint].touched_bytes;
    if ((parts & SG_HEADROOM_PROMISES) != 0)
        promised += others->held_bytes + (is_machine ? sg_containers.promised_bytes : 0);
    taken += promised > touched ? promised - touched : 0;
    if ((parts & SG_HEADROOM_NO_CLAIMS) == 0)
        taken += others->claimed_bytes;
    if (is_machine && state.is_device_hidden)
        taken += sg_load_relaxed(&sg_own->domain[SG_DOMAIN_DEVICE].granted_bytes) + sg_headroom_last.peers.device_bytes;
    return taken < TAKEN_MAX ? taken : TAKEN_MAX; /* in observe mode absurd sizes may be in flight */
}

/* The part of the machine's headroom that CUDA cannot use. */
static uint64_t cma_of(uint32_t constraint)
{
    return constraint == 0 ? sg_headroom_last.snapshot.cma_free_bytes : 0;
}

uint64_t sg_headroom_usable(uint32_t constraint, uint32_t parts, bool is_cuda)
{
    uint64_t taken = sg_headroom_taken(constraint, parts) + (is_cuda ? cma_of(constraint) : 0);
    uint64_t headroom = sg_headroom_last.snapshot.at[constraint].headroom_bytes;
    return headroom > taken ? headroom - taken : 0;
}

static void publish_machine(void)
{
    struct sg_machine *machine = &sg_own->machine;
    const struct sg_constraint *tightest = &sg_headroom_last.snapshot.at[0];
    uint64_t usable = UINT64_MAX, cgroup_limit = SG_UNKNOWN;
    int64_t least = INT64_MAX;
    for (uint32_t i = 0; i < sg_headroom_last.snapshot.count; i++) {
        uint64_t usable_here = sg_headroom_usable(i, SG_HEADROOM_PROMISES | SG_HEADROOM_FLIGHT, false);
        int64_t headroom = (int64_t)usable_here - (int64_t)sg_headroom_last.snapshot.at[i].reserve_bytes;
        if (i != 0 && sg_headroom_last.snapshot.at[i].limit_bytes < cgroup_limit)
            cgroup_limit = sg_headroom_last.snapshot.at[i].limit_bytes;
        if (headroom < least) {
            least = headroom;
            usable = usable_here;
            tightest = &sg_headroom_last.snapshot.at[i];
        }
    }
    machine->time_ns = (int64_t)sg_clock_ns(CLOCK_REALTIME);
    machine->total_bytes = sg_headroom_last.snapshot.total_bytes;
    machine->available_bytes = sg_headroom_last.snapshot.at[0].headroom_bytes;
    machine->usable_bytes = usable;
    machine->reserve_bytes = tightest->reserve_bytes;
    machine->floor_bytes = tightest->floor_bytes;
    machine->cgroup_limit_bytes = cgroup_limit;
    machine->unified = sg_headroom_unified();
}

/* Sets the flag at every snapshot, because the segment may be created after the first one. Events record changes. */
static void note_guarding(bool is_guarding)
{
    bool has_flag = (sg_load_relaxed(&sg_own->slot.flags) & SG_SLOT_GUARDING) != 0;
    if (is_guarding && !has_flag)
        sg_fetch_or(&sg_own->slot.flags, (uint32_t)SG_SLOT_GUARDING);
    else if (!is_guarding && has_flag)
        sg_fetch_and(&sg_own->slot.flags, ~(uint32_t)SG_SLOT_GUARDING);
    if (is_guarding == state.is_blind)
        sg_segment_add_event(is_guarding ? "guarding again"
                                         : "not guarding: neither /proc/meminfo nor sysinfo can be read");
    state.is_blind = !is_guarding;
}

bool sg_headroom_has_limit(void)
{
    uint64_t set = sg_load_relaxed(&sg_settings.limit_bytes);
    bool has_own = set != 0 ? set != SG_UNKNOWN : sg_options.limit.is_set;
    return has_own || is_set_since() || sg_bounds_have_limit() || sg_load_relaxed(&state.has_limit) != 0;
}

/* SPARKGUARD_LIMIT in bytes; 0: not set, or the machine is not known yet. A percentage is computed once. */
static uint64_t limit_by_option(void)
{
    if (state.option_limit_bytes == 0 && sg_options.limit.is_set)
        state.option_limit_bytes = sg_size_of(sg_options.limit, sg_headroom_machine_bytes());
    return state.option_limit_bytes;
}

/* Adds an event that names the new value, and who has set it. */
static void note_set(const char *what, uint64_t bytes)
{
    char event[112];
    struct sg_text text = sg_text_begin(event, sizeof event);
    uint64_t user = sg_load(&sg_settings.user);
    sg_text_add(&text, what);
    if (bytes == SG_UNKNOWN)
        sg_text_add(&text, "none");
    else
        sg_text_add_size(&text, bytes);
    sg_text_add(&text, " by user ");
    sg_text_add_number(&text, user != 0 ? user - 1 : 0);
    sg_text_add(&text, " (sparkguard --set)");
    sg_segment_add_event(event);
}

uint64_t sg_headroom_own_limit_bytes(void)
{
    const uint64_t set = sg_load(&sg_settings.limit_bytes);
    const uint64_t wanted = set == 0 ? limit_by_option() : set == SG_UNKNOWN ? 0 : set;
    const uint64_t limit = sg_bounds_limit(wanted, sg_headroom_last.snapshot.at[0].limit_bytes);
    if (SG_UNLIKELY(set != state.seen_set_limit)) {
        state.seen_set_limit = set;
        if (set != 0)
            note_set("limit set to ", set);
    }
    if (limit != sg_own->slot.limit_bytes) {
        sg_own->slot.limit_bytes = limit;
        sg_store(&sg_entry_own()->slot.limit_bytes, limit);
    }
    return limit;
}

/* Adds an event if sparkguard --set has changed the reserve. The snapshot reads it itself. */
static void note_reserve(void)
{
    const uint64_t set = sg_load(&sg_settings.reserve_bytes);
    if (SG_LIKELY(set == state.seen_set_reserve))
        return;
    state.seen_set_reserve = set;
    if (set != 0)
        note_set("reserve set to ", set);
}

uint64_t sg_headroom_job_bytes(uint32_t parts)
{
    const struct sg_peer_sums *others = &sg_headroom_last.peers.job;
    /* Before the held bytes: another thread's bytes move from flight to held. */
    uint64_t under_way = sg_headroom_under_way(others, sg_load(&sg_own->slot.in_flight_bytes), parts);
    return under_way + others->held_bytes + sg_ledger_own_bytes() + sg_load(&sg_own->slot.sparse_bytes) +
           sg_headroom_last.peers.job_sparse_bytes;
}

/* Bytes that the job's limit leaves. Requests queued after ours count as held, and so does MAP_NORESERVE memory that
 * may have been touched since the last scan. */
static int64_t limit_slack(void)
{
    uint64_t limit = sg_headroom_limit_bytes();
    sg_store_relaxed(&state.has_limit, limit != 0);
    if (limit == 0)
        return INT64_MAX;
    uint64_t held = sg_headroom_job_bytes(SG_HEADROOM_ALL | SG_HEADROOM_QUEUED_AFTER);
    uint64_t room = sg_tracker_sparse_most_bytes(), sparse = sg_load(&sg_own->slot.sparse_bytes);
    held += room > sparse ? room - sparse : 0;
    return limit > held ? (int64_t)(limit - held) : 0;
}

static int64_t above(uint64_t usable, uint64_t line)
{
    return (int64_t)usable - (int64_t)line;
}

/* Beside other processes of the job there is no array credit: they count what this process was granted for the peak of
 * the job and for its limit. Under a limit there is none without a watchdog, whose scans take the credit of an idle
 * process back: another process of the job may begin at any time. */
static bool may_have_array_credit(void)
{
    bool is_watched = (sg_load_relaxed(&sg_own->slot.flags) & SG_SLOT_WATCHED) != 0;
    if (sg_segment_is_shared() && sg_entry_shared_registry() == NULL) /* it tries to join with each decision */
        return false;
    return sg_headroom_last.peers.job_processes == 0 && (is_watched || !sg_headroom_has_limit());
}

static void note_slack(uint32_t had_options, uint64_t settings)
{
    int64_t reserve_slack = INT64_MAX, floor_slack = INT64_MAX, alone_slack = INT64_MAX;
    for (uint32_t i = 0; i < sg_headroom_last.snapshot.count; i++) {
        /* CUDA requests use this slack, too, so free CMA pages do not count. Requests queued after ours count as taken,
         * because they may be admitted before the slack is used. Slack is not clamped at 0: a decision may need to
         * know how far below the line it is. */
        uint64_t taken = sg_headroom_taken(i, SG_HEADROOM_ALL | SG_HEADROOM_QUEUED_AFTER);
        int64_t left = above(sg_headroom_last.snapshot.at[i].headroom_bytes, taken);
        int64_t above_reserve = left - (int64_t)cma_of(i) - (int64_t)sg_headroom_last.snapshot.at[i].reserve_bytes;
        /* The floor is the machine's last memory. A claim takes none of it, and must not refuse small requests. */
        int64_t above_floor =
            left + (int64_t)sg_headroom_claimed_by_others(i) - (int64_t)sg_headroom_last.snapshot.at[i].floor_bytes;
        reserve_slack = above_reserve < reserve_slack ? above_reserve : reserve_slack;
        floor_slack = above_floor < floor_slack ? above_floor : floor_slack;
        /* Requests of this process's other threads may come to nothing as well. */
        uint64_t taken_alone = sg_headroom_taken(i, SG_HEADROOM_PROMISES | SG_HEADROOM_STALLED | SG_HEADROOM_NO_CLAIMS);
        int64_t above_floor_alone = above(sg_headroom_last.snapshot.at[i].headroom_bytes, taken_alone) -
                                    (int64_t)sg_headroom_last.snapshot.at[i].floor_bytes;
        alone_slack = above_floor_alone < alone_slack ? above_floor_alone : alone_slack;
    }
    state.alone_slack = alone_slack;
    state.slack[SG_HEADROOM_RESERVE] = reserve_slack;
    state.slack[SG_HEADROOM_FLOOR] = floor_slack;
    /* asked_bytes contains all growth of the job after the snapshot, and the requests of other jobs. */
    int64_t within = limit_slack();
    for (int line = SG_HEADROOM_RESERVE; line <= SG_HEADROOM_FLOOR; line++) {
        int64_t slack = state.slack[line] < within ? state.slack[line] : within;
        sg_store(&state.most[line], slack > 0 ? state.asked + (uint64_t)slack : 0);
    }
    sg_store(&state.settings, settings);
    sg_store(&state.has_options, had_options);
    sg_store(&state.snapshot_ns, sg_headroom_last.snapshot.time_ns);
    uint64_t slack = reserve_slack > 0 ? (uint64_t)reserve_slack : 0;
    slack = (int64_t)slack < within ? slack : (uint64_t)within;
    sg_ledger_set_array_credit(may_have_array_credit() ? slack / ARRAY_CREDIT_PART : 0);
}

/* What the last snapshot with claims found: the figures that are published contain it. */
static void keep_claims(const struct sg_peers *peers)
{
    state.claims_ns = sg_clock_ns(CLOCK_MONOTONIC);
    state.claimed_bytes[0] = peers->machine.claimed_bytes;
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++)
        state.claimed_bytes[1 + i] = peers->level[i].claimed_bytes;
}

static void use_last_claims(struct sg_peers *peers)
{
    peers->machine.claimed_bytes = state.claimed_bytes[0];
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++)
        peers->level[i].claimed_bytes = state.claimed_bytes[1 + i];
}

/* Pages that went back to the machine while the entries and the kernel's figures were read, and are promised again. */
static void add_returned(struct sg_peers *peers, uint64_t bytes)
{
    if (SG_LIKELY(bytes == 0))
        return;
    sg_entry_add_cut(&peers->machine.held_bytes, bytes);
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++)
        sg_entry_add_cut(&peers->level[i].held_bytes, bytes);
}

/* False: neither /proc nor sysinfo(2) answered. */
static bool refresh(uint64_t device, bool is_closely, bool has_claims)
{
    uint32_t had_options = (uint32_t)sg_options_are_read();
    const uint64_t settings = sg_settings_read();
    uint64_t level[SG_ENTRY_LEVELS];
    sg_registry_set_levels(level, sg_cgroup_find(level));
    uint64_t ticket = sg_load(&sg_entry_own()->ticket);
    /* A request being decided counts as requested since the snapshot: if admitted, it takes its part of the slack. */
    state.asked = ticket >= SG_TICKET_FIRST ? ticket - SG_TICKET_FIRST : sg_load(&sg_entry_registry()->asked_bytes);
    note_reserve();
    uint64_t returned = sg_load(&sg_entry_registry()->returned_bytes);
    sg_tracker_observe();
    bool reads_claims = has_claims && sg_claims_begin();
    /* Before the kernel's figures: see registry.h. */
    sg_peers_sum(&sg_headroom_last.peers, device, is_closely, reads_claims ? sg_claims_read : NULL);
    if (reads_claims)
        sg_claims_keep();
    sg_containers_read(&sg_headroom_last.snapshot, is_closely);
    state.landed[false] = sg_entry_own_landed(false);
    state.landed[true] = sg_entry_own_landed(true);
    sg_job_take_left_peak();
    sg_headroom_last.snapshot.has_cuda = sg_headroom_last.peers.cuda[0].managed_bytes != 0 ||
                                         sg_load(&sg_entry_registry()->pool_proven_bytes) != 0 || /* pool_room.c */
                                         (sg_load_relaxed(&sg_own->slot.flags) & (uint32_t)SG_SLOT_UNIFIED) != 0;
    sg_snapshot_refresh(&sg_headroom_last.snapshot);
    sg_cgroup_refresh(&sg_headroom_last.snapshot);
    if (sg_headroom_last.snapshot.has_cuda || sg_headroom_unified() == 1)
        sg_peers_sum_cuda(sg_headroom_last.cuda_after);
    if (sg_headroom_last.snapshot.is_valid && sg_headroom_last.snapshot.has_cuda)
        sg_managed_pages_refresh(&sg_headroom_last.snapshot, sg_headroom_last.peers.cuda, sg_headroom_last.cuda_after);
    add_returned(&sg_headroom_last.peers, sg_load(&sg_entry_registry()->returned_bytes) - returned);
    if (has_claims)
        sg_claims_end(&sg_headroom_last.peers, is_closely);
    else
        use_last_claims(&sg_headroom_last.peers);
    note_guarding(sg_headroom_last.snapshot.is_valid);
    if (!sg_headroom_last.snapshot.is_valid) {
        sg_headroom_forget();
        return false;
    }
    note_slack(had_options, settings);
    if (!has_claims)
        sg_headroom_forget(); /* no request is admitted by it */
    return true;
}

void sg_headroom_tell_host(void)
{
    const struct sg_peer_sums *others = &sg_headroom_last.peers.machine;
    if (!sg_containers_may_publish() || sg_entry_shared_own() == NULL) /* decides alone, or observes */
        return;
    uint64_t flight = sg_headroom_under_way(others, sg_entry_own_flight(false), SG_HEADROOM_FLIGHT);
    uint64_t promised = sg_ledger_promised_bytes() + others->held_bytes;
    promised = sg_above(promised, sg_headroom_last.snapshot.at[0].touched_bytes) + flight;
    if (sg_containers_publish(sg_headroom_limit_bytes(), sg_headroom_job_bytes(0), promised))
        sg_registry_mark_dead_in_passing(false); /* the next sums are without theirs */
}

static void publish(void)
{
    publish_machine();
    sg_headroom_tell_host();
    sg_timeline_sample();
}

void sg_headroom_look(bool is_closely)
{
    (void)refresh(0, is_closely, true);
}

void sg_headroom_refresh(uint64_t device, bool is_closely)
{
    if (refresh(device, is_closely, true))
        publish();
    if (sg_load(&sg_entry_registry()->claim_places) == 0)
        return;
    keep_claims(&sg_headroom_last.peers);
    if (sg_entry_shared_own() != NULL) /* not in the observer */
        sg_claims_note_loss();
}

void sg_headroom_watch(void)
{
    bool has_claims = sg_load(&sg_entry_registry()->claim_places) != 0;
    if (!has_claims || sg_clock_ns(CLOCK_MONOTONIC) - state.claims_ns >= CLAIMS_AGE_NS)
        sg_headroom_refresh(0, false);
    else if (refresh(0, false, false))
        publish();
}

int64_t sg_headroom_slack(enum sg_headroom_line line)
{
    return state.slack[line] - (int64_t)(sg_load(&sg_entry_registry()->asked_bytes) - state.asked);
}

bool sg_headroom_would_be_above_floor(uint64_t bytes)
{
    return state.alone_slack >= (int64_t)bytes;
}

bool sg_headroom_may_take(enum sg_headroom_line line, uint64_t bytes)
{
    return sg_registry_is_within(bytes, sg_load(&state.most[line])) && !is_old();
}

bool sg_headroom_take(enum sg_headroom_line line, uint64_t bytes)
{
    return sg_registry_take(bytes, &state.most[line]);
}

/* Adds an event when memory that no call announced has taken the job above its limit. Nothing else can: requests above
 * the limit are refused. */
static void note_beyond_limit(void)
{
    char event[112];
    uint64_t limit = sg_own->slot.limit_bytes, held = sg_headroom_job_bytes(0);
    bool is_beyond = limit != 0 && sg_load(&sg_own->slot.sparse_bytes) != 0 && held > limit + BEYOND_BYTES;
    if (is_beyond && !state.is_beyond_limit) {
        struct sg_text text = sg_text_begin(event, sizeof event);
        sg_text_add(&text, "holds ");
        sg_text_add_size(&text, held);
        sg_text_add(&text, ", above its limit of ");
        sg_text_add_size(&text, limit);
        sg_text_add(&text, ": by MAP_NORESERVE memory, written without a call");
        sg_segment_add_event(event);
    }
    state.is_beyond_limit = is_beyond;
}

void sg_headroom_scan(void)
{
    uint64_t begin = sg_clock_ns(CLOCK_MONOTONIC), sparse = sg_tracker_scan();
    state.scan_ns = sg_clock_ns(CLOCK_MONOTONIC);
    state.scan_cost_ns = state.scan_ns - begin;
    sg_store(&sg_entry_own()->published_ns, state.scan_ns);
    sg_job_note_sparse(sparse);
    (void)sg_entry_reconcile(false);
    note_beyond_limit();
}

void sg_headroom_scan_if_due(void)
{
    enum { REAPED_MAX = 64 };
    uint64_t pause = SCAN_PAUSE_NS > 50 * state.scan_cost_ns ? SCAN_PAUSE_NS : 50 * state.scan_cost_ns;
    if (sg_clock_ns(CLOCK_MONOTONIC) - state.scan_ns < pause)
        return;
    sg_thread_reap(REAPED_MAX);
    sg_ledger_take_back_idle_arrays();
    sg_headroom_scan();
}

void sg_headroom_scan_if_old(void)
{
    uint64_t pause = SNAPSHOT_AGE_NS > 5 * state.scan_cost_ns ? SNAPSHOT_AGE_NS : 5 * state.scan_cost_ns;
    if (sg_clock_ns(CLOCK_MONOTONIC) - state.scan_ns >= pause)
        sg_headroom_scan();
}

uint64_t sg_headroom_for_cuda(bool is_bounded, uint64_t pooled_bytes)
{
    int64_t least = INT64_MAX;
    for (uint32_t i = 0; i < (is_bounded ? sg_headroom_last.snapshot.count : 1); i++) {
        int64_t left =
            above(sg_headroom_usable(i, SG_HEADROOM_ALL, true), sg_headroom_last.snapshot.at[i].reserve_bytes);
        if (i == 0) {
            left = (left > 0 ? left : 0) + (int64_t)pooled_bytes;
            left -= sg_headroom_unified() != 0 ? left / (SG_HEADROOM_LISTS_PART + 1) + 1 : 0;
        }
        least = left < least ? left : least;
    }
    return sg_headroom_last.snapshot.is_valid && least > 0 ? (uint64_t)least : 0;
}

uint64_t sg_headroom_for_host(void)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < sg_headroom_last.snapshot.count; i++)
        least = sg_smaller(least, sg_above(sg_headroom_usable(i, SG_HEADROOM_ALL, false),
                                           sg_headroom_last.snapshot.at[i].reserve_bytes));
    return least;
}
