/*
 * file_locks.c - see file_locks.h.
 */
#include "hooks/mmap/file_locks.h"

#include "account/tracker.h"
#include "base/pages.h"
#include "base/syscall.h"
#include "base/procfs.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

struct search {
    uintptr_t begin, end;
    uint64_t bytes;
    bool with_private;
};

/* Whether the mapping is of an ordinary file, by its path. Devices cannot be locked; what the kernel names otherwise is
 * memory. */
static bool is_of_file(const struct sg_procfs_mapping *mapping)
{
    static const char *const others[] = {"/dev/", "/memfd:", "/SYSV", "/anon_huge", "/dmabuf"};
    for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strncmp(mapping->path, others[i], strlen(others[i])) == 0)
            return false;
    return mapping->path[0] == '/';
}

/* Memory files on any file system, and mappings whose copies are judged page by page. */
static bool is_tracked(uintptr_t begin, uintptr_t end, bool with_private)
{
    struct sg_lock_state lock;
    struct sg_range range;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    bool is_known = sg_range_map_within(&sg_tracker_maps, begin, end, &range);
    sg_lock_release(&sg_tracker_maps_lock, &lock);
    return is_known && ((range.flags & SG_RANGE_COPIED) == 0 || !with_private);
}

/* With MS_INVALIDATE alone, the kernel only checks that the mapping is not locked. */
static bool is_locked(uintptr_t address)
{
    return sg_sys_msync(address, sg_page_bytes(), MS_INVALIDATE) == -EBUSY;
}

static bool add_mapping(void *context, const struct sg_procfs_mapping *mapping)
{
    struct search *search = context;
    uintptr_t begin = mapping->begin > search->begin ? mapping->begin : search->begin;
    uintptr_t end = mapping->end < search->end ? mapping->end : search->end;
    bool is_accessible = memcmp(mapping->rights, "---", 3) != 0;
    if (begin < end && is_accessible && is_of_file(mapping) && !is_tracked(begin, end, search->with_private) &&
        !is_locked(begin))
        search->bytes += end - begin;
    return mapping->end < search->end;
}

uint64_t sg_mmap_unlocked_file_bytes(uintptr_t begin, uintptr_t end, bool with_private)
{
    struct search search = {begin, end, 0, with_private};
    return sg_procfs_visit_mappings(add_mapping, &search) ? search.bytes : 0;
}
