/*
 * open_call.h - ending an open CUDA call (struct sg_open_call) that the program has left by siglongjmp.
 *
 * Nothing tells the library of a siglongjmp. But the stack frame of the hook is gone then (struct sg_mark), and the
 * next call of a hook by the same thread finds that out.
 */
#ifndef SG_PRELOAD_HOOKS_OPEN_CALL_H
#define SG_PRELOAD_HOOKS_OPEN_CALL_H

#include "base/compiler.h"
#include "account/thread_record.h"

#include <stdbool.h>
#include <stdint.h>

/* Finds out whether this thread, which is marked as inside CUDA, has left that call, seen from the frame that ends at
 * `frame_end`. If so, returns true after undoing all that the call held: bytes in flight, bytes that it counts on in a
 * memory pool or a graph pool, its turn, its question to the driver, its hold on cancellation, and the mark. A mark
 * that stayed would let all later calls pass uncounted. */
bool sg_open_call_was_left(uintptr_t frame_end);

/* Gives up what the open call has in a memory pool or a graph pool. */
void sg_open_call_give_up(void);

/* Ends an open call that has no bytes in flight: gives up what else it has. */
static inline void sg_open_call_end(void)
{
    const struct sg_open_call *open = &sg_self.open;
    if (SG_UNLIKELY((open->headroom_bytes | open->pool | open->asked_pool) != 0 || open->has_turn || open->is_syncing))
        sg_open_call_give_up();
}

#endif
