/*
 * pages.h - the size of the kernel's pages. Any thread, also in signal handlers.
 */
#ifndef SG_PRELOAD_BASE_PAGES_H
#define SG_PRELOAD_BASE_PAGES_H

#include "base/compiler.h"

#include <stdint.h>
#include <sys/auxv.h>

/* The kernel's page size: 4 KiB, or on aarch64 also 16 or 64 KiB. */
static inline uint64_t sg_page_bytes(void)
{
    static uint64_t page;
    if (SG_UNLIKELY(page == 0))
        page = getauxval(AT_PAGESZ);
    return page;
}

/* Rounds `bytes` up to a multiple of `unit`, a power of two. */
static inline uint64_t sg_round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) & ~(unit - 1);
}

#endif
