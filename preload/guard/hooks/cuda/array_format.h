/*
 * array_format.h - the size of one element of a CUDA array, by its format. Pure functions: any thread.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_ARRAY_FORMAT_H
#define SG_PRELOAD_HOOKS_CUDA_ARRAY_FORMAT_H

#include "hooks/cuda/driver.h"

/* True for formats of 8, 16 or 32 bits per channel, which exist with 1, 2 or 4 channels only. The driver alone knows
 * which channel counts are valid for other formats. */
bool sg_array_is_plain(CUarray_format format);

/* Bits of one element, all channels together. For video formats: the average over all elements. */
uint64_t sg_array_element_bits(CUarray_format format, unsigned channels);

/* True for block-compressed formats, which store blocks of 4 by 4 elements. */
bool sg_array_is_compressed(CUarray_format format);

#endif
