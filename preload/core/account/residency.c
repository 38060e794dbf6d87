/*
 * residency.c - see residency.h.
 */
#include "account/residency.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/syscall.h"
#include "base/pages.h"

#include <fcntl.h>
#include <sys/ioctl.h>

/* Bits of an entry in /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst). */
#define ENTRY_PRESENT (UINT64_C(1) << 63)
#define ENTRY_OF_FILE (UINT64_C(1) << 61)

/* struct page_region and struct pm_scan_arg of <linux/fs.h>, Linux 6.7. */
struct page_region {
    uint64_t begin, end, categories;
};

struct page_scan {
    uint64_t bytes_of_this, flags, begin, end, walked_to, regions, region_capacity, max_pages;
    uint64_t inverted, all_of, any_of, wanted;
};

#define PAGE_SCAN _IOWR('f', 16, struct page_scan)

/* A selection of pages: as bits of an entry, and as categories of PAGE_SCAN. Entries do not tell the kernel's shared
 * zero page, which reading maps in, from other pages. */
struct kind {
    uint64_t any_of, none_of;
    uint64_t any_category, inverted_category;
};
#define CATEGORY_OF_FILE (UINT64_C(1) << 2)
#define CATEGORY_PRESENT (UINT64_C(1) << 3)
#define CATEGORY_ZERO (UINT64_C(1) << 5)

static const struct kind present = {ENTRY_PRESENT, 0, CATEGORY_PRESENT, 0};
static const struct kind own = {ENTRY_PRESENT, 0, CATEGORY_PRESENT, CATEGORY_ZERO};
static const struct kind copied = {ENTRY_PRESENT, ENTRY_OF_FILE, CATEGORY_PRESENT, CATEGORY_ZERO | CATEGORY_OF_FILE};

/* Counts pages by PAGEMAP_SCAN. Returns false if the kernel does not have it. */
static bool scan_pages(int fd, uintptr_t begin, uintptr_t end, const struct kind *kind, uint64_t *bytes)
{
    struct page_region region[64];
    struct page_scan scan = {.bytes_of_this = sizeof scan, .begin = begin, .end = end, .regions = (uintptr_t)region};
    scan.region_capacity = SG_ARRAY_LENGTH(region);
    scan.any_of = kind->any_category;
    scan.all_of = scan.inverted = kind->inverted_category;
    scan.wanted = CATEGORY_PRESENT; /* fewer reported categories give fewer, larger regions */
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

/* Counts pages by reading entries of /proc/self/pagemap. Returns false if they cannot be read. */
static bool read_entries(int fd, uintptr_t begin, uintptr_t end, const struct kind *kind, uint64_t *bytes)
{
    uint64_t entry[128] = {0}, page = sg_page_bytes(), count = 0;
    for (uint64_t at = begin / page, last = end / page; at < last;) {
        uint64_t wanted = last - at < SG_ARRAY_LENGTH(entry) ? last - at : SG_ARRAY_LENGTH(entry);
        long got = sg_sys_pread(fd, entry, wanted * sizeof entry[0], at * sizeof entry[0]);
        if (got < (long)sizeof entry[0])
            return false;
        for (uint64_t i = 0; i < (uint64_t)got / sizeof entry[0]; i++)
            count += (entry[i] & kind->any_of) != 0 && (entry[i] & kind->none_of) == 0;
        at += (uint64_t)got / sizeof entry[0];
    }
    *bytes = count * page;
    return true;
}

static long open_pagemap(void)
{
    return sg_sys_openat((int)SG_AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0);
}

/* Counts pages by /proc/self/pagemap. Returns false if that is not possible. */
static bool count_pages(uintptr_t begin, uintptr_t end, const struct kind *kind, bool by_scan_only, uint64_t *bytes)
{
    *bytes = 0;
    long fd = open_pagemap();
    if (fd < 0)
        return false;
    bool is_counted = scan_pages((int)fd, begin, end, kind, bytes) ||
                      (!by_scan_only && read_entries((int)fd, begin, end, kind, bytes));
    (void)sg_sys_close((int)fd);
    return is_counted;
}

bool sg_residency_is_cheap(void)
{
    enum { UNTRIED, NO, YES };
    static uint32_t answer; /* (atomic) */
    uint32_t known = sg_load_relaxed(&answer);
    long fd = known == UNTRIED ? open_pagemap() : -EBADF;
    if (fd >= 0) { /* otherwise there may be no free descriptor just now: the answer is not kept */
        uint64_t bytes;
        known = scan_pages((int)fd, 0, sg_page_bytes(), &own, &bytes) ? YES : NO;
        (void)sg_sys_close((int)fd);
        sg_store_relaxed(&answer, known);
    }
    return known == YES;
}

uint64_t sg_residency_copied_bytes(uintptr_t begin, uintptr_t end)
{
    uint64_t bytes;
    return count_pages(begin, end, &copied, true, &bytes) ? bytes : 0;
}

uint64_t sg_residency_cached_bytes(uintptr_t begin, uintptr_t end, struct sg_seccomp_answer *sandbox)
{
    unsigned char pages[1024] = {0};
    uint64_t page = sg_page_bytes(), count = 0;
    begin = sg_round_up(begin, page);
    end &= ~(page - 1);
    if (begin < end && sg_seccomp_ask_once(sandbox))
        return count_pages(begin, end, &present, false, &count) ? count : 0;
    while (begin < end) {
        uint64_t bytes = end - begin < sizeof pages * page ? end - begin : sizeof pages * page;
        if (sg_sys_mincore(begin, bytes, pages) == 0)
            for (uint64_t i = 0; i < bytes / page; i++)
                count += pages[i] & 1;
        begin += bytes;
    }
    return count * page;
}

uint64_t sg_residency_bytes(uintptr_t begin, uintptr_t end, struct sg_seccomp_answer *sandbox)
{
    uint64_t page = sg_page_bytes(), bytes;
    begin = sg_round_up(begin, page);
    end &= ~(page - 1);
    if (begin >= end)
        return 0;
    return count_pages(begin, end, &own, true, &bytes) ? bytes : sg_residency_cached_bytes(begin, end, sandbox);
}
