/*
 * fork.c - see fork.h.
 */
#include "hooks/mmap/fork.h"

#include "hooks/mmap/sysv_attachments.h"
#include "account/tmpfs_ranges.h"
#include "base/atomics.h"
#include "base/compiler.h"
#include "account/tracker.h"
#include "account/ledger.h"
#include "account/callsites.h"
#include "base/syscall.h"
#include "base/pages.h"

#include <sys/mman.h>

/* A range parked at place n was mapped at its parked address less place_at(n). Each call has a place of its own. If
 * no place is free, calls share the last one; they collide only if one of them got addresses that another has just
 * freed. */
enum { PLACES = 16, PLACE_SHIFT = 58 };

static struct {
    uintptr_t kept_end; /* parked address; the call unmaps what lies above */
    uintptr_t distance; /* distance that the call moves what lies below kept_end, if has_wanted */
    bool has_wanted;
} parking[PLACES];

static uint32_t locks_future SG_AT_FORK; /* (atomic) mlockall(MCL_FUTURE) */

static uintptr_t place_at(unsigned place)
{
    return ((uintptr_t)1 << 63) + ((uintptr_t)place << PLACE_SHIFT);
}

int sg_mmap_park(uintptr_t begin, uint64_t bytes, uint64_t kept_bytes, uintptr_t wanted, uintptr_t *parked)
{
    struct sg_range range;
    unsigned place = 0;
    while (place + 1 < PLACES && sg_range_map_within(&sg_tracker_maps, place_at(place), place_at(place + 1), &range))
        place++;
    *parked = place_at(place) + begin;
    parking[place].kept_end = *parked + (kept_bytes < bytes ? kept_bytes : bytes);
    parking[place].distance = wanted - begin;
    parking[place].has_wanted = wanted != 0;
    sg_sysv_attached_move(begin, *parked, bytes, false);
    return sg_range_map_move(&sg_tracker_maps, begin, *parked, bytes, false);
}

int sg_mmap_unpark(uintptr_t parked, uintptr_t begin, uint64_t bytes)
{
    sg_sysv_attached_move(parked, begin, bytes, false);
    return sg_range_map_move(&sg_tracker_maps, parked, begin, bytes, false);
}

/* Asks the kernel whether the page at `address` is mapped. Under a seccomp filter the answer is always true. */
static bool is_mapped(uintptr_t address)
{
    return sg_sys_msync(address, sg_page_bytes(), MS_ASYNC) != -ENOMEM;
}

/* Settles one parked range in a forked child. When the kernel copied the mappings, the parent's call was either done as
 * a whole or not at all. If the call had not happened, the range returns to its address. If the call had moved the
 * mapping to the wanted address, the range goes there. If the kernel had chosen the address, the child has the mapping
 * and does not know where. The range is dropped; a later munmap of memory that the range map does not know changes
 * nothing. */
static int settle_parked(unsigned place, uintptr_t begin, uintptr_t end)
{
    struct sg_range range;
    uintptr_t from = begin - place_at(place), to = from + parking[place].distance;
    if (is_mapped(from) && !sg_range_map_within(&sg_tracker_maps, from, from + (end - begin), &range))
        return sg_mmap_unpark(begin, from, end - begin);
    if (parking[place].has_wanted && end <= parking[place].kept_end && is_mapped(to))
        return sg_mmap_unpark(begin, to, end - begin);
    sg_sysv_attached_cut(begin, end);
    return sg_range_map_set(&sg_tracker_maps, begin, end, SG_RANGE_NONE, 0);
}

void sg_mmap_note_advice(uintptr_t begin, uintptr_t end, int advice)
{
    struct sg_lock_state lock;
    uint32_t flag = advice == MADV_DONTFORK || advice == MADV_DOFORK ? SG_RANGE_UNFORKED : SG_RANGE_WIPED;
    bool is_set = advice == MADV_DONTFORK || advice == MADV_WIPEONFORK;
    sg_tracker_wait_for_fork();
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    sg_tracker_begin_change();
    int result = is_set ? sg_range_map_flag(&sg_tracker_maps, begin, end, flag)
                        : sg_range_map_unflag(&sg_tracker_maps, begin, end, flag);
    sg_tracker_end_change();
    sg_lock_release(&sg_tracker_maps_lock, &lock);
    if (result != 0)
        sg_ledger_count_fault();
}

/* Drops the ranges that the child does not have (MADV_DONTFORK). A range without its pages (MADV_WIPEONFORK) is
 * promised anew. */
static int forget_unforked(void)
{
    struct sg_range range;
    int result = 0;
    for (uintptr_t at = 0; sg_range_map_within(&sg_tracker_maps, at, place_at(0), &range); at = range.end) {
        if ((range.flags & SG_RANGE_UNFORKED) != 0) {
            sg_sysv_attached_cut(range.begin, range.end);
            result |= sg_range_map_set(&sg_tracker_maps, range.begin, range.end, SG_RANGE_NONE, 0);
        } else if ((range.flags & SG_RANGE_WIPED) != 0) {
            sg_ledger_add_promised_before_fork(range.end - range.begin);
        }
    }
    return result;
}

static int settle_all(void)
{
    struct sg_range range;
    int result = 0;
    for (unsigned place = 0; place < PLACES; place++)
        for (uintptr_t at = place_at(place), end;
             sg_range_map_within(&sg_tracker_maps, at, place_at(place + 1), &range); at = end) {
            uintptr_t kept_end = parking[place].kept_end;
            end = range.begin < kept_end && range.end > kept_end ? kept_end : range.end;
            result |= settle_parked(place, range.begin, end);
        }
    return result | forget_unforked();
}

void sg_mmap_lock_future(bool is_locked)
{
    sg_store_relaxed(&locks_future, is_locked ? 1u : 0u);
}

bool sg_mmap_locks_future(void)
{
    return SG_UNLIKELY(sg_load_relaxed(&locks_future) != 0);
}

void sg_mmap_atfork_child(bool is_map_whole)
{
    struct sg_lock_state lock;
    int result = 0;
    sg_mmap_lock_future(false);
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    if (is_map_whole) {
        result = settle_all();
    } else {
        sg_sysv_attached_forget();
        sg_tracker_maps.changed_sites = UINT32_MAX;
    }
    sg_callsites_publish_ranges(&sg_tracker_maps);
    sg_tmpfs_mapped.is_changed = true;
    sg_tmpfs_show_changes(0);
    sg_ledger_set_mapped_before_fork(sg_tracker_maps.counted_bytes);
    sg_ledger_close_private(sg_tracker_maps.shut_bytes);
    sg_lock_release(&sg_tracker_maps_lock, &lock);
    if (result != 0)
        sg_ledger_count_fault();
}
