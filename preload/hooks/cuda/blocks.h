/*
 * blocks.h - a block of CUDA memory in the ledger: its call site, what it gives back, and that it is gone. Any thread.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_BLOCKS_H
#define SG_PRELOAD_HOOKS_CUDA_BLOCKS_H

#include "account/block_table.h"
#include "sparkguard_abi.h"

#include <stdint.h>

/* The call site of a block (callsites.h): that of the runtime's function that the program called, else `caller`. Enters
 * it. */
uint32_t sg_cuda_enter_site(enum sg_domain domain, const void *caller, uint64_t bytes);

/* What was taken out of `table` is gone. */
void sg_cuda_released(const struct sg_block_table *table, uint64_t block);

/* How much memory that will give back to the machine, sooner or later. */
uint64_t sg_cuda_returned_bytes(uint64_t block);

#endif
