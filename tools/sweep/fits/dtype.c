/*
 * dtype.c - see dtype.h. The sizes of blocks and scales are those of the formats' definitions: NVFP4 has an FP8 scale for
 * 16 weights, MXFP4 an 8-bit exponent for 32; NF4 an 8-bit scale for 64 and an FP32 one for 256 of these scales. INT8
 * and INT4 have no one layout: groups of 128 are the widespread choice (GPTQ, AWQ).
 */
#include "sweep/fits/dtype.h"

#include <string.h>
#include <strings.h>

static const struct fits_dtype dtypes[] = {
    {"fp32", "FP32", 32, 0, NULL},
    {"fp16", "FP16", 16, 0, NULL},
    {"bf16", "BF16", 16, 0, NULL},
    {"fp8", "FP8", 8, 32.0 / (128 * 128), "an FP32 scale for each block of 128 x 128"},
    {"int8", "INT8", 8, 16.0 / 128, "a 16-bit scale for each 128"},
    {"nvfp4", "NVFP4", 4, 8.0 / 16, "an FP8 scale for each 16"},
    {"mxfp4", "MXFP4", 4, 8.0 / 32, "an 8-bit exponent for each 32"},
    {"nf4", "NF4", 4, 8.0 / 64 + 32.0 / (64 * 256), "an 8-bit scale for each 64, an FP32 one for 256 of these"},
    {"int4", "INT4", 4, 20.0 / 128, "a 16-bit scale and a 4-bit zero for each 128"},
};

/* Other names of the same: Python's, and those of configuration files. */
static const struct {
    const char *name, *means;
} aliases[] = {
    {"float32", "fp32"},  {"f32", "fp32"},
    {"float", "fp32"},    {"float16", "fp16"},
    {"f16", "fp16"},      {"half", "fp16"},
    {"bfloat16", "bf16"}, {"float8_e4m3fn", "fp8"},
    {"fp8_e4m3", "fp8"},  {"float8_e5m2", "fp8"},
    {"fp8_e5m2", "fp8"},  {"fp4", "nvfp4"},
    {"q8", "int8"},       {"float4_e2m1fn_x2", "nvfp4"},
};

const struct fits_dtype *fits_dtype_named(const char *name)
{
    if (strncasecmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (strcasecmp(name, aliases[i].name) == 0)
            name = aliases[i].means;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcasecmp(name, dtypes[i].name) == 0)
            return &dtypes[i];
    return NULL;
}

double fits_dtype_cache_bits(const struct fits_dtype *dtype)
{
    return dtype->bits == 8 ? dtype->bits : dtype->bits + dtype->scale_bits;
}
