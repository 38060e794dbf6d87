/*
 * contexts.c - see contexts.h.
 */
#include "hooks/cuda/contexts.h"

#include "account/ledger.h"
#include "base/atomics.h"
#include "hooks/cuda/lock.h"

struct known_context {
    CUcontext handle;   /* (atomic) NULL: the entry is free */
    uint32_t is_ending; /* (atomic) ending: the driver may give the handle to a new context before the call returns */
    uint32_t attached;  /* use count of cuCtxAttach and cuCtxDetach */
};

/* Indexed by number; written under sg_cuda_lock. 256 suffice: a context of a real device takes 100 MiB and more. */
enum { CONTEXT_CAPACITY = 256 };
static struct known_context contexts[CONTEXT_CAPACITY];
static uint32_t context_top = 1; /* (atomic) one more than the highest number ever used */
static uint32_t context_count;   /* (atomic) contexts that exist */

/* Reads the handle again after is_ending: sg_context_forget may have cleared both between the reads. */
static bool matches(const struct known_context *entry, CUcontext context, uint32_t is_ending)
{
    return sg_load_acquire(&entry->handle) == context && sg_load_acquire(&entry->is_ending) == is_ending &&
           sg_load_acquire(&entry->handle) == context;
}

/* The number of a context with this handle and state; 0 if there is none. Needs no lock. */
static uint32_t find(CUcontext context, uint32_t is_ending)
{
    uint32_t top = sg_load_acquire(&context_top);
    for (uint32_t number = 1; number < top; number++)
        if (matches(&contexts[number], context, is_ending))
            return number;
    return 0;
}

uint32_t sg_context_number(CUcontext context)
{
    return context != NULL ? find(context, 0) : 0;
}

uint32_t sg_context_slot(uint32_t number)
{
    return number < SG_CONTEXT_SHARED ? number : SG_CONTEXT_SHARED;
}

uint32_t sg_context_current(void)
{
    CUcontext current = NULL;
    if (sg_load_acquire(&context_count) == 0)
        return SG_CONTEXT_PRIMARY;
    SG_DRIVER(get, cuCtxGetCurrent);
    if (get == NULL || get(&current) != CUDA_SUCCESS || current == NULL)
        return SG_CONTEXT_PRIMARY;
    uint32_t number = sg_context_number(current);
    return sg_context_slot(number != 0 ? number : find(current, 1));
}

bool sg_context_has_taken(CUdeviceptr address)
{
    SG_DRIVER(ask, cuPointerGetAttribute);
    CUdeviceptr start = 0;
    uint32_t layers = sg_cuda_go_inside();
    CUresult result =
        ask != NULL ? ask(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) : CUDA_ERROR_INVALID_VALUE;
    sg_self.layers = layers;
    if (result == CUDA_SUCCESS)
        return start != address; /* the address lies in a newer allocation */
    return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_CONTEXT ||
           result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_DEINITIALIZED;
}

void sg_context_enter(CUcontext context)
{
    struct sg_lock_state lock;
    uint32_t number = 1;
    if (context == NULL)
        return;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    while (number < CONTEXT_CAPACITY && contexts[number].handle != NULL)
        number++;
    if (number < CONTEXT_CAPACITY) {
        contexts[number].attached = 1;
        sg_store_release(&contexts[number].handle, context);
        sg_fetch_add(&context_count, 1u);
        if (number >= context_top)
            sg_store_release(&context_top, number + 1);
    } else {
        sg_ledger_count_fault();
    }
    sg_lock_release(&sg_cuda_lock, &lock);
}

void sg_context_attach(CUcontext context)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    uint32_t number = sg_context_number(context);
    if (number != 0)
        contexts[number].attached++;
    sg_lock_release(&sg_cuda_lock, &lock);
}

bool sg_context_detach(CUcontext context)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    uint32_t number = sg_context_number(context);
    bool is_last = number != 0 && --contexts[number].attached == 0;
    sg_lock_release(&sg_cuda_lock, &lock);
    return is_last;
}

void sg_context_set_ending(uint32_t number, bool is_ending)
{
    sg_store_release(&contexts[number].is_ending, is_ending ? 1u : 0u);
}

bool sg_context_is_ending(uint32_t number)
{
    return sg_load_relaxed(&contexts[number].is_ending) != 0;
}

void sg_context_forget(uint32_t number)
{
    sg_store_release(&contexts[number].handle, NULL);
    sg_context_set_ending(number, false);
    sg_fetch_sub(&context_count, 1u);
}

bool sg_context_is_alone(uint32_t number)
{
    uint32_t other = SG_CONTEXT_SHARED;
    if (number < SG_CONTEXT_SHARED)
        return true;
    while (other < context_top && (other == number || contexts[other].handle == NULL))
        other++;
    return other == context_top;
}
