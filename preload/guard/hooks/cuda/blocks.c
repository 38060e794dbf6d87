/*
 * blocks.c - see blocks.h.
 */
#include "hooks/cuda/blocks.h"

#include "account/callsites.h"
#include "account/ledger.h"
#include "account/thread_record.h"
#include "account/tracker.h"
#include "admit/deferred_frees.h"
#include "base/atomics.h"
#include "hooks/cuda/device.h"
#include "hooks/pool/mempool.h"
#include "shared/segment.h"

uint32_t sg_cuda_enter_site(enum sg_domain domain, const void *caller, uint64_t bytes)
{
    const void *outer = sg_self.caller;
    return sg_callsites_enter(SG_CALLSITES_CUDA, domain, outer != NULL ? outer : caller, bytes);
}

uint64_t sg_cuda_returned_bytes(uint64_t block)
{
    enum sg_domain domain = sg_block_domain(block);
    bool is_returned =
        block != 0 && (block & SG_BLOCK_POOLED) == 0 &&
        (domain == SG_DOMAIN_PINNED || (domain == SG_DOMAIN_DEVICE && !sg_cuda_has_own_pool(sg_block_device(block))));
    return is_returned ? sg_block_size(block) : 0;
}

void sg_cuda_released(const struct sg_block_table *table, uint64_t block)
{
    enum sg_domain domain = sg_block_domain(block);
    if (table == &sg_tracker_registered) {
        (void)sg_sub_clamped(&sg_own->registered_bytes, sg_block_size(block));
        return;
    }
    sg_callsites_leave(SG_CALLSITES_CUDA, sg_block_site(block), sg_block_size(block));
    sg_ledger_count_free(domain);
    if ((block & SG_BLOCK_POOLED) != 0) {
        sg_mempool_block_gone(block);
        return;
    }
    sg_ledger_release(domain, sg_block_size(block));
    if (domain == SG_DOMAIN_DEVICE)
        sg_ledger_charge_device(sg_block_device(block), -(int64_t)sg_block_size(block));
    sg_deferred_frees_note_freed(sg_cuda_returned_bytes(block));
}
