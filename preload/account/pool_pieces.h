/*
 * pool_pieces.h - the free room inside a memory pool: which address ranges hold no block, and which streams may use
 * them.
 *
 * The driver tells how much of a pool is free, but not in how many pieces. A request that needs a larger piece than
 * there is makes the pool grow. So the pieces are kept here, by what the hooks see:
 *   - A piece is known to be free after its block was freed. Until a synchronisation of the block's stream, only that
 *     stream may use the piece.
 *   - Two pieces that touch are one piece only if one block once lay across both, or one growth of the pool made both.
 *   - A pool gives memory back in whole pieces without a block. The driver does not tell which: after that no piece
 *     is known but those beside a block.
 * Unknown memory is no headroom. All calls under one lock of the caller. Memory: mappings of its own, made at first
 * use.
 */
#ifndef SG_PRELOAD_ACCOUNT_POOL_PIECES_H
#define SG_PRELOAD_ACCOUNT_POOL_PIECES_H

#include "base/range_map.h"

#include <stdbool.h>
#include <stdint.h>

enum { SG_STREAM_DONE = 0, SG_STREAM_UNKNOWN = 0xffff };

/* The number of a stream, by what tells it from all others, and how many frees in it are over; of 0, in all streams
 * together. SG_STREAM_UNKNOWN: there are too many, or it is not `is_new` and was never given one; of that no
 * frees are known. */
uint32_t sg_stream_number(uint64_t key, bool is_new);
uint64_t sg_stream_frees(uint32_t number);

/* Every size counts as a multiple of this one (the driver's least block). */
#define SG_PIECES_UNIT UINT64_C(512)

/* All zero: nothing is known. */
struct sg_pieces {
    struct sg_range_map *free; /* COUNTED: free, the flags are the stream's number; RESERVED: being freed, as the flags
                                * tell (sg_pieces_begin_free) */
    struct sg_range_map *extents; /* that lie in one piece of the pool's memory, COUNTED: that are all of one; the flags
                                * tell those apart that touch */
    uint32_t extent_number;
};

/* A block of the pool is at this address: all of it is taken. `grown_bytes`: the pool has grown by so much for it, in
 * one piece that begins there; 0: nobody knows. */
void sg_pieces_take(struct sg_pieces *pieces, uintptr_t begin, uint64_t bytes, uint64_t grown_bytes);

/* The room behind a new block is free for all, because the pool has just grown by it. */
void sg_pieces_add(struct sg_pieces *pieces, uintptr_t begin, uint64_t bytes);

/* A block is about to be freed in a stream; it has been, or that failed. Room that another block has taken meanwhile
 * stays taken, also while that one is being freed: the answer, which 65534 frees later is given again, tells them
 * apart. */
uint32_t sg_pieces_begin_free(struct sg_pieces *pieces, uintptr_t begin, uint64_t bytes, uint32_t stream);
void sg_pieces_end_free(struct sg_pieces *pieces, uintptr_t begin, uint64_t bytes, uint32_t begun, bool is_freed);

/* Blocks freed in that stream, or in any one (SG_STREAM_UNKNOWN), are free for all now. */
void sg_pieces_see_done(struct sg_pieces *pieces, uint32_t stream);

/* Whether a block of that size is known to fit, in that stream. */
bool sg_pieces_has(const struct sg_pieces *pieces, uint64_t bytes, uint32_t stream);

/* The bytes that are known to be free. */
uint64_t sg_pieces_bytes(const struct sg_pieces *pieces);

/* The pool has given memory back: forgets the extents without a block. `is_for_all`: those only that all streams may
 * use. */
void sg_pieces_forget_empty(struct sg_pieces *pieces, bool is_for_all);

/* The bytes that a pool gives back for certain if it is told to give back all it can: the growths without a block that
 * all streams may use. */
uint64_t sg_pieces_sure_bytes(const struct sg_pieces *pieces);

/* The smallest extent without a block; UINT64_MAX: there is none. */
uint64_t sg_pieces_least_empty_bytes(const struct sg_pieces *pieces);

void sg_pieces_forget(struct sg_pieces *pieces);

#endif
