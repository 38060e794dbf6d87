/*
 * contexts.h - the contexts that the program made: each has a number, and what is allocated in it a slot
 * (context_end.h).
 *
 * Numbers go from 1 on; those from SG_CONTEXT_SHARED on share that slot. Any thread; what says so under sg_vmm_lock.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_CONTEXTS_H
#define SG_PRELOAD_HOOKS_CUDA_CONTEXTS_H

#include "hooks/cuda/driver.h"

enum { SG_CONTEXT_PRIMARY = 0, SG_CONTEXT_SHARED = 31 };

/* The slot of the current context. Costs one load where the program has no context of its own, else one driver call. */
uint32_t sg_context_current(void);

/* cuCtxCreate gave `context`. */
void sg_context_enter(CUcontext context);

/* What cuCtxAttach gave, and cuCtxDetach took; the last one detached is destroyed: true. */
void sg_context_attached(CUcontext context);
bool sg_context_is_last(CUcontext context);
void sg_context_detached(CUcontext context);

/* The number of a context that is not ending, or 0; and the slot of a number. */
uint32_t sg_context_number(CUcontext context);
uint32_t sg_context_slot(uint32_t number);

/* Under the lock: its end is under way in the driver, or has failed; it has ended; whether no other has its slot. */
void sg_context_set_ending(uint32_t number, bool is_ending);
void sg_context_forget(uint32_t number);
bool sg_context_is_alone(uint32_t number);

#endif
