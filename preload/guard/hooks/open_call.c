/*
 * open_call.c - see open_call.h.
 */
#include "hooks/open_call.h"

#include "admit/admission.h"
#include "hooks/cuda/graph.h"
#include "hooks/cuda/mark.h"
#include "hooks/pool/mempool.h"

void sg_open_call_give_up(void)
{
    sg_graph_end_claim();
    sg_mempool_end();
}

bool sg_open_call_was_left(uintptr_t frame_end)
{
    if (!sg_mark_is_gone(&sg_self.open.mark, frame_end))
        return false;
    sg_self.layers &= ~(uint32_t)(SG_LAYER_CUDA | SG_LAYER_CALL);
    sg_self.call = NULL;
    sg_self.caller = NULL;
    sg_open_call_end();
    sg_admission_abandon();
    return true;
}
