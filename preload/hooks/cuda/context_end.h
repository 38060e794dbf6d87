/*
 * context_end.h - which context a block was allocated in, so that all goes back when a context ends.
 *
 * A context that the program made has a slot, and the slot is in the table values of what is allocated in it. Slot 0 is
 * the primary context of the block's device: also what green contexts and contexts we did not see made count as. The
 * last slot is shared by all for which there was none left: what is in those stays counted until the last of them ends.
 * Memory that outlives its context carries no slot: VMM handles, and blocks of pools, which belong to the device.
 *
 * The way of an end is that of a free: sg_context_take_out before the driver is called, sg_context_taken_out after it.
 * A free of the same memory by another thread may begin and answer before, within or after that, and either may fail:
 * sg_context_take_ending and sg_context_put_back. So may an allocation in it: sg_context_recheck.
 *
 * A primary context ends and is made anew under one name. Whoever finds it inactive, behind a release or a reset or
 * before a retain, takes out what was in it, before anything can be in the new one. Which of two one after the other a
 * call of another thread was granted in is not known where it used the old one's name without a retain of its own: then
 * what it got may be counted until the next one ends, or not at all.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_CONTEXT_END_H
#define SG_PRELOAD_HOOKS_CUDA_CONTEXT_END_H

#include "account/block_table.h"
#include "hooks/cuda/contexts.h"
#include "sparkguard_abi.h"

/* What will end: one context, or the primary one of a device. What was taken out is kept here and not in a
 * table for all: as soon as the driver has freed an address, it can lie in another context that ends. */
enum { SG_CONTEXT_TABLES = 3 };

struct sg_context_end {
    struct sg_context_end *next; /* of those under way */
    uint32_t number;             /* 0: the primary one */
    uint32_t device;
    bool is_known; /* false: nothing is known to be in it */
    struct sg_block_table taken[SG_CONTEXT_TABLES];
};

struct sg_context_end sg_context_end_of(CUcontext context);
struct sg_context_end sg_context_end_of_primary(CUdevice device);

/* Whether the primary context of a device is there, as far as the driver says. */
enum sg_primary_state { SG_PRIMARY_UNKNOWN, SG_PRIMARY_INACTIVE, SG_PRIMARY_ACTIVE };
enum sg_primary_state sg_context_primary_state(CUdevice device);

/* Before a primary context may be made, and behind what may have ended it: if it is not there, what was in it goes. */
void sg_context_check_primary(CUdevice device);

/* It was retained, or made for a green context: then `context` is NULL. */
void sg_context_primary_retained(CUdevice device, CUcontext context);

/* Takes the entries of what was allocated in it out of the tables. */
void sg_context_take_out(struct sg_context_end *end);

/* The driver said `result`: gives all of it back, or enters it again. */
void sg_context_taken_out(struct sg_context_end *end, CUresult result);

/* ---- frees and allocations beside it ---- */

/* How many contexts have ended. (atomic) */
extern uint64_t sg_context_ends;

/* Whether the context of a block has ended, of a call that began when `ends_before` had ended. */
bool sg_context_is_over(uint64_t block, uint64_t ends_before);

/* Gives back what such a call has just entered, if it has gone with its context since. */
void sg_context_recheck(struct sg_block_table *table, uint64_t key, uint64_t block, uint64_t ends_before);

/* The entry that an end under way has taken out, or 0. */
uint64_t sg_context_take_ending(struct sg_block_table *table, uint64_t key);

/* Puts back what was taken out when `ends_before` had ended. False: its context has ended since. */
bool sg_context_put_back(struct sg_block_table *table, uint64_t key, uint64_t block, uint64_t ends_before);

/* In a forked child: no end is under way there. What those had taken out stays counted. */
void sg_context_refork(void);

#endif
