/*
 * resident.c - see resident.h.
 */
#include "resident.h"

#include "compiler.h"
#include "map_shape.h"
#include "syscall.h"

#include <fcntl.h>
#include <sys/ioctl.h>

/* Of an entry in /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst). */
#define ENTRY_PRESENT (UINT64_C(1) << 63)
#define ENTRY_SWAPPED (UINT64_C(1) << 62)
#define ENTRY_OF_FILE (UINT64_C(1) << 61)

/* As <linux/fs.h> of Linux 6.7 has them. */
struct page_region {
    uint64_t begin, end, categories;
};

struct page_scan {
    uint64_t bytes_of_this, flags, begin, end, walked_to, regions, region_room, most_pages;
    uint64_t inverted, all_of, any_of, wanted;
};

#define PAGE_SCAN _IOWR('f', 16, struct page_scan)
#define PAGE_IS_PRESENT (UINT64_C(1) << 3)

/* False where the kernel does not know the call. */
static bool scan_present(int fd, uintptr_t begin, uintptr_t end, uint64_t *bytes)
{
    struct page_region region[64];
    struct page_scan scan = {.bytes_of_this = sizeof scan, .begin = begin, .end = end, .regions = (uintptr_t)region};
    scan.region_room = SG_ARRAY_LENGTH(region);
    scan.all_of = scan.wanted = PAGE_IS_PRESENT;
    *bytes = 0;
    while (scan.begin < end) {
        long count = sg_syscall(SYS_ioctl, fd, (long)PAGE_SCAN, (long)&scan, 0, 0, 0);
        if (count < 0 || scan.walked_to <= scan.begin)
            return false;
        for (long i = 0; i < count; i++)
            *bytes += region[i].end - region[i].begin;
        scan.begin = scan.walked_to;
    }
    return true;
}

static uint64_t count_entries(int fd, uintptr_t begin, uintptr_t end, uint64_t any_of, uint64_t none_of)
{
    uint64_t entry[512] = {0}, page = sg_page_bytes(), count = 0;
    for (uint64_t at = begin / page, last = end / page; at < last;) {
        uint64_t wanted = last - at < SG_ARRAY_LENGTH(entry) ? last - at : SG_ARRAY_LENGTH(entry);
        long got = sg_sys_pread(fd, entry, wanted * sizeof entry[0], at * sizeof entry[0]);
        if (got < (long)sizeof entry[0])
            break;
        for (uint64_t i = 0; i < (uint64_t)got / sizeof entry[0]; i++)
            count += (entry[i] & any_of) != 0 && (entry[i] & none_of) == 0;
        at += (uint64_t)got / sizeof entry[0];
    }
    return count * page;
}

static long open_pagemap(void)
{
    return sg_sys_openat((int)SG_AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0);
}

uint64_t sg_resident_copied_bytes(uintptr_t begin, uintptr_t end)
{
    long fd = open_pagemap();
    if (fd < 0)
        return 0;
    uint64_t bytes = count_entries((int)fd, begin, end, ENTRY_PRESENT | ENTRY_SWAPPED, ENTRY_OF_FILE);
    (void)sg_sys_close((int)fd);
    return bytes;
}

static uint64_t mapped_bytes(uintptr_t begin, uintptr_t end)
{
    uint64_t bytes = 0;
    long fd = open_pagemap();
    if (fd < 0)
        return 0;
    if (!scan_present((int)fd, begin, end, &bytes))
        bytes = count_entries((int)fd, begin, end, ENTRY_PRESENT, 0);
    (void)sg_sys_close((int)fd);
    return bytes;
}

uint64_t sg_resident_bytes(uintptr_t begin, uintptr_t end, bool is_sandboxed)
{
    unsigned char pages[1024] = {0};
    uint64_t page = sg_page_bytes(), count = 0;
    begin = (begin + page - 1) & ~(page - 1);
    end &= ~(page - 1);
    if (begin < end && is_sandboxed)
        return mapped_bytes(begin, end);
    while (begin < end) {
        uint64_t bytes = end - begin < sizeof pages * page ? end - begin : sizeof pages * page;
        if (sg_sys_mincore(begin, bytes, pages) == 0)
            for (uint64_t i = 0; i < bytes / page; i++)
                count += pages[i] & 1;
        begin += bytes;
    }
    return count * page;
}
