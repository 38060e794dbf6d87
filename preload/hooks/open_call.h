/*
 * open_call.h - the CUDA call that a thread is in (struct sg_open_call), once the program has left it by siglongjmp.
 *
 * The library is not told of that. The hook's frame is gone then (struct sg_mark), which the thread's next call of a
 * hook finds.
 */
#ifndef SG_PRELOAD_HOOKS_OPEN_CALL_H
#define SG_PRELOAD_HOOKS_OPEN_CALL_H

#include "base/compiler.h"
#include "account/thread_record.h"

#include <stdbool.h>
#include <stdint.h>

/* This thread is marked as inside CUDA. True: it is not, seen from `frame_end`, for the call was left. All of it is
 * undone: what is in flight, what it counts on in a memory pool or a store for graphs, its turn, its question, its
 * hold on cancellation, the mark. */
bool sg_open_call_was_left(uintptr_t frame_end);

/* Ends what the open call has in a memory pool or a store for graphs. */
void sg_open_call_give_up(void);

/* The open call is over, and nothing is in flight: ends what else it has. */
static inline void sg_open_call_end(void)
{
    const struct sg_open_call *open = &sg_self.open;
    if (SG_UNLIKELY((open->headroom_bytes | open->pool | open->asked_pool) != 0 || open->has_turn || open->is_syncing))
        sg_open_call_give_up();
}

#endif
