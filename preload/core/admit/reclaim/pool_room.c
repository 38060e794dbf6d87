/*
 * pool_room.c - see pool_room.h.
 */
#include "admit/reclaim/pool_room.h"

#include "account/driver_pool.h"
#include "account/thread_record.h"
#include "base/atomics.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/options.h"
#include "base/procfs.h"
#include "base/syscall.h"
#include "base/text.h"
#include "shared/decision_lock.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/registry.h"
#include "shared/segment.h"

#include <errno.h>
#include <fcntl.h>

#define MIB (UINT64_C(1) << 20)
#define CONTEXT_MOST (4096 * MIB)           /* as in context_estimate.c */
#define NOISE_PART 64                       /* of MemTotal: free pages in lists of processors, which reach over 1 GiB */
#define SERVED_PART 8                       /* of a call: a smaller fall means that the pool served it */
#define FRESH_NS UINT64_C(1000000000)       /* NVML's list says who lives, for a decision */
#define REPORTED_NS UINT64_C(5000000000)    /* the same for figures that programs query, perhaps all the time */
#define ENDING_NS UINT64_C(3000000000)      /* the driver gives a dead process's memory back meanwhile */
#define DROP_PAUSE_NS UINT64_C(10000000000) /* dropping also empties caches that others fill again */

static uint64_t above(uint64_t more, uint64_t less)
{
    return more > less ? more - less : 0;
}

static uint64_t smaller(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static uint64_t larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static bool is_within(const uint64_t *since, uint64_t span_ns)
{
    uint64_t then = sg_load(since), now = sg_clock_ns(CLOCK_MONOTONIC);
    return then != 0 && then <= now && now - then < span_ns;
}

static bool is_for_device(const struct sg_request *request)
{
    return request->card.identity == 0 && request->domain == SG_DOMAIN_DEVICE && sg_headroom_unified() == 1;
}

/* The size of a context was measured with all that it takes. */
uint64_t sg_pool_room_with_lists(const struct sg_request *request)
{
    bool has_lists = is_for_device(request) && request->kind != SG_REQUEST_RARE;
    return request->size_bytes + (has_lists ? request->size_bytes / SG_HEADROOM_LISTS_PART : 0);
}

static uint64_t noise_bytes(void)
{
    return sg_headroom_last.snapshot.total_bytes / NOISE_PART;
}

/* Device memory of living guarded processes with its lists, which no pool keeps, and managed memory. Pinned memory is part of Shmem, and explained. Where a
 * driver takes it from elsewhere, Shmem is smaller, and the difference is the driver's. */
static uint64_t owned_bytes(const struct sg_cuda_sum *all)
{
    return all->device_bytes + all->device_bytes / SG_HEADROOM_LISTS_PART + all->managed_bytes +
           above(all->pinned_bytes, sg_headroom_last.snapshot.shared_bytes);
}

/* The contexts of guarded processes, by the size of the last ones. */
static uint64_t context_bytes_of(const struct sg_cuda_sum *all)
{
    return all->contexts * smaller(sg_load(&sg_entry_registry()->context_bytes), CONTEXT_MOST);
}

/* Unexplained memory without an owner: guarded processes and their contexts, and what NVML lists beyond them. The owners
 * are summed up before and after the kernel's figures were read, and the larger sum counts. */
static uint64_t unowned_bytes(bool has_list)
{
    static uint64_t time_ns, owned;
    const struct sg_snapshot *snapshot = &sg_headroom_last.snapshot;
    if (time_ns != snapshot->time_ns) {
        struct sg_cuda_sum now, *before = &sg_headroom_last.peers.cuda[0];
        sg_peers_sum_cuda(0, &now);
        owned = larger(owned_bytes(before) + context_bytes_of(before), owned_bytes(&now) + context_bytes_of(&now));
        time_ns = snapshot->time_ns;
    }
    uint64_t listed = has_list ? sg_load(&sg_entry_registry()->listed_bytes) : 0;
    return above(above(snapshot->unexplained_bytes, owned), listed);
}

/* Whether NVML has listed the living processes within `fresh_ns`. */
static bool has_list(uint64_t fresh_ns)
{
    return is_within(&sg_entry_registry()->listed_ns, fresh_ns);
}

/* Upper bound of the pool. What is proven cannot be more: where MemAvailable rose, the pool has shrunk. */
static uint64_t most_pooled(bool has_list)
{
    struct sg_registry *registry = sg_entry_registry();
    uint64_t unowned = unowned_bytes(has_list), disproven = sg_load(&registry->pool_disproven_bytes);
    if (disproven > unowned)
        (void)sg_cas_u64(&registry->pool_disproven_bytes, &disproven, unowned);
    uint64_t most = above(unowned, disproven), proven = sg_load(&registry->pool_proven_bytes);
    if (proven > most)
        (void)sg_cas_u64(&registry->pool_proven_bytes, &proven, most);
    return most;
}

static uint64_t room(uint32_t parts, bool has_list)
{
    if ((parts & SG_HEADROOM_NO_POOL) != 0 || sg_headroom_unified() != 1 || !sg_driver_pool_is_used())
        return 0;
    uint64_t most = most_pooled(has_list), proven = smaller(sg_load(&sg_entry_registry()->pool_proven_bytes), most);
    uint64_t under_way =
        sg_headroom_under_way(&sg_headroom_last.peers.device_of_machine, sg_entry_own_unbounded_flight(), parts);
    uint64_t left = above(most, under_way);
    proven = smaller(proven, left);
    if (under_way != 0)
        return proven;
    uint64_t unproven = above(left, proven + noise_bytes());
    return proven + (has_list ? unproven : unproven / 2);
}

uint64_t sg_pool_room_bytes(const struct sg_request *request, uint32_t parts)
{
    return is_for_device(request) ? room(parts, has_list(FRESH_NS)) : 0;
}

uint64_t sg_pool_room_for_all(void)
{
    return room(SG_HEADROOM_ALL, has_list(REPORTED_NS));
}

uint64_t sg_pool_room_most_bytes(void)
{
    if (sg_headroom_unified() == 0 || !sg_driver_pool_is_used())
        return 0;
    return above(unowned_bytes(has_list(FRESH_NS)), noise_bytes());
}

/* Whether the process is about to end, ending, or gone since the last snapshot. */
static bool is_leaving(const struct sg_registry_entry *entry)
{
    uint32_t pid = entry->slot.pid;
    if (sg_procfs_is_ending(pid, entry->slot.start_ticks))
        return true;
    return sg_load(&entry->pid_namespace) == sg_own->pid_namespace &&
           (sg_procfs_is_killed(pid) || sg_syscall(SYS_kill, pid, 0, 0, 0, 0, 0) == -ESRCH);
}

/* Device memory of other processes that are ending. A killed process keeps its entry until the driver has its memory back,
 * because the kernel closes the driver's files before it releases the entry's lock. 0 if something has been ending for 3 s:
 * a driver may hang. */
static uint64_t ending_bytes(void)
{
    static uint64_t since_ns; /* of the first look that found a process ending; 0: the last one found none */
    struct sg_registry *registry = sg_entry_registry();
    const struct sg_registry_entry *own = sg_entry_own();
    uint32_t used = sg_entry_count(registry);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        uint64_t held = sg_load(&entry->slot.device_bytes);
        if (entry != own && held >= MIB && (sg_load(&entry->slot.flags) & SG_SLOT_UNIFIED) != 0 &&
            sg_entry_is_live(entry) && is_leaving(entry))
            sg_entry_add_cut(&bytes, held);
    }
    if (bytes == 0 || since_ns == 0)
        since_ns = bytes == 0 ? 0 : sg_clock_ns(CLOCK_MONOTONIC);
    return is_within(&since_ns, ENDING_NS) ? bytes : 0;
}

uint64_t sg_pool_room_due_bytes(void)
{
    const struct sg_registry *registry = sg_entry_registry();
    uint64_t bytes = ending_bytes();
    if (!is_within(&registry->ended_ns, ENDING_NS) || sg_driver_pool_is_used())
        return bytes;
    (void)most_pooled(false);
    sg_entry_add_cut(&bytes, sg_load(&registry->pool_proven_bytes));
    return bytes;
}

/* ---- NVML's list of processes ------------------------------------------------------------------------------------ */

/* Below the floor the driver has been seen to hang. */
bool sg_pool_room_wants_list(bool is_reported)
{
    const struct sg_constraint *machine = &sg_headroom_last.snapshot.at[0];
    return sg_headroom_unified() == 1 && sg_driver_pool_is_used() && !has_list(is_reported ? REPORTED_NS : FRESH_NS) &&
           unowned_bytes(false) > noise_bytes() && machine->headroom_bytes >= machine->floor_bytes;
}

uint64_t sg_pool_room_owned_bytes(void)
{
    struct sg_lock_state lock;
    struct sg_cuda_sum all;
    sg_lock_acquire(&sg_decision_lock, &lock);
    sg_headroom_forget();
    (void)sg_registry_reap(); /* NVML does not list the dead */
    sg_peers_sum_cuda(0, &all);
    sg_lock_release(&sg_decision_lock, &lock);
    return all.device_bytes + context_bytes_of(&all);
}

void sg_pool_room_note_list(uint64_t listed_bytes, uint64_t owned_before)
{
    struct sg_registry *registry = sg_entry_registry();
    uint64_t owned = smaller(owned_before, sg_pool_room_owned_bytes());
    sg_store(&registry->listed_bytes, above(listed_bytes, owned));
    sg_store(&registry->listed_ns, sg_clock_ns(CLOCK_MONOTONIC));
}

/* ---- emptying the pool ------------------------------------------------------------------------------------------- */

/* Opens drop_caches for writing: only root outside a container can. -errno: it cannot be opened. */
static long open_drop_caches(void)
{
    char path[SG_PATH_CAPACITY + 64];
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, sg_options.system_root);
    sg_text_add(&text, "/proc/sys/vm/drop_caches");
    return sg_sys_openat((int)SG_AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
}

bool sg_pool_room_may_drop(void)
{
    if (is_within(&sg_entry_registry()->dropped_ns, DROP_PAUSE_NS))
        return false;
    long fd = open_drop_caches();
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
    return fd >= 0;
}

/* "2" has the kernel call its shrinkers, and leaves the page cache alone. */
void sg_pool_room_drop(void)
{
    uint64_t *dropped_ns = &sg_entry_registry()->dropped_ns, then = sg_load(dropped_ns);
    if (is_within(dropped_ns, DROP_PAUSE_NS) || !sg_cas_u64(dropped_ns, &then, sg_clock_ns(CLOCK_MONOTONIC)))
        return;
    long fd = open_drop_caches();
    if (fd < 0)
        return;
    (void)sg_file_write((int)fd, "2\n", 2);
    (void)sg_sys_close((int)fd);
}

/* ---- what a call took -------------------------------------------------------------------------------------------- */

static uint64_t own_device_bytes(void)
{
    return sg_load(&sg_own->domain[SG_DOMAIN_DEVICE].granted_bytes);
}

static struct sg_pool_figures read_figures(uint64_t own_flight_bytes)
{
    const struct sg_peers *peers = &sg_headroom_last.peers;
    return (struct sg_pool_figures){
        .unexplained_bytes = sg_headroom_last.snapshot.unexplained_bytes,
        .own_bytes = own_device_bytes(),
        .others_bytes = peers->device_bytes,
        .most_pooled_bytes = most_pooled(has_list(FRESH_NS)),
        .proven_bytes = sg_load(&sg_entry_registry()->pool_proven_bytes),
        .is_quiet = peers->device_of_machine.flight_bytes == 0 && sg_entry_own_unbounded_flight() == own_flight_bytes,
    };
}

void sg_pool_room_begin(struct sg_request *request, bool relies)
{
    if (!is_for_device(request) || !sg_headroom_last.snapshot.is_valid)
        return;
    request->attempt.pooled_bytes = smaller(request->size_bytes, room(SG_HEADROOM_ALL, has_list(FRESH_NS)));
    sg_self.open.before = read_figures(0);
    request->attempt.is_measured = true;
    request->attempt.relies = relies;
}

static uint64_t fallen_bytes; /* by small calls since the pool served the last one */

/* `fall_bytes` of a call came from the machine though something was believed to be in the pool: the pool is empty now. If
 * it was to serve the call, what was believed to be there is something else. A small fall may be another's: such falls
 * disprove the rest together. */
static void correct(const struct sg_request *request, uint64_t fall_bytes)
{
    struct sg_registry *registry = sg_entry_registry();
    uint64_t size_bytes = request->size_bytes;
    uint64_t rest = above(sg_self.open.before.most_pooled_bytes, above(size_bytes, fall_bytes));
    fallen_bytes += fall_bytes;
    bool is_clear = size_bytes >= noise_bytes() || fallen_bytes >= noise_bytes();
    if (is_clear)
        sg_store(&registry->pool_proven_bytes, UINT64_C(0));
    if (request->attempt.relies &&
        !is_within(&registry->ended_ns, ENDING_NS)) /* else a dead process's memory is on its way */
        sg_fetch_add(&registry->pool_disproven_bytes, is_clear ? rest : smaller(fall_bytes, rest));
}

/* Learns from a call for device memory that ran beside no other: it took `fall_bytes` from the machine. If it failed, it left these bytes in the pool. */
static void learn(const struct sg_request *request, uint64_t fall_bytes, bool is_granted)
{
    bool is_served = fall_bytes <= request->size_bytes / SERVED_PART;
    if (!is_granted)
        sg_fetch_add(&sg_entry_registry()->pool_proven_bytes, fall_bytes);
    else if (is_served)
        fallen_bytes = 0;
    else if (sg_self.open.before.most_pooled_bytes != 0)
        correct(request, fall_bytes);
}

void sg_pool_room_end(struct sg_request *request, bool is_granted)
{
    struct sg_lock_state lock;
    const struct sg_pool_figures *before = &sg_self.open.before;
    if (!request->attempt.is_measured)
        return;
    sg_lock_acquire(&sg_decision_lock, &lock);
    sg_headroom_look(false);
    struct sg_pool_figures now = read_figures(request->granted_bytes);
    uint64_t fall = above(now.unexplained_bytes, before->unexplained_bytes);
    bool is_alone = before->is_quiet && now.is_quiet && before->others_bytes == now.others_bytes;
    if (is_alone)
        learn(request, is_granted ? fall : above(fall, above(now.own_bytes, before->own_bytes)), is_granted);
    else if (request->attempt.relies) /* not measured: it counts as taken from the machine */
        sg_fetch_add(&sg_entry_registry()->pool_disproven_bytes,
                     above(request->attempt.pooled_bytes, before->proven_bytes));
    request->attempt.is_measured = false;
    sg_lock_release(&sg_decision_lock, &lock);
}
