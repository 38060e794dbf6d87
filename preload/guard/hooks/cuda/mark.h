/*
 * mark.h - finds out whether a call was left by a jump (struct sg_mark in thread_record.h).
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_MARK_H
#define SG_PRELOAD_HOOKS_CUDA_MARK_H

#include "account/thread_record.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether the frame of a mark is gone. Called by the same thread from a frame that ends at `frame_end` (SG_FRAME_END).
 * Makes a system call where that frame lies below the mark. */
bool sg_mark_is_gone(const struct sg_mark *mark, uintptr_t frame_end);

#endif
