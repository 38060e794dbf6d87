/*
 * sysv.c - the hooks of shmat and shmdt.
 *
 * A System V segment counts while it is attached for writing, once however often it is attached. The kernel makes it of
 * tmpfs, so it counts as a tmpfs file does that is mapped shared: its missing pages are promised once on the machine.
 * shmget takes no memory, but for huge pages (SHM_HUGETLB): those that the pool lacks come from ordinary memory within
 * the call, and are judged there. A segment outlives the processes that attached it; a segment that no process has
 * attached shows only in MemAvailable. The pages of a segment made with SHM_HUGETLB lie in the pool of huge pages.
 * shmctl does not show that flag, so such a segment is judged like any other.
 *
 * shmdt gets no size; sysv_attachments.h knows what it detaches. The range map changes before the real shmdt and after
 * the real shmat, as with munmap and mmap.
 */
#include "hooks/mmap/sysv_attachments.h"
#include "base/compiler.h"
#include "base/pages.h"
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

static void enter_segment(uintptr_t address, const struct sg_mapping_kind *mapping)
{
    struct sg_mmap_change change;
    uintptr_t end = address + mapping->bytes;
    sg_mmap_change_begin(&change);
    int result = sg_mmap_enter(address, mapping);
    bool is_known = sg_sysv_attached_add(address, end);
    if (!is_known) /* shmdt would not find the segment, and it would stay counted forever */
        result = sg_range_map_set(&sg_tracker_maps, address, end, SG_RANGE_NONE, 0);
    sg_mmap_change_end(&change, is_known ? result : -ENOMEM);
    if (is_known && mapping->kind == SG_RANGE_COUNTED)
        sg_ledger_count_allocation(SG_DOMAIN_MAPPED);
}

/* The bytes that this shmget takes from ordinary memory; 0: none, or the kernel will refuse them. */
static uint64_t surplus_of(key_t key, size_t bytes, int flags)
{
    bool is_possible;
    int saved_errno = errno;
    bool is_new = key == IPC_PRIVATE || ((flags & IPC_CREAT) != 0 && SG_REAL(shmget)(key, 0, 0) < 0);
    errno = saved_errno;
    if (!is_new || (flags & SHM_HUGETLB) == 0 || (flags & SHM_NORESERVE) != 0 || bytes == 0 || bytes > PTRDIFF_MAX)
        return 0;
    uint64_t page_bytes = sg_mapping_huge_page_bytes(flags);
    uint64_t surplus = sg_mapping_surplus_bytes(sg_round_up(bytes, page_bytes), page_bytes, &is_possible);
    return is_possible ? surplus : 0;
}

SG_EXPORT int shmget(key_t key, size_t bytes, int flags)
{
    uint64_t surplus = (flags & SHM_HUGETLB) != 0 && sg_mmap_is_counting() ? surplus_of(key, bytes, flags) : 0;
    if (surplus == 0)
        return SG_REAL(shmget)(key, bytes, flags);
    int saved_errno = errno;
    struct sg_request request;
    if (!sg_mmap_ask(&request, surplus, 0, "shmget"))
        return -1;
    int id = SG_REAL(shmget)(key, bytes, flags);
    saved_errno = id < 0 ? errno : saved_errno;
    sg_mmap_settle(&request, false); /* the pages are there, and no promise */
    sg_watchdog_consider();
    errno = saved_errno;
    return id;
}

SG_EXPORT void *shmat(int id, const void *address, int flags)
{
    struct sg_mapping_kind mapping = {.kind = SG_RANGE_NONE};
    if (sg_mmap_is_counting())
        mapping = sg_mapping_kind_of_segment(id, flags);
    if (mapping.kind == SG_RANGE_NONE)
        return SG_REAL(shmat)(id, address, flags);
    int saved_errno = errno;
    struct sg_request request = {.domain = SG_DOMAIN_MAPPED, .wording.call = "shmat", .holds_signals = true};
    sg_mmap_describe(&request, &mapping, 0);
    sg_mmap_name_site(&mapping, __builtin_return_address(0));
    if (!sg_mmap_judge(&request))
        return NOWHERE;
    sg_lock_hold_signals();
    void *mapped = SG_REAL(shmat)(id, address, flags);
    bool is_done = mapped != NOWHERE;
    if (!is_done)
        saved_errno = errno;
    if (is_done)
        enter_segment((uintptr_t)mapped, &mapping);
    sg_mmap_settle(&request, is_done);
    sg_lock_let_signals();
    sg_watchdog_consider();
    errno = saved_errno;
    return mapped;
}

/* Takes the segment at `base` out of the range map. Returns whether it counted. */
static bool forget_segment(uintptr_t base)
{
    struct sg_mmap_change change;
    struct sg_sysv_attached piece;
    uint64_t number = 0;
    int result = 0;
    sg_mmap_change_begin(&change);
    bool has_counted = false;
    while (sg_sysv_attached_take(base, &number, &piece)) {
        has_counted =
            has_counted || sg_range_map_bytes(&sg_tracker_maps, piece.begin, piece.end, SG_RANGE_COUNTED) != 0;
        result |= sg_range_map_set(&sg_tracker_maps, piece.begin, piece.end, SG_RANGE_NONE, 0);
    }
    sg_mmap_change_end(&change, result);
    return has_counted;
}

SG_EXPORT int shmdt(const void *address)
{
    bool has_counted =
        sg_lifecycle_enter() && forget_segment((uintptr_t)address); /* shmdt of a listed one does not fail */
    int answer = SG_REAL(shmdt)(address);
    if (has_counted && answer == 0)
        sg_ledger_count_free(SG_DOMAIN_MAPPED);
    return answer;
}
