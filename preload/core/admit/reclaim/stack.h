/*
 * stack.h - whether the only thread of a program runs a signal handler.
 *
 * A heap without locks is not whole where a handler has interrupted it. Nothing tells that a handler runs but the
 * frame that the kernel has put on the stack for it, so the stack is searched for one.
 */
#ifndef SG_PRELOAD_ADMIT_RECLAIM_STACK_H
#define SG_PRELOAD_ADMIT_RECLAIM_STACK_H

#include <stdbool.h>

/* Whether a signal frame may lie above `frame`, an address in the caller's frame. True as well on another stack than
 * that with which the program began: a handler's own, a coroutine's. May be true by chance where a handler ran some
 * time ago. Reads up to 8 MiB, in less than a millisecond. The thread that the program began with, also in a
 * handler. */
bool sg_stack_is_interrupted(const void *frame);

#endif
