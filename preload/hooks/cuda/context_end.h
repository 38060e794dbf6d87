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
 * Races. An end has two halves, like a free: sg_context_take_out before the driver call, sg_context_taken_out after it.
 *   - Another thread may free the same memory before, during or after the end, and either call may fail: see
 *     sg_context_take_ending and sg_context_put_back.
 *   - Another thread may allocate in the context at the same time: see sg_context_recheck.
 *
 * Primary contexts. A new primary context has the same name as the one before it. The first hook that finds it inactive
 * (after a release or reset, or before a retain) releases its blocks, before the new context can hold any.
 * Limit: another thread may allocate under the old context's name without a retain of its own. The block may lie in the
 * old or the new context. It may then stay counted until the next primary context ends, or not be counted at all.
 *
 * Any thread; every function takes sg_cuda_lock, unless it says otherwise.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_CONTEXT_END_H
#define SG_PRELOAD_HOOKS_CUDA_CONTEXT_END_H

#include "account/block_table.h"
#include "hooks/cuda/contexts.h"
#include "sparkguard_abi.h"

/* One end of a context that is under way. The entries taken out are kept in this structure and not in a common table:
 * once the driver has freed an address, a block at the same address may be taken out by the end of another context. */
enum { SG_CONTEXT_TABLES = 3 };

struct sg_context_end {
    struct sg_context_end *next; /* in the list of ends under way */
    uint32_t number;             /* of the context (contexts.h); 0: the primary context of `device` */
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

/* Before the driver ends the context: moves the entries of its blocks from the tables to `end`, and puts `end` into the
 * list of ends under way. `end` must stay in place until sg_context_taken_out. */
void sg_context_take_out(struct sg_context_end *end);

/* After the driver has answered `result`: releases the entries in `end`, or enters them again if the end failed. */
void sg_context_taken_out(struct sg_context_end *end, CUresult result);

/* ---- frees and allocations that run concurrently with an end ---- */

/* (atomic) The number of contexts that have ended. A call reads it first, and passes it on as `ends_before`. */
extern uint64_t sg_context_ends;

/* True if the context of `block` has ended since sg_context_ends was `ends_before`. */
bool sg_context_is_over(uint64_t block, uint64_t ends_before);

/* Releases the block that this thread has just entered if it has disappeared with its context since `ends_before`. */
void sg_context_recheck(struct sg_block_table *table, uint64_t key, uint64_t block, uint64_t ends_before);

/* Removes and returns the entry of `key` that an end under way has taken out of `table`; 0 if there is none. */
uint64_t sg_context_take_ending(struct sg_block_table *table, uint64_t key);

/* After a failed free: enters `block` again, in `table` or among the entries of an end under way. False: the context
 * has ended since `ends_before`, so the block is gone and must be released. */
bool sg_context_put_back(struct sg_block_table *table, uint64_t key, uint64_t block, uint64_t ends_before);

/* In a forked child: no end is under way. Entries that the parent's ends had taken out stay counted. Takes no lock. */
void sg_context_atfork_child(void);

#endif
