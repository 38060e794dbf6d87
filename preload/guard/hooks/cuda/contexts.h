/*
 * contexts.h - the contexts that the program has created.
 *
 * Each context has a number, from 1 on. Each block in it carries the context's slot (context_end.h). A number below
 * SG_CONTEXT_SHARED is its own slot; all higher numbers share the slot SG_CONTEXT_SHARED. Any thread; functions that
 * need sg_cuda_lock say so, the others take it themselves where they write.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_CONTEXTS_H
#define SG_PRELOAD_HOOKS_CUDA_CONTEXTS_H

#include "hooks/cuda/driver.h"

enum { SG_CONTEXT_PRIMARY = 0, SG_CONTEXT_SHARED = 31 };

/* The slot of the current context. Costs one load if the program has created no context, otherwise one driver call. */
uint32_t sg_context_current(void);

/* True if the driver has no allocation that begins at this address any more: it has ended with its context. The driver
 * is queried; call it without sg_cuda_lock. It answers nothing about arrays. */
bool sg_context_has_taken(CUdeviceptr address);

/* Records a context that cuCtxCreate has returned. */
void sg_context_enter(CUcontext context);

/* The use count of a context: one more after cuCtxAttach, one less before cuCtxDetach (again one more if that fails).
 * sg_context_detach returns true for the last use: then cuCtxDetach destroys the context. */
void sg_context_attach(CUcontext context);
bool sg_context_detach(CUcontext context);

/* The number of a context; 0 if it is unknown or its end is under way. */
uint32_t sg_context_number(CUcontext context);

/* The slot that blocks of this context carry. */
uint32_t sg_context_slot(uint32_t number);

/* Marks the end of a context as under way in the driver, or as failed (`is_ending` false). Under sg_cuda_lock. */
void sg_context_set_ending(uint32_t number, bool is_ending);

/* Whether the end of a context is under way. Under sg_cuda_lock. */
bool sg_context_is_ending(uint32_t number);

/* Removes a context that has ended. Under sg_cuda_lock. */
void sg_context_forget(uint32_t number);

/* True if no other living context shares the slot of this one. Under sg_cuda_lock. */
bool sg_context_is_alone(uint32_t number);

#endif
