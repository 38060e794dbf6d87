/*
 * bytes.h - arithmetic on byte counts that saturates instead of wrapping around.
 */
#ifndef SG_TOOLS_COMMON_BYTES_H
#define SG_TOOLS_COMMON_BYTES_H

#include <stdint.h>

/* Returns a + b, or INT64_MAX where the sum overflows 64 bits. */
static inline uint64_t bytes_add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* Returns a - b, or 0 where b is larger. */
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
