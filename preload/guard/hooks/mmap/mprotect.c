/*
 * mprotect.c - the hooks of mprotect and pkey_mprotect. A reservation begins to count when it becomes writable. A
 * MAP_NORESERVE reservation is judged in the same way, but promises nothing. The hooks may run in a SIGSEGV handler.
 */
#include "base/atomics.h"
#include "base/compiler.h"
#include "account/tracker.h"
#include "account/ledger.h"
#include "hooks/mmap/change.h"
#include "hooks/mmap/fork.h"
#include "base/procfs.h"
#include "hooks/real.h"
#include "base/syscall.h"
#include "watch/watchdog.h"
#include "base/pages.h"

#include <errno.h>
#include <sys/mman.h>

static SG_INLINE bool begin_protect(struct sg_request *request, uintptr_t begin, uint64_t bytes, int prot,
                                    const char *call)
{
    *request = (struct sg_request){0};
    if (!sg_mmap_is_counting() || (prot & PROT_WRITE) == 0 || sg_load_relaxed(&sg_tracker_maps.chunk_count) == 0 ||
        !sg_mmap_describe_commit(request, begin, begin + bytes, call))
        return true;
    if (request->size_bytes != 0 && request->sparse_bytes == 0 && sg_mmap_is_own_reservation(begin, bytes))
        request->kind = SG_REQUEST_COMMIT;
    return sg_mmap_judge(request);
}

/* Bytes that have become writable. */
struct committed {
    uint64_t counted_bytes, sparse_bytes;
};

static void commit(struct committed *sum, uintptr_t begin, uintptr_t end)
{
    struct sg_mmap_change change;
    sg_mmap_change_begin(&change);
    uint64_t closed = sg_mmap_closed_bytes(begin, end - begin);
    sg_ledger_note_moved(closed);
    int result = sg_range_map_commit(&sg_tracker_maps, begin, end);
    sum->counted_bytes += sg_tracker_maps.counted_bytes - change.before_bytes;
    sum->sparse_bytes += closed;
    sg_mmap_change_end(&change, result);
}

/* A range that mprotect has failed in: what is left of it, and what of it was committed. */
struct failed {
    uintptr_t begin, end;
    struct committed committed;
};

static bool commit_mapping(void *context, const struct sg_procfs_mapping *mapping)
{
    struct failed *left = context;
    uintptr_t from = mapping->begin > left->begin ? mapping->begin : left->begin;
    uintptr_t to = mapping->end < left->end ? mapping->end : left->end;
    if (from < to && mapping->rights[1] == 'w')
        commit(&left->committed, from, to);
    left->begin = from < to ? to : mapping->begin >= left->end ? left->end : left->begin;
    return left->begin < left->end;
}

/* A failed mprotect has changed all pages below the one that it failed at, unless its arguments are wrong (EINVAL).
 * Commits those that the kernel lists as writable. If the list cannot be read, everything is taken to be writable. */
static struct committed commit_writable(uintptr_t begin, uintptr_t end)
{
    struct failed left = {.begin = begin, .end = end};
    if (!sg_procfs_visit_mappings(commit_mapping, &left))
        commit(&left.committed, left.begin, left.end);
    return left.committed;
}

/* Follows an mprotect that makes private memory unwritable, or has made it writable again. What becomes unwritable
 * leaves what the kernel counts as writable, and its pages stay. So it is noted before the call, and its end after it:
 * whatever an observation finds meanwhile, it finds the size. A call that failed may have done a part: what it did not
 * is counted twice until the range is made writable or goes. */
static SG_INLINE void note_shut(uintptr_t begin, uint64_t bytes, bool is_shut)
{
    struct sg_mmap_change change;
    if (SG_LIKELY(is_shut ? sg_load_relaxed(&sg_tracker_maps.chunk_count) == 0 || !sg_mmap_is_counting()
                          : sg_load_relaxed(&sg_tracker_maps.shut_bytes) == 0) ||
        bytes > SG_MAP_MAX || begin > SG_MAP_MAX)
        return;
    sg_mmap_change_begin(&change);
    int result = sg_range_map_shut(&sg_tracker_maps, begin, begin + bytes, is_shut);
    sg_mmap_change_end(&change, result);
}

static void end_protect(struct sg_request *request, uintptr_t begin, uint64_t bytes, int prot, bool is_done)
{
    int saved_errno = errno;
    if (is_done && (prot & PROT_WRITE) != 0)
        note_shut(begin, bytes, false);
    bool is_asked = request->wording.call != NULL; /* sg_mmap_describe_commit found reserved memory */
    if (is_asked) {
        struct committed committed = {0};
        if (is_done)
            commit(&committed, begin, begin + bytes);
        else if (saved_errno != EINVAL)
            committed = commit_writable(begin, begin + bytes);
        uint64_t sum = committed.counted_bytes + committed.sparse_bytes;
        if (!is_done && sum < request->size_bytes) { /* larger if another thread committed it, too */
            request->size_bytes = sum;
            request->sparse_bytes = committed.sparse_bytes;
        }
        is_done = is_done || sum != 0;
    }
    if (is_done && is_asked)
        sg_ledger_count_allocation(SG_DOMAIN_MAPPED);
    sg_mmap_settle(request, is_done);
    sg_watchdog_consider();
    errno = saved_errno;
}

SG_EXPORT int mprotect(void *address, size_t length, int prot)
{
    struct sg_request request;
    uint64_t bytes = sg_round_up(length, sg_page_bytes());
    if (!begin_protect(&request, (uintptr_t)address, bytes, prot, "mprotect"))
        return -1;
    if ((prot & PROT_WRITE) == 0)
        note_shut((uintptr_t)address, bytes, true);
    int answer = SG_REAL(mprotect)(address, length, prot);
    end_protect(&request, (uintptr_t)address, bytes, prot, answer == 0);
    return answer;
}

SG_EXPORT int pkey_mprotect(void *address, size_t length, int prot, int pkey)
{
    struct sg_request request;
    uint64_t bytes = sg_round_up(length, sg_page_bytes());
    if (!begin_protect(&request, (uintptr_t)address, bytes, prot, "pkey_mprotect"))
        return -1;
    if ((prot & PROT_WRITE) == 0)
        note_shut((uintptr_t)address, bytes, true);
    int answer = SG_REAL(pkey_mprotect)(address, length, prot, pkey);
    end_protect(&request, (uintptr_t)address, bytes, prot, answer == 0);
    return answer;
}
