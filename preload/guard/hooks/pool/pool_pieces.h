/*
 * pool_pieces.h - the free space inside a CUDA memory pool: which address ranges hold no block, and which streams may
 * use them.
 *
 * The driver reports how many bytes of a pool are free, but not in how many pieces. A request larger than each free
 * piece makes the pool grow. This module therefore tracks the free pieces by the calls that the hooks see:
 *   - A piece is known to be free after its block was freed. Until the block's stream is synchronised, only that stream
 *     may use the piece.
 *   - Two adjacent pieces are one piece only if one block once lay across both, or one growth of the pool made both.
 *   - A pool gives memory back in whole extents that hold no block. The driver does not report which. After that, only
 *     free pieces in an extent with a block are still known.
 * Unknown memory is not counted as free. An extent is an address range known to lie in one piece of the pool's memory.
 *
 * Thread-safety: all calls under one lock of the caller (sg_cuda_lock). Memory: own mappings, made at first use.
 */
#ifndef SG_PRELOAD_HOOKS_POOL_PIECES_H
#define SG_PRELOAD_HOOKS_POOL_PIECES_H

#include "base/range_map.h"

#include <stdbool.h>
#include <stdint.h>

/* SG_STREAM_DONE: a free piece that all streams may use. SG_STREAM_UNKNOWN: a stream without a number. */
enum { SG_STREAM_DONE = 0, SG_STREAM_UNKNOWN = 0xffff };

/* The number of the stream with the unique key `key`; `is_new`: give it a number if it has none. Returns
 * SG_STREAM_UNKNOWN if all numbers are in use, or the stream has no number and `is_new` is false. */
uint32_t sg_pieces_stream_number(uint64_t key, bool is_new);

/* How many frees in that stream have returned; number 0: in all streams together. An unknown stream has 0. */
uint64_t sg_pieces_stream_frees(uint32_t number);

/* Sizes are rounded up to a multiple of this (the driver's smallest block), in bytes. */
#define SG_PIECES_UNIT UINT64_C(512)

/* All zero: nothing is known. */
struct sg_pieces {
    struct sg_range_map *free;    /* COUNTED: free, flags are the stream's number. RESERVED: being freed, flags are the
                                   * result of sg_pieces_begin_free */
    struct sg_range_map *extents; /* COUNTED: exactly one growth of the pool. RESERVED: a part of one piece of the
                                   * pool's memory. The flags tell adjacent extents apart */
    uint32_t extent_number;
};

/* Notes a new block: its address range is in use. `grown_bytes`: how much the pool has grown for it, in one piece that
 * begins at the block; 0: unknown. */
void sg_pieces_take(struct sg_pieces *pieces, uintptr_t begin, uint64_t bytes, uint64_t grown_bytes);

/* Notes that the range behind a new block is free for all streams: the pool has just grown by it. */
void sg_pieces_add(struct sg_pieces *pieces, uintptr_t begin, uint64_t bytes);

/* A block is about to be freed in a stream. Returns a number for sg_pieces_end_free that identifies this free; numbers
 * repeat after 65534 frees. Without it, end_free could mark as free a range that a newer block has taken meanwhile, or
 * that the free of such a block has begun on. */
uint32_t sg_pieces_begin_free(struct sg_pieces *pieces, uintptr_t begin, uint64_t bytes, uint32_t stream);

/* The free that returned `begun` from begin_free is over: it succeeded (`is_freed`) or failed. */
void sg_pieces_end_free(struct sg_pieces *pieces, uintptr_t begin, uint64_t bytes, uint32_t begun, bool is_freed);

/* A synchronisation: all streams may now use the blocks freed in `stream`, or in any stream (SG_STREAM_UNKNOWN). */
void sg_pieces_see_done(struct sg_pieces *pieces, uint32_t stream);

/* Whether a block of `bytes` in `stream` is known to fit in a free piece. */
bool sg_pieces_has(const struct sg_pieces *pieces, uint64_t bytes, uint32_t stream);

/* The bytes known to be free. */
uint64_t sg_pieces_bytes(const struct sg_pieces *pieces);

/* The pool has given memory back: forgets the extents without a block. `is_for_all`: only those that all streams may
 * use. */
void sg_pieces_forget_empty(struct sg_pieces *pieces, bool is_for_all);

/* The bytes that the pool certainly gives back when it is trimmed to 0: the growths without a block that all streams
 * may use. */
uint64_t sg_pieces_sure_bytes(const struct sg_pieces *pieces);

/* The size of the smallest extent without a block; UINT64_MAX: there is none. */
uint64_t sg_pieces_least_empty_bytes(const struct sg_pieces *pieces);

/* Forgets everything and unmaps the memory. */
void sg_pieces_forget(struct sg_pieces *pieces);

#endif
