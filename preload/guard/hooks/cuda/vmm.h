/*
 * vmm.h - accounting of CUDA's virtual memory management: memory from cuMemCreate, its handles, its mappings.
 *
 * The driver frees the memory only when all references to its handles AND all its mappings are gone (cuda.h). A release
 * at cuMemRelease would undercount memory that stays mapped: PyTorch's expandable segments release right after mapping.
 *
 * An import counts where the memory was made. This holds for an import of the process's own export, too, unless the
 * driver gives it the number of a handle that is known: when the first handle and its mappings are gone, memory that
 * lives on by such an import is not counted. Nothing that a program hands around identifies its memory: it may close an
 * exported descriptor and receive another process's under the same number.
 *
 * A call that adds a reference first holds the memory. Otherwise another thread's release could subtract the memory
 * while the driver answers:
 *
 *     struct sg_vmm_memory *held = sg_vmm_hold_...(...);
 *     ... the driver ...
 *     sg_vmm_end_...(held, ..., result);
 *
 * Any thread; every function takes sg_cuda_lock. Memory of other processes is not known here: `held` is then NULL, and
 * the memory stays uncounted in this process.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_VMM_H
#define SG_PRELOAD_HOOKS_CUDA_VMM_H

#include "hooks/cuda/driver.h"
#include "sparkguard_abi.h"

struct sg_vmm_memory;
struct sg_vmm_handle;
struct sg_vmm_mapping;

/* Records memory that cuMemCreate has returned as handle `number`, and charges `bytes`. `device` matters only for
 * SG_DOMAIN_DEVICE. `caller` is the return address of the program's call. */
void sg_vmm_enter(enum sg_domain domain, uint32_t device, uint64_t number, uint64_t bytes, const void *caller);

/* Holds the memory behind a handle, or behind any address inside a mapping. NULL: unknown memory. The matching
 * sg_vmm_end_* drops the hold. */
struct sg_vmm_memory *sg_vmm_hold_handle(uint64_t number);
struct sg_vmm_memory *sg_vmm_hold_address(uint64_t address);

/* The driver has answered `result`. On success: records `number` as one more reference; records a mapping. `held` may
 * be NULL. */
void sg_vmm_end_refer(struct sg_vmm_memory *held, uint64_t number, CUresult result);
void sg_vmm_end_map(struct sg_vmm_memory *held, uint64_t address, uint64_t bytes, CUresult result);

/* cuMemRelease: sg_vmm_begin_release removes one reference before the driver is called, and sg_vmm_end_release restores
 * the reference if the driver failed. NULL: an unknown handle; sg_vmm_end_release accepts it. */
struct sg_vmm_handle *sg_vmm_begin_release(uint64_t number);
void sg_vmm_end_release(struct sg_vmm_handle *handle, CUresult result);

/* cuMemUnmap: the same for all mappings that begin in [begin, end). */
struct sg_vmm_mapping *sg_vmm_begin_unmap(uint64_t begin, uint64_t end);
void sg_vmm_end_unmap(struct sg_vmm_mapping *mappings, CUresult result);

/* In a forked child: resets sg_cuda_lock. The lists stay, because CUDA does not survive a fork. Slabs that another
 * thread was changing at the fork are given up. */
void sg_vmm_atfork_child(void);

#endif
