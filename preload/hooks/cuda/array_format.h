/*
 * array_format.h - how much an element of an array takes, by its format.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_ARRAY_FORMAT_H
#define SG_PRELOAD_HOOKS_CUDA_ARRAY_FORMAT_H

/* Includes cuda.h the way all hooks do. */
#include "hooks/cuda/driver.h"

/* Formats of 8, 16 or 32 bits a channel, which come in 1, 2 or 4 channels; what the others take is the driver's to
 * know. */
bool sg_array_is_plain(CUarray_format format);

/* Bits of one element, all channels together; those of video formats on the average. */
uint64_t sg_array_element_bits(CUarray_format format, unsigned channels);

/* Of a compressed format: its blocks are 4 by 4 elements. */
bool sg_array_is_compressed(CUarray_format format);

#endif
