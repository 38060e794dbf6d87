/*
 * bytes.h - sums and differences of counts of bytes that end at their bounds instead of wrapping.
 */
#ifndef SG_TOOLS_COMMON_BYTES_H
#define SG_TOOLS_COMMON_BYTES_H

#include <stdint.h>

static inline uint64_t bytes_add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static inline uint64_t bytes_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static inline uint64_t bytes_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t bytes_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

#endif
