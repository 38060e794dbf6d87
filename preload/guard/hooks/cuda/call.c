/*
 * call.c - see call.h.
 */
#include "hooks/cuda/call.h"

#include "hooks/cuda/contexts.h"
#include "hooks/pool/mempool.h"
#include "hooks/process_list.h"
#include "base/options.h"
#include "admit/deferred_frees.h"
#include "admit/headroom.h"
#include "admit/reclaim/pool_room.h"
#include "shared/peers.h"
#include "account/callsites.h"
#include "base/text.h"
#include "watch/watchdog.h"

static bool has_no_context(CUresult error)
{
    return error == CUDA_ERROR_INVALID_CONTEXT || error == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
           error == CUDA_ERROR_NOT_INITIALIZED || error == CUDA_ERROR_DEINITIALIZED;
}

bool sg_cuda_has_begun(void)
{
    static uint32_t has_begun;
    CUdevice current = 0;
    if (SG_UNLIKELY(sg_load_relaxed(&has_begun) == 0)) {
        SG_DRIVER(get, cuCtxGetDevice);
        if (get == NULL || get(&current) == CUDA_ERROR_NOT_INITIALIZED)
            return false;
        sg_store_relaxed(&has_begun, 1u);
    }
    return true;
}

/* Whether a context is current; finds its device. Without a context the driver refuses all calls but cuMemCreate. If
 * the query fails for another reason, cuCtxGetDevice_v2 is tried (CUDA 13), and then the last device of this thread is
 * used: memory that the driver grants must be counted. */
static bool has_context(enum sg_hook hook, uint32_t *device)
{
    SG_DRIVER(get, cuCtxGetDevice);
    CUdevice current = 0;
    CUresult result = get != NULL ? get(&current) : CUDA_ERROR_NOT_INITIALIZED;
    if (hook == SG_HOOK_cuMemCreate &&
        (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED))
        return true;
    if (SG_UNLIKELY(result != CUDA_SUCCESS) && !has_no_context(result)) {
        SG_DRIVER(get_again, cuCtxGetDevice_v2);
        result = get_again != NULL ? get_again(&current, NULL) : result;
    }
    if (has_no_context(result) || current < 0)
        return false;
    if (result == CUDA_SUCCESS)
        sg_self.device = sg_cuda_device_number(current);
    *device = sg_self.device;
    return true;
}

/* Free and total memory of a device that is not current, queried in its primary context. False if it has none. */
static bool get_other_info(CUdevice device, size_t *free_bytes, size_t *total_bytes)
{
    SG_DRIVER(get_state, cuDevicePrimaryCtxGetState);
    SG_DRIVER(push, cuCtxPushCurrent_v2);
    SG_DRIVER(pop, cuCtxPopCurrent_v2);
    unsigned int flags = 0;
    int is_active = 0;
    CUcontext context = NULL;
    if (get_state == NULL || push == NULL || pop == NULL || get_state(device, &flags, &is_active) != CUDA_SUCCESS ||
        is_active == 0 || SG_DRIVER_CALL(cuDevicePrimaryCtxRetain, &context, device) != CUDA_SUCCESS)
        return false;
    bool is_answered = push(context) == CUDA_SUCCESS;
    if (is_answered) {
        is_answered = SG_DRIVER_CALL(cuMemGetInfo_v2, free_bytes, total_bytes) == CUDA_SUCCESS;
        (void)pop(&context);
    }
    (void)SG_DRIVER_CALL(cuDevicePrimaryCtxRelease_v2, device);
    return is_answered;
}

/* Free and total memory of `device`. The last index stands for all higher devices; their current one is queried. */
static bool get_info(uint32_t device, size_t *free_bytes, size_t *total_bytes)
{
    SG_DRIVER(get, cuCtxGetDevice);
    CUdevice current = -1;
    bool is_answered = get != NULL && get(&current) == CUDA_SUCCESS;
    if (is_answered && current != (CUdevice)device && (device < SG_DEVICE_CAPACITY - 1 || current < SG_DEVICE_CAPACITY))
        return get_other_info((CUdevice)device, free_bytes, total_bytes);
    return SG_DRIVER_CALL(cuMemGetInfo_v2, free_bytes, total_bytes) == CUDA_SUCCESS;
}

/* Reads a discrete card's free memory from the driver. Without a context the driver does not answer. SIZE_MAX then lets
 * every request pass, and the driver alone decides; so it does of a device that is no card either. */
static struct sg_card look_at_card(uint32_t device)
{
    uint32_t epoch = sg_peers_epoch();
    size_t free_bytes = SIZE_MAX, total_bytes = 0;
    if (sg_cuda_is_apart(device) || !get_info(device, &free_bytes, &total_bytes))
        free_bytes = SIZE_MAX;
    return (struct sg_card){sg_cuda_device_identity(device), free_bytes, total_bytes, epoch, device};
}

/* Errors after which all further work returns the same error, or the context is unusable (cuda.h). */
static bool is_sticky(CUresult error)
{
    static const CUresult sticky[] = {CUDA_ERROR_CONTAINED,
                                      CUDA_ERROR_ILLEGAL_ADDRESS,
                                      CUDA_ERROR_LAUNCH_TIMEOUT,
                                      CUDA_ERROR_ASSERT,
                                      CUDA_ERROR_HARDWARE_STACK_ERROR,
                                      CUDA_ERROR_ILLEGAL_INSTRUCTION,
                                      CUDA_ERROR_MISALIGNED_ADDRESS,
                                      CUDA_ERROR_INVALID_ADDRESS_SPACE,
                                      CUDA_ERROR_INVALID_PC,
                                      CUDA_ERROR_LAUNCH_FAILED,
                                      CUDA_ERROR_TENSOR_MEMORY_LEAK,
                                      CUDA_ERROR_EXTERNAL_DEVICE};
    for (size_t i = 0; i < sizeof sticky / sizeof sticky[0]; i++)
        if (error == sticky[i])
            return true;
    return false;
}

/* Whether the context is dead. cuStreamIsCapturing allocates nothing, waits for nothing, breaks no capture, and "may
 * also return error codes from previous, asynchronous launches" (cuda.h). */
static bool is_dead(CUresult *error)
{
    SG_DRIVER(ask, cuStreamIsCapturing);
    CUstreamCaptureStatus status;
    if (ask != NULL)
        *error = ask(NULL, &status);
    return ask != NULL && is_sticky(*error);
}

bool sg_cuda_scan(struct sg_cuda_call *call)
{
    CUresult error = CUDA_SUCCESS;
    call->request.attempt.is_behind = false;
    if (is_dead(&error)) {
        call->answer = error;
        return false;
    }
    sg_mempool_memory_refresh(); /* a pool may have shrunk since it was charged */
    return true;
}

bool sg_cuda_ask(struct sg_cuda_call *call)
{
    bool is_admitted;
    call->request.attempt.can_list = true;
    do {
        if (call->request.domain == SG_DOMAIN_DEVICE && sg_cuda_has_own_pool(call->device))
            call->request.card = look_at_card(call->device);
        is_admitted = sg_admission_ask(&call->request);
        if (call->request.attempt.wants_list) {
            call->request.attempt.wants_list = call->request.attempt.can_list = false;
            sg_process_list_read();
            continue;
        }
        if (call->is_tentative && call->request.attempt.is_short)
            return false;
        if (call->request.attempt.must_look_again && call->request.attempt.is_behind && !sg_cuda_scan(call))
            return false;
    } while (!is_admitted && call->request.attempt.must_look_again);
    return is_admitted;
}

/* Whether the driver says that the device has no memory of its own, and the user has not said otherwise. */
static bool is_integrated(uint32_t device)
{
    return sg_options.unified != SG_UNIFIED_OFF &&
           sg_load_acquire(&sg_cuda_device_kind[device]) >= (uint32_t)SG_DEVICE_INTEGRATED;
}

static void begin_measure(struct sg_cuda_call *call)
{
    bool is_due =
        call->request.domain == SG_DOMAIN_DEVICE
            ? call->request.size_bytes >= SG_SELF_CHECK_LEAST && is_integrated(call->device)
            : call->request.domain == SG_DOMAIN_PINNED && call->request.size_bytes >= SG_SELF_CHECK_PINNED_LEAST;
    if (SG_UNLIKELY(is_due))
        call->is_measured = sg_self_check_begin(&call->request);
}

void sg_cuda_measure(struct sg_cuda_call *call, CUresult result)
{
    if (SG_UNLIKELY(result == CUDA_ERROR_OUT_OF_MEMORY))
        sg_self_check_resume();
    if (SG_LIKELY(!call->is_measured))
        return;
    call->is_measured = false;
    sg_self_check_end(&call->request, result == CUDA_SUCCESS, result == CUDA_ERROR_OUT_OF_MEMORY);
    if (call->request.domain == SG_DOMAIN_DEVICE)
        sg_cuda_note_trust(call->device);
}

/* Sets SG_SLOT_CUDA once: this process uses CUDA. */
static void note_cuda(void)
{
    if (SG_UNLIKELY((sg_load_relaxed(&sg_own->slot.flags) & SG_SLOT_CUDA) == 0))
        sg_fetch_or(&sg_own->slot.flags, (uint32_t)SG_SLOT_CUDA);
}

/* `device` -1: the current device. */
static bool begin(struct sg_cuda_call *call, enum sg_hook hook, enum sg_domain domain, uint64_t growth_bytes,
                  CUdevice device)
{
    *call = (struct sg_cuda_call){
        .layers = call->layers, .is_counted = call->is_counted, .answer = CUDA_ERROR_OUT_OF_MEMORY};
    if (!call->is_counted)
        return true;
    call->ends_before = sg_load_acquire(&sg_context_ends);
    call->request.domain = domain;
    sg_segment_attach();
    if (has_context(hook, &call->device)) {
        call->is_placed = true;
        note_cuda();
        if (device >= 0)
            call->device = sg_cuda_device_number(device);
        (void)sg_cuda_knows_device(call->device);
        call->context = sg_context_current();
        call->request.size_bytes = growth_bytes;
        call->request.growth_bytes = growth_bytes;
        call->request.wording.call = sg_self.call != NULL ? sg_self.call : sg_hook_table[hook].base;
        call->request.attempt.is_behind = true;
        sg_mempool_memory_catch_up();
        if (growth_bytes != 0 && !sg_cuda_ask(call)) {
            sg_cuda_close(call);
            return false;
        }
        if (growth_bytes != 0)
            begin_measure(call);
    }
    sg_self.layers |= SG_LAYER_CUDA;
    return true;
}

bool sg_cuda_begin_open(struct sg_cuda_call *call, enum sg_hook hook, enum sg_domain domain, uint64_t growth_bytes)
{
    return begin(call, hook, domain, growth_bytes, -1);
}

bool sg_cuda_begin_at_open(struct sg_cuda_call *call, enum sg_hook hook, CUdevice device, uint64_t growth_bytes)
{
    return begin(call, hook, SG_DOMAIN_DEVICE, growth_bytes, device);
}

void sg_cuda_prepare(struct sg_cuda_call *call, enum sg_hook hook, enum sg_domain domain, uint32_t device)
{
    *call = (struct sg_cuda_call){.layers = call->layers,
                                  .answer = CUDA_ERROR_OUT_OF_MEMORY,
                                  .is_counted = true,
                                  .is_placed = true,
                                  .device = device};
    call->ends_before = sg_load_acquire(&sg_context_ends);
    sg_segment_attach();
    note_cuda();
    (void)sg_cuda_knows_device(device);
    sg_mempool_memory_catch_up();
    call->context = sg_context_current();
    call->request = (struct sg_request){.domain = domain,
                                        .registers = domain == SG_DOMAIN_MAPPED,
                                        .wording.call = sg_self.call != NULL ? sg_self.call : sg_hook_table[hook].base,
                                        .attempt.is_behind = true};
}

void sg_cuda_go_on(void)
{
    sg_self.layers |= SG_LAYER_CUDA;
}

bool sg_cuda_begin_on_open(struct sg_cuda_call *call, enum sg_hook hook, CUdevice device, uint64_t growth_bytes)
{
    *call = (struct sg_cuda_call){
        .layers = call->layers, .is_counted = call->is_counted, .answer = CUDA_ERROR_OUT_OF_MEMORY};
    if (!call->is_counted)
        return true;
    if (growth_bytes != 0)
        sg_segment_attach();
    if (growth_bytes != 0 && device >= 0 && sg_cuda_knows_device((uint32_t)device) &&
        !sg_cuda_has_own_pool((uint32_t)device)) {
        note_cuda();
        call->device = (uint32_t)device;
        call->request =
            (struct sg_request){.domain = SG_DOMAIN_DEVICE,
                                .size_bytes = growth_bytes, /* growth_bytes stays 0: not charged to the job's LIMIT */
                                .wording.call = sg_hook_table[hook].base,
                                .kind = SG_REQUEST_RARE};
        if (!sg_cuda_ask(call)) {
            sg_cuda_close(call);
            return false;
        }
    }
    sg_self.layers |= SG_LAYER_CUDA;
    return true;
}

/* Completes a call that began without a context with the context that is current now. */
static void place(struct sg_cuda_call *call)
{
    uint32_t layers = sg_cuda_go_inside();
    call->ends_before = sg_load_acquire(&sg_context_ends);
    call->is_placed = has_context(SG_HOOK_COUNT, &call->device);
    sg_self.layers = layers;
    if (!call->is_placed)
        return;
    note_cuda();
    (void)sg_cuda_knows_device(call->device);
    call->context = sg_context_current();
}

bool sg_cuda_took(struct sg_cuda_call *call, CUresult result)
{
    sg_cuda_measure(call, result);
    if (result != CUDA_SUCCESS)
        return false;
    if (SG_UNLIKELY(!call->is_placed) && call->is_counted)
        place(call);
    return true;
}

/* Counts a block that disappeared with its context before it could be entered. */
static void count_gone(enum sg_domain domain)
{
    sg_ledger_count_allocation(domain);
    sg_ledger_count_free(domain);
}

void sg_cuda_record(const struct sg_cuda_call *call, struct sg_block_table *table, uint64_t key, uint64_t bytes,
                    const void *caller)
{
    uint64_t stale;
    enum sg_domain domain = call->request.domain;
    if (!call->is_counted)
        return;
    if (SG_UNLIKELY(!call->is_placed)) {
        count_gone(domain);
        return;
    }
    uint64_t block = sg_block(bytes, domain, call->device) | (uint64_t)call->context << SG_BLOCK_SLOT_SHIFT;
    block |= (uint64_t)sg_cuda_enter_site(domain, caller, bytes) << SG_BLOCK_SITE_SHIFT;
    if (sg_context_is_over(block, call->ends_before) && sg_block_table_find(table, key) != 0) {
        sg_callsites_leave(SG_CALLSITES_CUDA, sg_block_site(block), bytes); /* another block has the address now */
        count_gone(domain);
        return;
    }
    if (sg_block_table_insert(table, key, block, &stale) != 0) {
        sg_ledger_count_fault();
        sg_callsites_leave(SG_CALLSITES_CUDA, sg_block_site(block), bytes);
        return;
    }
    /* A stale entry: no hook saw that block's free, its context shared a slot, or its context had just ended. */
    if (stale != 0) {
        sg_cuda_released(table, stale);
        if (!sg_context_may_be_over(stale))
            sg_add_relaxed(&sg_own->unmatched_frees, 1);
    }
    sg_ledger_charge(domain, bytes);
    sg_ledger_count_allocation(domain);
    if (domain == SG_DOMAIN_DEVICE)
        sg_ledger_charge_device(call->device, (int64_t)bytes);
    sg_context_recheck(table, key, block, call->ends_before);
}

void sg_cuda_end(struct sg_cuda_call *call, uint64_t kept_bytes)
{
    bool was_judged = call->request.granted_bytes != 0;
    if (was_judged) {
        if (SG_UNLIKELY(call->request.attempt.is_measured))
            sg_pool_room_end(&call->request, kept_bytes != 0);
        sg_admission_settle(&call->request, kept_bytes);
    }
    sg_cuda_close(call);
    if (was_judged)
        sg_watchdog_consider();
}

/* Whether the free of a block shows what the driver does with the machine's memory. */
static bool is_measured_free(uint64_t block)
{
    return sg_block_size(block) >= SG_SELF_CHECK_LEAST && sg_block_domain(block) == SG_DOMAIN_DEVICE &&
           (block & SG_BLOCK_POOLED) == 0 && is_integrated(sg_block_device(block)) &&
           !sg_cuda_has_own_pool(sg_block_device(block));
}

uint64_t sg_cuda_take_out(struct sg_block_table *table, uint64_t key)
{
    uint64_t block = sg_block_table_remove(table, key);
    if (table != &sg_tracker_registered)
        sg_deferred_frees_note_free(sg_cuda_returned_bytes(block));
    if ((block & SG_BLOCK_POOLED) != 0)
        sg_mempool_begin_free(block, key, SG_SYNC_NOTHING);
    else if (SG_UNLIKELY(is_measured_free(block)))
        sg_self_check_begin_free();
    return block;
}

CUresult sg_cuda_given_back(struct sg_block_table *table, uint64_t key, uint64_t block, uint64_t ends_before,
                            CUresult result)
{
    if (SG_UNLIKELY(is_measured_free(block)))
        sg_self_check_end_free(sg_block_size(block), result == CUDA_SUCCESS);
    if (block != 0 && (sg_cuda_is_gone(result) || !sg_context_put_back(table, key, block, ends_before)))
        sg_cuda_released(table, block);
    if ((block & SG_BLOCK_POOLED) != 0)
        sg_mempool_end_free(block, key, sg_cuda_is_gone(result));
    return result;
}
