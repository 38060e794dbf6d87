/*
 * vmm.h - virtual memory management as the ledger has it: memory made by cuMemCreate, its handles, its mappings.
 *
 * cuda.h: the memory goes only when all references to its handles AND all its mappings are gone; counting it off at
 * cuMemRelease would undercount whatever stays mapped (PyTorch's expandable segments release right after mapping). One
 * memory may have several handles: what this process exports and imports again may come back under another number.
 *
 * What takes a reference first holds the memory, so that nobody else's release counts it off while the driver answers:
 *
 *     struct sg_vmm_memory *held = sg_vmm_hold_...(...);
 *     ... the driver ...
 *     sg_vmm_end_...(held, ..., result);
 *
 * Any thread; under sg_vmm_lock inside. Memory of other processes is not known here: held is NULL then, and stays
 * uncounted.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_VMM_H
#define SG_PRELOAD_HOOKS_CUDA_VMM_H

#include "hooks/cuda/driver.h"
#include "sparkguard_abi.h"

struct sg_vmm_memory;
struct sg_vmm_handle;
struct sg_vmm_mapping;

/* cuMemCreate gave `number`: charges it. `device` counts where the domain is that of devices. */
void sg_vmm_enter(enum sg_domain domain, uint32_t device, uint64_t number, uint64_t bytes, const void *caller);

struct sg_vmm_memory *sg_vmm_hold_handle(uint64_t number);
struct sg_vmm_memory *sg_vmm_hold_address(uint64_t address);
struct sg_vmm_memory *sg_vmm_hold_exported(const void *shareable, CUmemAllocationHandleType type);

/* The driver gave `number` as one more reference; mapped it; wrote its shareable counterpart. Otherwise nothing
 * happened. */
void sg_vmm_end_refer(struct sg_vmm_memory *held, uint64_t number, CUresult result);
void sg_vmm_end_map(struct sg_vmm_memory *held, uint64_t address, uint64_t bytes, CUresult result);
void sg_vmm_end_export(struct sg_vmm_memory *held, const void *shareable, CUmemAllocationHandleType type,
                       CUresult result);

/* One reference less, out before the driver is asked; NULL: not ours. */
struct sg_vmm_handle *sg_vmm_begin_release(uint64_t number);
void sg_vmm_end_release(struct sg_vmm_handle *handle, CUresult result);

/* The same for all mappings in a range. */
struct sg_vmm_mapping *sg_vmm_begin_unmap(uint64_t begin, uint64_t end);
void sg_vmm_end_unmap(struct sg_vmm_mapping *mappings, CUresult result);

/* In a forked child: CUDA does not survive fork, the lists stay as they are. Resets sg_vmm_lock. */
void sg_vmm_refork(void);

#endif
