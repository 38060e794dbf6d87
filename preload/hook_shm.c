/*
 * hook_shm.c - shmat and shmdt: a System V segment counts while it is attached for writing, each time it is, as a shared
 * mapping of a tmpfs file does, for that is what the kernel makes it; what is missing of it is promised once on the machine.
 * shmget takes no memory. A segment outlives those who attached it: one that nobody has is seen in MemAvailable only. The
 * pages of one made with SHM_HUGETLB lie in the pool of huge pages, which shmctl does not tell: they are judged as if they did
 * not.
 *
 * shmdt is told no size: it is remembered with the address. The index changes before the real shmdt and after the real shmat,
 * as with mmap.
 */
#include "compiler.h"
#include "files.h"
#include "index.h"
#include "ledger.h"
#include "lifecycle.h"
#include "map_change.h"
#include "options.h"
#include "real.h"
#include "sites.h"
#include "thread.h"
#include "watchdog.h"

#include <errno.h>
#include <sys/shm.h>

/* Address -> bytes, whole pages, with the number of the segment's window (files.h) in the low bits. */
static struct sg_table attached;
#define WINDOW_MASK UINT64_C(255)

#define NOWHERE ((void *)-1)

static void enter(uintptr_t address, const struct sg_map_shape *shape, uint32_t window)
{
    if (sg_table_insert(&attached, address, shape->bytes | window, NULL) != 0) {
        sg_ledger_count_fault(); /* better not counted than counted for ever */
        return;
    }
    sg_map_set(address, shape);
    if (shape->kind == SG_RANGE_COUNTED)
        sg_ledger_count_allocation(SG_DOMAIN_MAPPED);
}

SG_EXPORT void *shmat(int id, const void *address, int flags)
{
    struct sg_map_shape shape = {.kind = SG_RANGE_NONE};
    if (sg_lifecycle_enter() && sg_self.layers == 0)
        shape = sg_map_shape_of_segment(id, flags);
    if (shape.kind == SG_RANGE_NONE)
        return SG_REAL(shmat)(id, address, flags);
    int saved_errno = errno;
    uint64_t growth = shape.kind == SG_RANGE_COUNTED ? shape.bytes : 0;
    struct sg_request request = {.domain = SG_DOMAIN_MAPPED,
                                 .size_bytes = growth < shape.missing_bytes ? growth : shape.missing_bytes,
                                 .growth_bytes = growth,
                                 .call = "shmat",
                                 .window_identity = shape.window_identity};
    if (!sg_map_judge(&request))
        return NOWHERE;
    uint32_t window = sg_files_enter(&shape);
    shape.flags |= sg_files_flags(window);
    if (shape.bytes >= sg_options.large_bytes)
        shape.flags |= sg_sites_find(SG_SITES_MAPPED, SG_DOMAIN_MAPPED, __builtin_return_address(0))
                       << SG_RANGE_SITE_SHIFT;
    void *mapped = SG_REAL(shmat)(id, address, flags);
    bool is_done = mapped != NOWHERE;
    if (!is_done)
        saved_errno = errno;
    sg_lock_begin_series();
    if (is_done)
        enter((uintptr_t)mapped, &shape, window);
    sg_files_entered(window);
    sg_map_settle(&request, is_done);
    sg_lock_end_series();
    sg_watchdog_consider();
    errno = saved_errno;
    return mapped;
}

/* Whether it counted. What a program has unmapped by munmap, and mapped something else over, is not the segment's. */
static bool forget(uintptr_t begin, uint64_t bytes, uint32_t window)
{
    struct sg_map_change change;
    struct sg_range range;
    uintptr_t end = begin + bytes;
    bool has_counted = false;
    int result = 0;
    sg_map_change_begin(&change);
    for (uintptr_t at = begin; sg_ranges_next(&sg_index_maps, at, &range) && range.begin < end; at = range.end) {
        if ((range.flags & SG_RANGE_SHARED) == 0 || sg_files_number(range.flags) != window)
            continue;
        uintptr_t from = range.begin > begin ? range.begin : begin, to = range.end < end ? range.end : end;
        has_counted = has_counted || range.kind == SG_RANGE_COUNTED;
        change.drops_files = window != 0;
        if (sg_ranges_set(&sg_index_maps, from, to, SG_RANGE_NONE, 0) != 0)
            result = -ENOMEM;
    }
    sg_map_change_end(&change, result);
    return has_counted;
}

SG_EXPORT int shmdt(const void *address)
{
    uintptr_t begin = (uintptr_t)address;
    uint64_t known = sg_lifecycle_enter() && begin != 0 ? sg_table_remove(&attached, begin) : 0;
    bool has_counted =
        known != 0 && forget(begin, known & ~WINDOW_MASK, (uint32_t)(known & WINDOW_MASK)); /* does not fail, then */
    int answer = SG_REAL(shmdt)(address);
    if (has_counted && answer == 0)
        sg_ledger_count_free(SG_DOMAIN_MAPPED);
    return answer;
}
