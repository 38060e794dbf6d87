/*
 * sysv.c - shmat and shmdt: a System V segment counts while it is attached for writing, once however often it
 * is, as a tmpfs file does that is mapped shared, for that is what the kernel makes it; what is missing of it is
 * promised once on the machine. shmget takes no memory. A segment outlives those who attached it: one that nobody
 * has is seen in MemAvailable only. The pages of one made with SHM_HUGETLB lie in the pool of huge pages, which
 * shmctl does not tell: they are judged as if they did not.
 *
 * shmdt is told no size: sysv_attachments.h knows what it takes. The index changes before the real shmdt and after the
 * real shmat, as with mmap.
 */
#include "hooks/mmap/sysv_attachments.h"
#include "base/compiler.h"
#include "account/tracker.h"
#include "account/ledger.h"
#include "hooks/lifecycle.h"
#include "hooks/mmap/change.h"
#include "hooks/real.h"
#include "account/thread_record.h"
#include "watch/watchdog.h"

#include <errno.h>
#include <sys/shm.h>

#define NOWHERE ((void *)-1)

static void enter(uintptr_t address, const struct sg_mapping_kind *shape)
{
    struct sg_map_change change;
    uintptr_t end = address + shape->bytes;
    sg_map_change_begin(&change);
    int result = sg_map_enter(address, shape);
    bool is_known = sg_sysv_attached_add(address, end);
    if (!is_known) /* better not counted than counted forever */
        result = sg_range_map_set(&sg_tracker_maps, address, end, SG_RANGE_NONE, 0);
    sg_map_change_end(&change, is_known ? result : -ENOMEM);
    if (is_known && shape->kind == SG_RANGE_COUNTED)
        sg_ledger_count_allocation(SG_DOMAIN_MAPPED);
}

SG_EXPORT void *shmat(int id, const void *address, int flags)
{
    struct sg_mapping_kind shape = {.kind = SG_RANGE_NONE};
    if (sg_lifecycle_enter() && sg_self.layers == 0)
        shape = sg_mapping_kind_of_segment(id, flags);
    if (shape.kind == SG_RANGE_NONE)
        return SG_REAL(shmat)(id, address, flags);
    int saved_errno = errno;
    struct sg_request request = {.domain = SG_DOMAIN_MAPPED, .call = "shmat", .holds_signals = true};
    sg_map_describe(&request, &shape, 0);
    sg_map_name_site(&shape, __builtin_return_address(0));
    if (!sg_map_judge(&request))
        return NOWHERE;
    sg_lock_hold_signals();
    void *mapped = SG_REAL(shmat)(id, address, flags);
    bool is_done = mapped != NOWHERE;
    if (!is_done)
        saved_errno = errno;
    if (is_done)
        enter((uintptr_t)mapped, &shape);
    sg_map_settle(&request, is_done);
    sg_lock_let_signals();
    sg_watchdog_consider();
    errno = saved_errno;
    return mapped;
}

/* Whether it counted. */
static bool forget(uintptr_t base)
{
    struct sg_map_change change;
    struct sg_sysv_attached piece;
    uint64_t number = 0;
    int result = 0;
    sg_map_change_begin(&change);
    bool has_counted = false;
    while (sg_sysv_attached_take(base, &number, &piece)) {
        has_counted =
            has_counted || sg_range_map_bytes(&sg_tracker_maps, piece.begin, piece.end, SG_RANGE_COUNTED) != 0;
        result |= sg_range_map_set(&sg_tracker_maps, piece.begin, piece.end, SG_RANGE_NONE, 0);
    }
    sg_map_change_end(&change, result);
    return has_counted;
}

SG_EXPORT int shmdt(const void *address)
{
    bool has_counted = sg_lifecycle_enter() && forget((uintptr_t)address); /* does not fail, then */
    int answer = SG_REAL(shmdt)(address);
    if (has_counted && answer == 0)
        sg_ledger_count_free(SG_DOMAIN_MAPPED);
    return answer;
}
