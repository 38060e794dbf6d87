/*
 * context_end.h - releases the blocks of a CUDA context when the context ends.
 *
 * Slots. A context that the program created has a slot, and the table value of each block in it carries that slot.
 *   - Slot 0 is the primary context of the block's device. Green contexts count as slot 0, and so do contexts whose
 *     creation no hook saw.
 *   - The last slot is shared by all contexts beyond the number of slots. Their blocks stay counted until the last of
 *     these contexts ends.
 *   - Memory that outlives its context carries no slot: VMM handles, and blocks of pools, which belong to the device.
 *
 * Races. Entries stay in their tables until the driver has ended the context: sg_context_begin_end comes before the
 * driver call, sg_context_finish_end after it.
 *   - Another thread may free the same memory before, during or after the end, and either call may fail: see
 *     sg_context_put_back.
 *   - Another thread may allocate in the context at the same time: see sg_context_recheck.
 *   - Another context may get an address before its old entry is released. The new entry replaces the old one: see
 *     sg_context_may_be_over.
 *
 * Primary contexts. A new primary context has the same name as the one before it. The first hook that finds it inactive
 * (after a release or reset, or before a retain), or finds another one by its id, releases its blocks, before the new
 * context can hold any.
 * Limits. Another thread may allocate under the old context's name without a retain of its own. The block may lie in
 * the old or the new context. It may then stay counted until the next primary context ends, or not be counted at all.
 * If another thread retains during a reset, and the driver tells no ids (before CUDA 12.0, or for a green context), the
 * old blocks stay counted until the new context ends.
 *
 * Any thread; every function takes sg_cuda_lock, unless it says otherwise.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_CONTEXT_END_H
#define SG_PRELOAD_HOOKS_CUDA_CONTEXT_END_H

#include "account/block_table.h"
#include "hooks/cuda/contexts.h"
#include "sparkguard_abi.h"

/* One end of a context. The entries taken out are kept in this structure until they are released without the lock. */
enum { SG_CONTEXT_TABLES = 3 };

struct sg_context_end {
    uint32_t number; /* of the context (contexts.h); 0: the primary context of `device` */
    uint32_t device;
    bool is_known; /* false: no entry is known to lie in the context; the functions below then do nothing */
    struct sg_block_table taken[SG_CONTEXT_TABLES];
};

/* Describes the end of a context that the program created, or of a device's primary context. Takes no lock. */
struct sg_context_end sg_context_end_of(CUcontext context);
struct sg_context_end sg_context_end_of_primary(CUdevice device);

/* Asks the driver whether the primary context of a device is active. Takes no lock. */
enum sg_primary_state { SG_PRIMARY_UNKNOWN, SG_PRIMARY_INACTIVE, SG_PRIMARY_ACTIVE };
enum sg_primary_state sg_context_primary_state(CUdevice device);

/* Releases the blocks of a device's primary context if the driver says that it is inactive. Call it before a call that
 * may create the primary context, and after a call that may have ended it. */
void sg_context_check_primary(CUdevice device);

/* The primary context was retained as `context`, or created for a green context (`context` NULL). Releases the blocks
 * of its predecessor if another thread has ended that meanwhile. */
void sg_context_primary_retained(CUdevice device, CUcontext context);

/* Before the driver ends the context: notes that its end is under way. */
void sg_context_begin_end(struct sg_context_end *end);

/* After the driver has answered `result`: releases the blocks of the context if the driver has ended it. */
void sg_context_finish_end(struct sg_context_end *end, CUresult result);

/* ---- frees and allocations that run concurrently with an end ---- */

/* (atomic) The number of contexts that have ended. A call reads it first, and passes it on as `ends_before`. */
extern uint64_t sg_context_ends;

/* True if the context of `block` has ended since sg_context_ends was `ends_before`. */
bool sg_context_is_over(uint64_t block, uint64_t ends_before);

/* Releases the block that this thread has just entered if it has disappeared with its context since `ends_before`. */
void sg_context_recheck(struct sg_block_table *table, uint64_t key, uint64_t block, uint64_t ends_before);

/* True if the context of `block` has ended at some time, or its end is under way. */
bool sg_context_may_be_over(uint64_t block);

/* After a failed free: enters `block` again. False: the context
 * has ended since `ends_before`, so the block is gone and must be released. */
bool sg_context_put_back(struct sg_block_table *table, uint64_t key, uint64_t block, uint64_t ends_before);

#endif
