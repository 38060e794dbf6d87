/*
 * dtype.h - how many bits a number takes in each format of weights and of KV caches, scales included.
 */
#ifndef SG_TOOLS_SWEEP_FITS_DTYPE_H
#define SG_TOOLS_SWEEP_FITS_DTYPE_H

#include <stddef.h>

struct fits_dtype {
    const char *name;       /* "nvfp4", as options and JSON have it */
    const char *title;      /* "NVFP4" */
    double bits;            /* of one number, without scales */
    double scale_bits;      /* share of one number in the scales of its block; 0: none, or too few to count */
    const char *scale_text; /* what the scales are, NULL: none */
};

/* Returns the dtype that a name of any case means ("bf16", "bfloat16", "torch.bfloat16"), or NULL. */
const struct fits_dtype *fits_dtype_named(const char *name);
/* Returns the bits of one number in a KV cache. An FP8 cache has a scale for each layer at most. */
double fits_dtype_cache_bits(const struct fits_dtype *dtype);

#endif
