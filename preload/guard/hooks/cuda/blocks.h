/*
 * blocks.h - accounting of one block of CUDA memory: its call site, its release, the memory that its free returns.
 *
 * `block` is a table value (account/tracker.h): size, domain, device and flags in one word. Any thread.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_BLOCKS_H
#define SG_PRELOAD_HOOKS_CUDA_BLOCKS_H

#include "account/block_table.h"
#include "sparkguard_abi.h"

#include <stdint.h>

/* Adds `bytes` to the call site of an allocation and returns the number of the call site (callsites.h). The call site
 * is the program's call of the CUDA runtime if there is one. Otherwise it is `caller`, the driver call's return
 * address. */
uint32_t sg_cuda_enter_site(enum sg_domain domain, const void *caller, uint64_t bytes);

/* Subtracts a freed block from the ledger and its call site. The caller has already removed `block` from `table`. */
void sg_cuda_released(const struct sg_block_table *table, uint64_t block);

/* Bytes that the machine regains, now or later, when `block` is freed. 0 for managed memory, blocks of pools, memory of
 * a discrete card, and `block` 0. */
uint64_t sg_cuda_returned_bytes(uint64_t block);

#endif
