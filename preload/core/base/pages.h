/*
 * pages.h - the size of the kernel's pages, and arithmetic of bytes. Any thread, also in signal handlers.
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

/* By how much `more` is above `less`; 0 if it is not. */
static inline uint64_t sg_above(uint64_t more, uint64_t less)
{
    return more > less ? more - less : 0;
}

static inline uint64_t sg_smaller(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static inline uint64_t sg_larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

#endif
