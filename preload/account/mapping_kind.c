/*
 * mapping_kind.c - see mapping_kind.h.
 */
#include "account/mapping_kind.h"

#include "base/atomics.h"
#include "base/range_map.h"
#include "base/seccomp.h"
#include "base/syscall.h"
#include "base/pages.h"

#include <linux/fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/sysmacros.h>

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

/* Pages larger than usual are of hugetlbfs, or of a tmpfs that is mounted with huge=. Filters that list what is allowed
 * may end the process at fstatfs. */
static bool is_huge_file(int fd, const struct stat *info)
{
    struct statfs file_system = {0};
    return (uint64_t)info->st_blksize > sg_page_bytes() && !sg_seccomp_is_on() &&
           sg_sys_fstatfs(fd, &file_system) == 0 && (uint64_t)file_system.f_type == HUGETLBFS_MAGIC;
}

/* Whether a descriptor's pages are memory: tmpfs, memfd, /dev/zero. Only such files have seals, and the question is one
 * that sandboxes allow. */
static bool is_memory_file(int fd, bool *is_huge, struct stat *info)
{
    bool has_seals = sg_sys_fcntl(fd, F_GET_SEALS, NULL) >= 0;
    if (sg_sys_fstat(fd, info) != 0)
        return false;
    if (!has_seals)
        return S_ISCHR(info->st_mode) && info->st_rdev == makedev(1, 5);
    *is_huge = is_huge_file(fd, info);
    return *is_huge || S_ISREG(info->st_mode);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

/* Two files are taken for one where all 31 bits agree: one time in two thousand millions. 0: the place cannot be
 * told. */
static uint64_t source_of(uint64_t identity, uint64_t offset, uint64_t bytes)
{
    const uint64_t most = (UINT64_C(1) << SG_SHARED_SHIFT) * SG_SHARED_UNIT;
    uint64_t file = identity >> (SG_SHARED_SHIFT + 1);
    if (offset >= most || bytes >= most - offset)
        return 0;
    return (file != 0 ? file : 1) << SG_SHARED_SHIFT | offset / SG_SHARED_UNIT;
}

/* Memory that only this mapping names, its copies by mremap, and forked children's. */
static uint64_t fresh_identity(void)
{
    static uint64_t last_number;
    uint64_t number = sg_fetch_add(&last_number, UINT64_C(1));
    return mix(mix(mix(3, sg_sys_getpid()), number), sg_clock_ns(CLOCK_REALTIME));
}

/* Where the rest of the file lies does not matter: no more can be missing here than in all of it. */
static uint64_t missing_of_file(const struct stat *info, uint64_t offset, uint64_t bytes)
{
    uint64_t end = offset + bytes, size = (uint64_t)info->st_size, there = (uint64_t)info->st_blocks * 512;
    if (there > sg_round_up(size, sg_page_bytes())) /* fallocate beyond the end: nothing tells where */
        there = 0;
    uint64_t whole = sg_round_up(end > size ? end : size, sg_page_bytes());
    uint64_t missing = whole > there ? whole - there : 0;
    return missing < bytes ? missing : bytes;
}

/* Pages out of the huge page pool, which MemAvailable does not contain. */
static void describe_huge(struct sg_mapping_kind *shape, size_t length, int flags, const struct stat *info)
{
    unsigned log2 = (unsigned)flags >> MAP_HUGE_SHIFT & 63;
    uint64_t usual = sg_page_bytes() * (sg_page_bytes() / 8); /* what one page of page table entries maps */
    if ((flags & MAP_ANONYMOUS) == 0)                         /* a file's are of its own size, whatever the flags say */
        usual = (uint64_t)info->st_blksize;
    else if (log2 != 0)
        usual = UINT64_C(1) << log2;
    shape->bytes = sg_round_up(length, usual);
    shape->flags |= SG_RANGE_SETTLED | SG_RANGE_SHARED;
    shape->is_judged = false;
}

struct sg_mapping_kind sg_mapping_kind_of(size_t length, int prot, int flags, int fd, uint64_t offset)
{
    struct sg_mapping_kind shape = {SG_RANGE_NONE, 0, sg_round_up(length, sg_page_bytes()), true, 0, 0};
    struct stat info = {0};
    bool is_huge = (flags & MAP_HUGETLB) != 0, is_shared = (flags & MAP_TYPE) != MAP_PRIVATE;
    if ((flags & MAP_ANONYMOUS) == 0 && !is_memory_file(fd, &is_huge, &info))
        return shape;
    bool is_file = (flags & MAP_ANONYMOUS) == 0 && S_ISREG(info.st_mode);
    if (is_file && !is_huge && !is_shared)
        return shape; /* as of an ordinary file: its pages are copied when they are written to, and most never are */
    if (is_shared)
        shape.flags |= SG_RANGE_SHARED;
    if (is_huge)
        describe_huge(&shape, length, flags, &info);
    shape.missing_bytes = is_file && !is_huge ? missing_of_file(&info, offset, shape.bytes) : shape.bytes;
    shape.kind = (prot & PROT_WRITE) != 0 ? SG_RANGE_COUNTED : SG_RANGE_RESERVED;
    if ((flags & MAP_NORESERVE) != 0) { /* promises nothing */
        shape.kind = SG_RANGE_SPARSE;
        shape.flags |= (prot & PROT_WRITE) != 0 ? SG_RANGE_COMMITTED : 0;
    } else if (is_shared) {
        shape.source = is_file ? source_of(mix(mix(1, info.st_dev), info.st_ino), offset, shape.bytes)
                               : source_of(fresh_identity(), 0, shape.bytes);
    }
    return shape;
}

/* The kernel does not say what of one segment is there; but no more can be missing of it than of all together. */
static uint64_t missing_of_segments(void)
{
    struct shm_info all = {0};
    if (sg_syscall(SYS_shmctl, 0, SHM_INFO, (long)&all, 0, 0, 0) < 0)
        return UINT64_MAX;
    uint64_t there = all.shm_rss + all.shm_swp;
    return all.shm_tot > there ? (all.shm_tot - there) * sg_page_bytes() : 0;
}

struct sg_mapping_kind sg_mapping_kind_of_segment(int id, int flags)
{
    struct sg_mapping_kind shape = {.kind = SG_RANGE_NONE};
    struct shmid_ds info = {0};
    if (sg_syscall(SYS_shmctl, id, IPC_STAT, (long)&info, 0, 0, 0) < 0)
        return shape;
    struct stat name_space = {0}; /* each has a segment 0 */
    (void)sg_sys_stat("/proc/thread-self/ns/ipc", &name_space);
    uint64_t missing = missing_of_segments();
    shape.kind = (flags & SHM_RDONLY) == 0 ? SG_RANGE_COUNTED : SG_RANGE_RESERVED;
    shape.flags = SG_RANGE_SHARED;
    shape.bytes = sg_round_up(info.shm_segsz, sg_page_bytes());
    shape.is_judged = true;
    shape.missing_bytes = missing < shape.bytes ? missing : shape.bytes;
    shape.source = source_of(mix(mix(2, name_space.st_ino), (uint64_t)id), 0, shape.bytes);
    return shape;
}
