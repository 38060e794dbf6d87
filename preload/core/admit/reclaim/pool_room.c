/*
 * pool_room.c - see pool_room.h.
 */
#include "admit/reclaim/pool_room.h"

#include "account/driver_pool.h"
#include "account/thread_record.h"
#include "base/pages.h"
#include "base/atomics.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/options.h"
#include "base/procfs.h"
#include "base/syscall.h"
#include "base/text.h"
#include "shared/container.h"
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
#define MISSED_NS UINT64_C(60000000000)     /* so long after a wrong guess, nothing is guessed */
#define FRESH_NS UINT64_C(1000000000)       /* NVML's list says who lives, for a decision */
#define REPORTED_NS UINT64_C(5000000000)    /* the same for figures that programs query, perhaps all the time */
#define ENDING_NS UINT64_C(3000000000)      /* the driver gives a dead process's memory back meanwhile */
#define DROP_PAUSE_NS UINT64_C(10000000000) /* dropping also empties caches that others fill again */

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

/* Device memory of living guarded processes with its lists, which no pool keeps, and managed memory. Pinned memory is
 * part of Shmem, and explained. Where a driver takes it from elsewhere, Shmem is smaller, and the difference is the
 * driver's. */
static uint64_t owned_bytes(const struct sg_cuda_sum *all)
{
    return all->device_bytes + all->device_bytes / SG_HEADROOM_LISTS_PART + all->managed_bytes +
           sg_above(all->pinned_bytes, sg_headroom_last.snapshot.shared_bytes);
}

/* The contexts of guarded processes, by the size of the last ones. */
static uint64_t context_bytes_of(const struct sg_cuda_sum *all)
{
    return all->contexts * sg_smaller(sg_load(&sg_entry_registry()->context_bytes), CONTEXT_MOST);
}

/* NVML's last answer to this process: the words of the registry may be another's lie. Under the lock. */
static struct {
    uint64_t time_ns;       /* 0: none yet */
    uint64_t beyond_bytes;  /* device memory of living processes beyond that of guarded ones */
    uint64_t unowned_bytes; /* unowned_bytes() around it, the smaller one */
} list;

/* Unexplained memory that is not of guarded processes and their contexts. The owners are summed up before and after the
 * kernel's figures were read, and the larger sum counts. */
static uint64_t unowned_bytes(void)
{
    const struct sg_cuda_sum *before = &sg_headroom_last.peers.cuda[0], *after = &sg_headroom_last.cuda_after[0];
    uint64_t owned =
        sg_larger(owned_bytes(before) + context_bytes_of(before), owned_bytes(after) + context_bytes_of(after));
    return sg_above(sg_headroom_last.snapshot.unexplained_bytes, owned);
}

static bool has_list(uint64_t fresh_ns)
{
    return is_within(&list.time_ns, fresh_ns);
}

/* Lowers a word to what it can be at most, and returns it. */
static uint64_t cut_word(uint64_t *word, uint64_t most)
{
    uint64_t value = sg_load(word);
    if (value > most)
        (void)sg_cas_u64(word, &value, most);
    return sg_smaller(value, most);
}

/* Upper bound of the pool. `listed_bytes`: what living programs beyond guarded ones have of it. What is proven cannot
 * be more: where MemAvailable rose, the pool has shrunk. */
static uint64_t most_pooled(uint64_t listed_bytes)
{
    struct sg_registry *registry = sg_entry_registry();
    uint64_t unowned = unowned_bytes();
    uint64_t most = sg_above(sg_above(unowned, listed_bytes), cut_word(&registry->pool_disproven_bytes, unowned));
    (void)cut_word(&registry->pool_proven_bytes, most);
    return most;
}

/* The same by a list of this age. */
static uint64_t most_by_list(uint64_t fresh_ns)
{
    return most_pooled(has_list(fresh_ns) ? list.beyond_bytes : 0);
}

/* What may be counted without being sure: were none of it in the pool, the machine would still keep its floor. */
static uint64_t risk_bytes(uint32_t parts)
{
    const struct sg_constraint *machine = &sg_headroom_last.snapshot.at[0];
    uint64_t left = sg_above(sg_headroom_usable(0, parts, true), machine->floor_bytes);
    return sg_smaller(left, sg_above(machine->reserve_bytes, machine->floor_bytes));
}

/* Room of at most `most` bytes, of which `sure` were there when NVML listed all owners. `is_listed`: its list is
 * recent, so that what is not proven counts, too. */
static uint64_t room(uint32_t parts, uint64_t most, uint64_t sure, bool is_listed)
{
    uint64_t taken = sg_headroom_taken(0, parts),
             short_bytes = sg_above(taken, sg_headroom_last.snapshot.at[0].headroom_bytes);
    uint64_t proven = sg_smaller(sg_load(&sg_entry_registry()->pool_proven_bytes), most);
    uint64_t under_way =
        sg_headroom_under_way(&sg_headroom_last.peers.device_of_machine, sg_entry_sum(SG_SUM_UNBOUNDED), parts);
    uint64_t counted = proven, unproven = sg_above(most, proven + noise_bytes());
    if (under_way == 0 && is_listed)
        counted += unproven;
    else if (under_way == 0 && !is_within(&sg_entry_registry()->pool_missed_ns, MISSED_NS))
        counted += unproven / 2;
    sure = sg_smaller(sure, counted);
    return sg_above(sure, short_bytes) + sg_smaller(sg_above(counted, sure), risk_bytes(parts));
}

static bool has_pool(void)
{
    return sg_headroom_unified() == 1 && sg_driver_pool_is_used();
}

/* The room by a list of this age. `is_new`: it was asked for just now. What came since may be another program's. */
static uint64_t room_by_list(uint32_t parts, uint64_t fresh_ns, bool is_new)
{
    bool is_listed = has_list(fresh_ns);
    uint64_t most = most_by_list(fresh_ns), then = sg_above(list.unowned_bytes, list.beyond_bytes);
    uint64_t since = is_listed ? sg_above(most, then) : 0;
    return room(parts, most - since + since / 2, is_listed && is_new ? most - since : 0, is_listed);
}

uint64_t sg_pool_room_bytes(const struct sg_request *request, uint32_t parts)
{
    if (!is_for_device(request) || (parts & SG_HEADROOM_NO_POOL) != 0 || !has_pool())
        return 0;
    return room_by_list(parts, FRESH_NS, !request->attempt.can_list);
}

uint64_t sg_pool_room_for_all(bool is_observer)
{
    struct sg_registry *registry = sg_entry_registry();
    if (!has_pool())
        return 0;
    if (!is_observer)
        return room_by_list(SG_HEADROOM_ALL, REPORTED_NS, true);
    bool is_listed = is_within(&registry->listed_ns, REPORTED_NS);
    uint64_t most = most_pooled(is_listed ? sg_load(&registry->listed_bytes) : 0);
    return room(SG_HEADROOM_ALL, most, is_listed ? most : 0, is_listed);
}

uint64_t sg_pool_room_most_bytes(void)
{
    if (sg_headroom_unified() == 0 || !sg_driver_pool_is_used())
        return 0;
    return sg_above(sg_above(unowned_bytes(), has_list(FRESH_NS) ? list.beyond_bytes : 0), noise_bytes());
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

/* Device memory of other processes that are ending. A killed process keeps its entry until the driver has its memory
 * back, because the kernel closes the driver's files before it releases the entry's lock. 0 if something has been
 * ending for 3 s: a driver may hang. */
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
    (void)most_pooled(0);
    sg_entry_add_cut(&bytes, sg_load(&registry->pool_proven_bytes));
    return bytes;
}

/* ---- NVML's list of processes ------------------------------------------------------------------------------------ */

/* Below the floor the driver has been seen to hang. */
bool sg_pool_room_wants_list(enum sg_pool_list age)
{
    static const uint64_t fresh_ns[] = {
        [SG_POOL_LIST_NEW] = 0, [SG_POOL_LIST_RECENT] = FRESH_NS, [SG_POOL_LIST_REPORTED] = REPORTED_NS};
    const struct sg_constraint *machine = &sg_headroom_last.snapshot.at[0];
    return has_pool() && !has_list(fresh_ns[age]) && unowned_bytes() > noise_bytes() &&
           machine->headroom_bytes >= machine->floor_bytes;
}

/* What nobody owned at that look: sg_pool_room_note_list compares it with a look after the list. */
static uint64_t unowned_before;

uint64_t sg_pool_room_owned_bytes(void)
{
    struct sg_lock_state lock;
    const struct sg_cuda_sum *all = &sg_headroom_last.cuda_after[0];
    sg_lock_acquire(&sg_decision_lock, &lock);
    (void)sg_registry_reap(); /* NVML does not list the dead */
    sg_headroom_look(false);
    sg_headroom_forget();
    unowned_before = unowned_bytes();
    uint64_t bytes = all->device_bytes + context_bytes_of(all);
    sg_lock_release(&sg_decision_lock, &lock);
    return bytes;
}

void sg_pool_room_note_list(uint64_t listed_bytes, uint64_t owned_before)
{
    struct sg_registry *registry = sg_entry_registry();
    uint64_t before = unowned_before, owned = sg_smaller(owned_before, sg_pool_room_owned_bytes());
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_decision_lock, &lock);
    list.beyond_bytes = sg_above(listed_bytes, owned);
    list.unowned_bytes = sg_smaller(before, unowned_before);
    list.time_ns = sg_clock_ns(CLOCK_MONOTONIC);
    sg_store(&registry->listed_bytes, list.beyond_bytes); /* for tools, which do not ask */
    sg_store(&registry->listed_ns, list.time_ns);
    sg_lock_release(&sg_decision_lock, &lock);
}

/* ---- emptying the pool ------------------------------------------------------------------------------------------- */

/* Opens drop_caches for writing, as only root can. -errno: it cannot be opened. */
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
    if (sg_own->pid_namespace != SG_FIRST_PID_NAMESPACE || is_within(&sg_entry_registry()->dropped_ns, DROP_PAUSE_NS))
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

static struct sg_pool_figures read_figures(uint64_t own_flight_bytes)
{
    const struct sg_peers *peers = &sg_headroom_last.peers;
    return (struct sg_pool_figures){
        .unexplained_bytes = sg_headroom_last.snapshot.unexplained_bytes,
        .own_bytes = sg_load(&sg_own->domain[SG_DOMAIN_DEVICE].granted_bytes),
        .others_bytes = peers->device_bytes,
        .most_pooled_bytes = most_by_list(FRESH_NS),
        .proven_bytes = sg_load(&sg_entry_registry()->pool_proven_bytes),
        .is_quiet = peers->device_of_machine.flight_bytes == 0 && sg_entry_sum(SG_SUM_UNBOUNDED) == own_flight_bytes,
        .is_listed = has_list(FRESH_NS),
    };
}

void sg_pool_room_begin(struct sg_request *request, bool relies)
{
    if (!is_for_device(request) || !sg_headroom_last.snapshot.is_valid)
        return;
    sg_self.open.before = read_figures(0);
    request->attempt.is_measured = true;
    request->attempt.relies = relies;
}

static uint64_t fallen_bytes; /* by small calls since the pool served the last one */

/* The machine served most of a call, so that the pool is empty now. If it was to serve the call, something else is
 * where it was believed: what NVML does not know, or, without its list, a program. A small fall may be another's: such
 * falls show it together. */
static void note_miss(const struct sg_request *request, uint64_t fall_bytes)
{
    struct sg_registry *registry = sg_entry_registry();
    const struct sg_pool_figures *before = &sg_self.open.before;
    fallen_bytes += fall_bytes;
    if (request->size_bytes < noise_bytes() && fallen_bytes < noise_bytes())
        return;
    sg_store(&registry->pool_proven_bytes, UINT64_C(0));
    if (!request->attempt.relies || is_within(&registry->ended_ns, ENDING_NS)) /* a dead process's is on its way */
        return;
    uint64_t served = sg_above(request->size_bytes, fall_bytes);
    if (before->is_listed)
        sg_fetch_add(&registry->pool_disproven_bytes, sg_above(before->most_pooled_bytes, served));
    else
        sg_store(&registry->pool_missed_ns, sg_clock_ns(CLOCK_MONOTONIC));
}

/* The pool served at least half of a call. What it served beyond its bound was wrongly disproven. */
static void note_served(uint64_t served_bytes)
{
    struct sg_registry *registry = sg_entry_registry();
    const struct sg_pool_figures *before = &sg_self.open.before;
    fallen_bytes = 0;
    (void)sg_sub_clamped(&registry->pool_disproven_bytes, sg_above(served_bytes, before->most_pooled_bytes));
    if (served_bytes > before->proven_bytes + noise_bytes())
        sg_store(&registry->pool_missed_ns, UINT64_C(0));
}

/* Learns from a call for device memory that ran beside no other: it took `fall_bytes` from the machine. If it failed,
 * it left these bytes in the pool. */
static void learn(const struct sg_request *request, uint64_t fall_bytes, bool is_granted)
{
    uint64_t size_bytes = request->size_bytes;
    if (!is_granted)
        sg_fetch_add(&sg_entry_registry()->pool_proven_bytes, fall_bytes);
    else if (fall_bytes <= size_bytes / 2)
        note_served(size_bytes - fall_bytes);
    else if (sg_self.open.before.most_pooled_bytes != 0)
        note_miss(request, fall_bytes);
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
    uint64_t fall = sg_above(now.unexplained_bytes, before->unexplained_bytes);
    uint64_t others = sg_above(sg_above(now.own_bytes, before->own_bytes), is_granted ? request->size_bytes : 0);
    if (before->is_quiet && now.is_quiet && before->others_bytes == now.others_bytes)
        learn(request, sg_above(fall, others), is_granted); /* less what other threads were granted */
    request->attempt.is_measured = false;
    sg_lock_release(&sg_decision_lock, &lock);
}
