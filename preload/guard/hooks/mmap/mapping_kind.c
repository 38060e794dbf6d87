/*
 * mapping_kind.c - see mapping_kind.h.
 */
#include "hooks/mmap/mapping_kind.h"

#include "base/atomics.h"
#include "base/options.h"
#include "base/text.h"
#include "base/range_map.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/pages.h"

#include <linux/fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/sysmacros.h>

#ifndef SECRETMEM_MAGIC
#define SECRETMEM_MAGIC 0x5345434d /* Linux 5.14 */
#endif
#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

/* Whether a file is on hugetlbfs. A block size above the page size means hugetlbfs, or a tmpfs mounted with huge=.
 * Under a seccomp filter fstatfs is not called: then no file is. */
static bool is_huge_file(int fd, const struct stat *info)
{
    struct statfs file_system = {0};
    return (uint64_t)info->st_blksize > sg_page_bytes() && sg_sys_fstatfs(fd, &file_system) == 0 &&
           (uint64_t)file_system.f_type == HUGETLBFS_MAGIC;
}

/* Whether a file is of memfd_secret: its pages are memory that nothing takes back. The file system is asked of a file
 * that looks like one, because the answer of others may come from a server. */
static bool is_secret_file(int fd, const struct stat *info)
{
    struct statfs file_system = {0};
    bool may_be = info->st_mode == (S_IFREG | 0600) && info->st_blocks == 0 && major(info->st_dev) == 0;
    return may_be && sg_sys_fstatfs(fd, &file_system) == 0 && (uint64_t)file_system.f_type == SECRETMEM_MAGIC;
}

/* Whether the pages of a file are memory: tmpfs, memfd, hugetlbfs, /dev/zero, memfd_secret. Only the first three
 * have seals, and sandboxes allow F_GET_SEALS. */
static bool is_memory_file(int fd, bool *is_huge, struct stat *info)
{
    bool has_seals = sg_sys_fcntl(fd, F_GET_SEALS, NULL) >= 0;
    if (sg_sys_fstat(fd, info) != 0)
        return false;
    if (!has_seals)
        return (S_ISCHR(info->st_mode) && info->st_rdev == makedev(1, 5)) || is_secret_file(fd, info);
    *is_huge = is_huge_file(fd, info);
    return *is_huge || S_ISREG(info->st_mode);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

/* The `source` of a range (range_map.h). Two files with the same 31-bit hash count as one: one pair in 2^31. 0: the
 * offset is too large to be shown. */
static uint64_t source_of(uint64_t identity, uint64_t offset, uint64_t bytes)
{
    const uint64_t limit = (UINT64_C(1) << SG_SHARED_SHIFT) * SG_SHARED_UNIT;
    uint64_t file = identity >> (SG_SHARED_SHIFT + 1);
    if (offset >= limit || bytes >= limit - offset)
        return 0;
    return (file != 0 ? file : 1) << SG_SHARED_SHIFT | offset / SG_SHARED_UNIT;
}

/* A new identity for memory that only this mapping names, its copies by mremap, and the mappings of forked children. */
static uint64_t fresh_identity(void)
{
    static uint64_t last_number;
    uint64_t number = sg_fetch_add(&last_number, UINT64_C(1));
    return mix(mix(mix(3, sg_sys_getpid()), number), sg_clock_ns(CLOCK_REALTIME));
}

/* struct cachestat_range and struct cachestat of <linux/mman.h>, Linux 6.5. */
struct file_range {
    uint64_t begin, bytes;
};

struct file_pages {
    uint64_t cached, dirty, under_writeback, evicted, recently_evicted;
};

bool sg_mapping_file_bytes(int fd, uint64_t offset, uint64_t bytes, uint64_t *allocated)
{
    struct file_range range = {offset, bytes};
    struct file_pages pages = {0, 0, 0, 0, 0};
    if (bytes == 0 || sg_syscall(SYS_cachestat, fd, (long)&range, (long)&pages, 0, 0, 0) != 0)
        return false;
    uint64_t found = (pages.cached + pages.evicted) * sg_page_bytes(); /* evicted: swapped out */
    *allocated = found < bytes ? found : bytes;
    return true;
}

/* An upper bound of the missing bytes of a part of a file: the missing bytes of the whole file, by its blocks. Where
 * only a part of the file is missing, the kernel is asked which. */
static uint64_t missing_of_file(int fd, const struct stat *info, uint64_t offset, uint64_t bytes)
{
    uint64_t end = offset + bytes, size = (uint64_t)info->st_size, allocated = (uint64_t)info->st_blocks * 512, here;
    if (allocated >
        sg_round_up(size, sg_page_bytes())) /* some blocks are beyond the end (fallocate), and it is unknown how many */
        allocated = 0;
    uint64_t whole = sg_round_up(end > size ? end : size, sg_page_bytes());
    uint64_t missing = whole > allocated ? whole - allocated : 0;
    missing = missing < bytes ? missing : bytes;
    if (missing != 0 && info->st_blocks != 0 && sg_mapping_file_bytes(fd, offset, bytes, &here))
        missing = missing < bytes - here ? missing : bytes - here;
    return missing;
}

/* The size of huge pages for which no size is given: default_hugepagesz of the kernel's command line. If it cannot be
 * read, the bytes that one page of page table entries maps. */
static uint64_t default_huge_bytes(void)
{
    char path[SG_PATH_CAPACITY + 64], meminfo[2048];
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, sg_options.system_root);
    sg_text_add(&text, "/proc/meminfo");
    uint64_t kib =
        sg_text_read_file(path, meminfo, sizeof meminfo) > 0 ? sg_text_read_field(meminfo, "Hugepagesize:", 0) : 0;
    bool is_known = kib != 0 && kib < UINT64_C(1) << 30 && (kib & (kib - 1)) == 0;
    return is_known ? kib * 1024 : sg_page_bytes() * (sg_page_bytes() / 8);
}

/* A number from the files of one size of huge pages. False: it cannot be read. */
static bool read_pool(uint64_t page_bytes, const char *name, uint64_t *number)
{
    char path[SG_PATH_CAPACITY + 96], content[32];
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, sg_options.system_root);
    sg_text_add(&text, "/sys/kernel/mm/hugepages/hugepages-");
    sg_text_add_number(&text, page_bytes / 1024);
    sg_text_add(&text, "kB/");
    sg_text_add(&text, name);
    const char *cursor = content;
    if (sg_text_read_file(path, content, sizeof content) <= 0)
        return false;
    *number = sg_text_read_number(&cursor);
    return true;
}

uint64_t sg_mapping_surplus_bytes(uint64_t bytes, uint64_t page_bytes, bool *is_possible)
{
    uint64_t free = 0, reserved = 0, most = 0, surplus = 0;
    uint64_t wanted = page_bytes != 0 ? bytes / page_bytes : 0;
    bool is_known =
        read_pool(page_bytes, "free_hugepages", &free) && read_pool(page_bytes, "resv_hugepages", &reserved);
    uint64_t left = free > reserved ? free - reserved : 0, missing = wanted > left ? wanted - left : 0;
    *is_possible = true;
    if (is_known && read_pool(page_bytes, "nr_overcommit_hugepages", &most) &&
        read_pool(page_bytes, "surplus_hugepages", &surplus))
        *is_possible = missing <= (most > surplus ? most - surplus : 0);
    return missing * page_bytes;
}

uint64_t sg_mapping_huge_page_bytes(int flags)
{
    unsigned log2 = (unsigned)flags >> MAP_HUGE_SHIFT & 63;
    return log2 != 0 ? UINT64_C(1) << log2 : default_huge_bytes();
}

/* Describes a mapping of huge pages. They come from the huge page pool, which is not part of MemAvailable. What the
 * pool lacks (surplus pages) the kernel takes from ordinary memory, within the call. If it will not, it fails by
 * itself. */
static void describe_huge(struct sg_mapping_kind *mapping, size_t length, int flags, const struct stat *info)
{
    /* A file has its own page size, whatever the flags say. */
    bool is_file = (flags & MAP_ANONYMOUS) == 0, is_possible;
    uint64_t page_bytes = is_file ? (uint64_t)info->st_blksize : sg_mapping_huge_page_bytes(flags);
    mapping->bytes = sg_round_up(length, page_bytes);
    mapping->flags |= SG_RANGE_SETTLED | SG_RANGE_SHARED;
    mapping->is_huge = true;
    mapping->missing_bytes = sg_mapping_surplus_bytes(mapping->bytes, page_bytes, &is_possible);
    mapping->is_judged = is_possible && (flags & MAP_NORESERVE) == 0; /* without a reservation no call takes pages */
}

/* Bytes of a mapping of an ordinary file up to the file's end: no page beyond can come. */
static uint64_t bytes_in_file(const struct stat *info, uint64_t offset, uint64_t bytes)
{
    uint64_t size = sg_round_up((uint64_t)info->st_size, sg_page_bytes());
    uint64_t left = S_ISREG(info->st_mode) && size > offset ? size - offset : 0;
    return left < bytes ? left : bytes;
}

static struct sg_mapping_kind of_shared_file(struct sg_mapping_kind *mapping, const struct stat *info, uint64_t offset)
{
    mapping->file_bytes = bytes_in_file(info, offset, mapping->bytes);
    return *mapping;
}

/* Pages are copied when they are written to. Most never are, so they promise nothing. */
static struct sg_mapping_kind of_private_file(struct sg_mapping_kind *mapping, int prot, const struct stat *info,
                                              uint64_t offset)
{
    if ((prot & PROT_WRITE) == 0 || !S_ISREG(info->st_mode))
        return of_shared_file(mapping, info, offset);
    mapping->kind = SG_RANGE_SPARSE;
    mapping->flags = SG_RANGE_COMMITTED | SG_RANGE_COPIED;
    mapping->missing_bytes = bytes_in_file(info, offset, mapping->bytes);
    return *mapping;
}

struct sg_mapping_kind sg_mapping_kind_of(size_t length, int prot, int flags, int fd, uint64_t offset)
{
    struct sg_mapping_kind mapping = {
        .kind = SG_RANGE_NONE, .bytes = sg_round_up(length, sg_page_bytes()), .is_judged = true};
    struct stat info = {0};
    bool is_huge = (flags & MAP_HUGETLB) != 0, is_shared = (flags & MAP_TYPE) != MAP_PRIVATE;
    if ((flags & MAP_ANONYMOUS) == 0 && !is_memory_file(fd, &is_huge, &info)) {
        return (flags & MAP_TYPE) == MAP_PRIVATE ? of_private_file(&mapping, prot, &info, offset)
                                                 : of_shared_file(&mapping, &info, offset);
    }
    bool is_file = (flags & MAP_ANONYMOUS) == 0 && S_ISREG(info.st_mode);
    if (is_file && !is_huge && !is_shared) { /* as an ordinary file's, but none of its pages can be reclaimed */
        (void)of_private_file(&mapping, prot, &info, offset);
        if (mapping.file_bytes != 0)
            mapping.file_bytes = sg_smaller(mapping.file_bytes, missing_of_file(fd, &info, offset, mapping.bytes));
        return mapping;
    }
    if (is_shared)
        mapping.flags |= SG_RANGE_SHARED;
    if (is_huge)
        describe_huge(&mapping, length, flags, &info);
    else
        mapping.missing_bytes = is_file ? missing_of_file(fd, &info, offset, mapping.bytes) : mapping.bytes;
    if (is_file && !is_huge) {
        mapping.memory_file_bytes = (uint64_t)info.st_size;
        mapping.allocated_bytes = (uint64_t)info.st_blocks * 512;
    }
    mapping.kind = (prot & PROT_WRITE) != 0 ? SG_RANGE_COUNTED : SG_RANGE_RESERVED;
    if ((flags & MAP_NORESERVE) != 0) { /* sparse memory promises nothing */
        mapping.kind = SG_RANGE_SPARSE;
        mapping.flags |= (prot & PROT_WRITE) != 0 ? SG_RANGE_COMMITTED : 0;
    } else if (is_shared) {
        mapping.source = is_file ? source_of(mix(mix(1, info.st_dev), info.st_ino), offset, mapping.bytes)
                                 : source_of(fresh_identity(), 0, mapping.bytes);
        if (mapping.kind == SG_RANGE_COUNTED && mapping.missing_bytes == 0) /* mincore misses what fallocate took */
            mapping.flags |= SG_RANGE_SETTLED;
        mapping.is_partly_allocated = is_file && !is_huge && mapping.kind == SG_RANGE_COUNTED &&
                                      mapping.missing_bytes != 0 && mapping.missing_bytes < mapping.bytes;
    }
    return mapping;
}

/* An upper bound of the missing bytes of one System V segment: those of all segments. The kernel reports only the
 * allocated bytes of all segments together. */
static uint64_t missing_of_segments(void)
{
    struct shm_info all = {0};
    if (sg_syscall(SYS_shmctl, 0, SHM_INFO, (long)&all, 0, 0, 0) < 0)
        return UINT64_MAX;
    uint64_t allocated = all.shm_rss + all.shm_swp;
    return all.shm_tot > allocated ? (all.shm_tot - allocated) * sg_page_bytes() : 0;
}

struct sg_mapping_kind sg_mapping_kind_of_segment(int id, int flags)
{
    struct sg_mapping_kind mapping = {.kind = SG_RANGE_NONE};
    struct shmid_ds info = {0};
    if (sg_syscall(SYS_shmctl, id, IPC_STAT, (long)&info, 0, 0, 0) < 0)
        return mapping;
    struct stat name_space = {0}; /* segment numbers are unique within an IPC namespace only */
    (void)sg_sys_stat("/proc/thread-self/ns/ipc", &name_space);
    uint64_t missing = missing_of_segments();
    mapping.kind = (flags & SHM_RDONLY) == 0 ? SG_RANGE_COUNTED : SG_RANGE_RESERVED;
    mapping.flags = SG_RANGE_SHARED;
    mapping.bytes = sg_round_up(info.shm_segsz, sg_page_bytes());
    mapping.is_judged = true;
    mapping.missing_bytes = missing < mapping.bytes ? missing : mapping.bytes;
    mapping.source = source_of(mix(mix(2, name_space.st_ino), (uint64_t)id), 0, mapping.bytes);
    return mapping;
}
