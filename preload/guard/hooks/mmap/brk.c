/*
 * brk.c - the hooks of brk and sbrk, called by the program or by an allocator of its own. Memory between the old end of
 * the data segment and the new one counts as a private mapping does.
 *
 * glibc's malloc moves the same end without calling these names. Its memory is counted block by block and is not
 * entered in the range map here. glibc leaves alone what others have taken between its own pieces, and so does the
 * range map.
 */
#include "base/atomics.h"
#include "base/compiler.h"
#include "account/tracker.h"
#include "account/ledger.h"
#include "hooks/lifecycle.h"
#include "hooks/mmap/change.h"
#include "hooks/real.h"
#include "watch/watchdog.h"
#include "base/pages.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOWHERE ((void *)-1)

static uintptr_t page_end(uintptr_t address)
{
    return sg_round_up(address, sg_page_bytes());
}

static void forget_range(uintptr_t begin, uintptr_t end)
{
    struct sg_mmap_change change;
    sg_mmap_change_begin(&change);
    int result = sg_range_map_set(&sg_tracker_maps, begin, end, SG_RANGE_NONE, 0);
    bool has_counted = sg_tracker_maps.counted_bytes < change.before_bytes;
    sg_mmap_change_end(&change, result);
    if (has_counted)
        sg_ledger_count_free(SG_DOMAIN_MAPPED);
}

/* Enters the new end in the range map. Only whole new pages are entered: a page that the old end lies in was entered
 * before, or belongs to the heap. */
static void enter_move(uintptr_t before, uintptr_t now, struct sg_mapping_kind *mapping)
{
    uintptr_t begin = page_end(before), end = page_end(now);
    if (end > begin) {
        mapping->bytes = end - begin;
        sg_mmap_set(begin, mapping);
        sg_ledger_count_allocation(SG_DOMAIN_MAPPED);
    } else if (end < begin && sg_load_relaxed(&sg_tracker_maps.chunk_count) != 0) {
        forget_range(end, begin);
    }
}

/* Moves the end by `increment` bytes (sbrk), or to `wanted` if that is not NULL (brk). Returns what sbrk returns. The
 * real call is made at most once. */
static void *move_end(intptr_t increment, void *wanted, const char *call, const void *caller)
{
    void *before = SG_REAL(sbrk)(0);
    int saved_errno = errno;
    if (wanted != NULL)
        increment = (intptr_t)((uintptr_t)wanted - (uintptr_t)before);
    uintptr_t old_end = page_end((uintptr_t)before), new_end = page_end((uintptr_t)before + (uintptr_t)increment);
    uint64_t growth = before != NOWHERE && increment > 0 && new_end > old_end ? new_end - old_end : 0;
    struct sg_mapping_kind mapping = {
        .kind = SG_RANGE_COUNTED, .bytes = growth, .is_judged = true, .missing_bytes = growth};
    struct sg_request request;
    sg_mmap_name_site(&mapping, caller);
    if (!sg_mmap_ask(&request, growth, 0, call))
        return NOWHERE;
    sg_lock_hold_signals(); /* until the range map agrees with the kernel: a handler must not longjmp out before */
    if (wanted == NULL)
        before = SG_REAL(sbrk)(increment); /* another thread's heap may have moved the end meanwhile */
    else if (SG_REAL(brk)(wanted) != 0)
        before = NOWHERE;
    bool is_done = before != NOWHERE;
    if (!is_done)
        saved_errno = errno;
    if (is_done)
        enter_move((uintptr_t)before, (uintptr_t)before + (uintptr_t)increment, &mapping);
    sg_mmap_settle(&request, is_done);
    sg_lock_let_signals();
    sg_watchdog_consider();
    errno = saved_errno;
    return before;
}

SG_EXPORT void *sbrk(intptr_t increment)
{
    if (increment == 0 || sg_real_is_looking() || !sg_mmap_is_counting())
        return SG_REAL(sbrk)(increment);
    return move_end(increment, NULL, "sbrk", __builtin_return_address(0));
}

SG_EXPORT int brk(void *address)
{
    if (address == NULL || sg_real_is_looking() || !sg_mmap_is_counting())
        return SG_REAL(brk)(address);
    return move_end(0, address, "brk", __builtin_return_address(0)) != NOWHERE ? 0 : -1;
}
