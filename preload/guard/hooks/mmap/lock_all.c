/*
 * lock_all.c - see lock_all.h.
 *
 * Without a privilege, mlockall(MCL_CURRENT) fails if all that is mapped is more than RLIMIT_MEMLOCK, accessible or
 * not. Debian's limit is 8 MiB, of which the registry takes 2. Where the program's own mappings are within the limit,
 * they are locked one by one.
 */
#include "hooks/mmap/lock_all.h"

#include "admit/admission.h"
#include "base/syscall.h"
#include "hooks/mmap/change.h"
#include "base/procfs.h"
#include "hooks/real.h"
#include "shared/registry.h"
#include "shared/segment.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>

struct span {
    uintptr_t begin, end;
};

enum { SPANS_OURS = 2 };

struct locking {
    struct span ours[SPANS_OURS];
    int flags;        /* of mlockall */
    bool is_measured; /* only adds up `bytes` */
    uint64_t bytes;
};

static void find_ours(struct span ours[SPANS_OURS])
{
    sg_registry_place(&ours[0].begin, &ours[0].end);
    sg_segment_unused(&ours[1].begin, &ours[1].end);
}

/* A mapping that cannot be locked stays as it is, as with mlockall. */
static void lock_span(struct locking *locking, uintptr_t begin, uintptr_t end)
{
    if (begin >= end)
        return;
    locking->bytes += end - begin;
    if (locking->is_measured)
        return;
    if ((locking->flags & MCL_ONFAULT) != 0)
        (void)SG_REAL(mlock2)((const void *)begin, end - begin, MLOCK_ONFAULT);
    else
        (void)SG_REAL(mlock)((const void *)begin, end - begin);
}

/* Locks a mapping without what is ours of it. */
static void lock_mapping(struct locking *locking, uintptr_t begin, uintptr_t end)
{
    while (begin < end) {
        const struct span *first = NULL; /* of ours in the rest of the mapping */
        for (const struct span *ours = locking->ours; ours < locking->ours + SPANS_OURS; ours++)
            if (ours->begin < end && ours->end > begin && (first == NULL || ours->begin < first->begin))
                first = ours;
        lock_span(locking, begin, first == NULL ? end : first->begin);
        begin = first == NULL ? end : first->end;
    }
}

static bool lock_next(void *context, const struct sg_procfs_mapping *mapping)
{
    lock_mapping(context, mapping->begin, mapping->end);
    return true;
}

/* Calls lock_mapping for each mapping. Returns false if the list of them cannot be read. */
static bool lock_mappings(struct locking *locking)
{
    return sg_procfs_visit_mappings(lock_next, locking);
}

/* Locks the mappings one by one after mlockall has failed. Returns false, and has done nothing, if these are more than
 * the limit, too. */
static bool lock_the_programs(int flags)
{
    struct rlimit limit = {0, 0};
    struct locking locking = {.flags = flags, .is_measured = true};
    find_ours(locking.ours);
    if (sg_syscall(SYS_prlimit64, 0, RLIMIT_MEMLOCK, 0, (long)&limit, 0, 0) != 0 || limit.rlim_cur == 0 ||
        !lock_mappings(&locking) || locking.bytes > limit.rlim_cur)
        return false;
    if ((flags & MCL_FUTURE) == 0) /* mlockall ends an earlier MCL_FUTURE */
        (void)SG_REAL(munlockall)();
    else if (SG_REAL(mlockall)(flags & ~MCL_CURRENT) != 0)
        return false;
    locking.is_measured = false;
    return lock_mappings(&locking);
}

int sg_lock_all(int flags)
{
    if (!sg_mmap_is_counting())
        return SG_REAL(mlockall)(flags);
    sg_admission_join(); /* maps the registry now: what is mapped after MCL_FUTURE counts against the limit */
    int answer = SG_REAL(mlockall)(flags);
    int saved_errno = errno;
    if (answer != 0 && saved_errno == ENOMEM && (flags & MCL_CURRENT) != 0 && lock_the_programs(flags))
        answer = 0;
    struct span ours[SPANS_OURS];
    find_ours(ours);
    for (int i = 0; answer == 0 && i < SPANS_OURS; i++)
        if (ours[i].begin < ours[i].end)
            (void)sg_syscall(SYS_munlock, (long)ours[i].begin, (long)(ours[i].end - ours[i].begin), 0, 0, 0, 0);
    errno = saved_errno;
    return answer;
}
