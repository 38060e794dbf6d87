/*
 * pool_pieces.c - see pool_pieces.h.
 */
#include "hooks/pool/pool_pieces.h"

#include "base/syscall.h"

#include <string.h>
#include <sys/mman.h>

/* The flags of a piece: the stream's number in the low bits; above them, of a RESERVED piece, the number of its free.
 * COUNTED pieces have no high bits: range_map.h would take them for a call site. */
enum { STREAM_BITS = 0xffff, FREE_SHIFT = 16 };

enum { STREAMS = 1024 };
static struct {
    uint64_t key, frees;
} streams[STREAMS]; /* by number, from 1 on; 0: all streams together */
static uint32_t stream_count;

uint32_t sg_pieces_stream_number(uint64_t key, bool is_new)
{
    for (uint32_t number = 1; number <= stream_count; number++)
        if (streams[number].key == key)
            return number;
    if (!is_new || stream_count + 1 >= STREAMS)
        return SG_STREAM_UNKNOWN;
    streams[++stream_count].key = key;
    return stream_count;
}

static void count_free(uint32_t number)
{
    if (number != SG_STREAM_DONE)
        streams[0].frees++;
    if (number != SG_STREAM_DONE && number < STREAMS)
        streams[number].frees++;
}

uint64_t sg_pieces_stream_frees(uint32_t number)
{
    return number < STREAMS ? streams[number].frees : 0;
}

static uint64_t whole(uint64_t bytes)
{
    return (bytes + SG_PIECES_UNIT - 1) & ~(SG_PIECES_UNIT - 1);
}

static bool is_made(struct sg_range_map **ranges)
{
    if (*ranges == NULL) {
        void *fresh = sg_sys_mmap(NULL, sizeof **ranges, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *ranges = sg_is_error(fresh) ? NULL : fresh;
    }
    return *ranges != NULL;
}

static void drop(struct sg_range_map **ranges)
{
    if (*ranges == NULL)
        return;
    sg_range_map_destroy(*ranges);
    (void)sg_sys_munmap(*ranges, sizeof **ranges);
    *ranges = NULL;
}

void sg_pieces_forget(struct sg_pieces *pieces)
{
    drop(&pieces->free);
    drop(&pieces->extents);
}

/* Sets a range in `free` or `extents`. Without memory for that, everything is forgotten. */
static void set(struct sg_pieces *pieces, struct sg_range_map **ranges, const struct sg_range *range)
{
    if (!is_made(ranges) || sg_range_map_set(*ranges, range->begin, range->end, range->kind, range->flags) != 0)
        sg_pieces_forget(pieces);
}

/* Joins the extents that a block lies across. `kind`: COUNTED if [begin, end) is exactly one growth of the pool. */
static void extend(struct sg_pieces *pieces, uintptr_t begin, uintptr_t end, uint32_t kind)
{
    struct sg_range piece, joined = {begin, end, kind, 0, 0};
    if (pieces->extents == NULL && !is_made(&pieces->extents))
        return;
    for (uintptr_t at = begin; sg_range_map_next(pieces->extents, at, &piece) && piece.begin < end; at = piece.end) {
        if (piece.begin <= begin && piece.end >= end)
            return;
        joined.kind = SG_RANGE_RESERVED;
        joined.begin = piece.begin < joined.begin ? piece.begin : joined.begin;
        joined.end = piece.end > joined.end ? piece.end : joined.end;
    }
    pieces->extent_number = pieces->extent_number % STREAM_BITS + 1;
    joined.flags = pieces->extent_number;
    set(pieces, &pieces->extents, &joined);
}

void sg_pieces_take(struct sg_pieces *pieces, uintptr_t begin, uint64_t bytes, uint64_t grown_bytes)
{
    uint64_t size = whole(bytes);
    bool has_grown = grown_bytes >= size;
    extend(pieces, begin, begin + (has_grown ? grown_bytes : size), has_grown ? SG_RANGE_COUNTED : SG_RANGE_RESERVED);
    if (pieces->free != NULL)
        set(pieces, &pieces->free, &(struct sg_range){begin, begin + size, SG_RANGE_NONE, 0, 0});
}

void sg_pieces_add(struct sg_pieces *pieces, uintptr_t begin, uint64_t bytes)
{
    set(pieces, &pieces->free, &(struct sg_range){begin, begin + bytes, SG_RANGE_COUNTED, SG_STREAM_DONE, 0});
}

uint32_t sg_pieces_begin_free(struct sg_pieces *pieces, uintptr_t begin, uint64_t bytes, uint32_t stream)
{
    static uint32_t frees;
    frees = frees % (UINT16_MAX - 1) + 1;
    uint32_t begun = frees << FREE_SHIFT | (stream & STREAM_BITS);
    /* The block's extent may have been forgotten. */
    extend(pieces, begin, begin + whole(bytes), SG_RANGE_RESERVED);
    set(pieces, &pieces->free, &(struct sg_range){begin, begin + whole(bytes), SG_RANGE_RESERVED, begun, 0});
    return begun;
}

void sg_pieces_end_free(struct sg_pieces *pieces, uintptr_t begin, uint64_t bytes, uint32_t begun, bool is_freed)
{
    struct sg_range piece;
    uintptr_t end = begin + whole(bytes);
    if (pieces->free == NULL)
        return;
    for (uintptr_t at = begin; pieces->free != NULL && sg_range_map_within(pieces->free, at, end, &piece);
         at = piece.end) {
        if (piece.kind != SG_RANGE_RESERVED || piece.flags != begun)
            continue;
        piece.flags &= STREAM_BITS;
        if (is_freed)
            count_free(piece.flags);
        piece.kind = is_freed ? SG_RANGE_COUNTED : SG_RANGE_NONE;
        set(pieces, &pieces->free, &piece);
    }
}

void sg_pieces_see_done(struct sg_pieces *pieces, uint32_t stream)
{
    struct sg_range piece;
    for (uintptr_t at = 0; pieces->free != NULL && sg_range_map_next(pieces->free, at, &piece); at = piece.end) {
        bool is_meant = piece.flags == stream || stream == SG_STREAM_UNKNOWN;
        if (piece.kind != SG_RANGE_COUNTED || piece.flags == SG_STREAM_DONE || !is_meant)
            continue;
        piece.flags = SG_STREAM_DONE;
        set(pieces, &pieces->free, &piece);
    }
}

static bool is_for(const struct sg_range *piece, uint32_t stream)
{
    return piece->kind == SG_RANGE_COUNTED &&
           (piece->flags == SG_STREAM_DONE || (piece->flags == stream && stream != SG_STREAM_UNKNOWN));
}

static bool has_within(const struct sg_range_map *free, const struct sg_range *extent, uint64_t bytes, uint32_t stream)
{
    struct sg_range piece;
    uintptr_t begin = 0, end = 0; /* of the adjacent free pieces so far */
    for (uintptr_t at = extent->begin; sg_range_map_within(free, at, extent->end, &piece); at = piece.end) {
        if (!is_for(&piece, stream)) {
            begin = end = 0;
            continue;
        }
        begin = piece.begin == end ? begin : piece.begin;
        end = piece.end;
        if (end - begin >= bytes)
            return true;
    }
    return false;
}

bool sg_pieces_has(const struct sg_pieces *pieces, uint64_t bytes, uint32_t stream)
{
    struct sg_range extent;
    uint64_t size = whole(bytes);
    if (size < bytes || sg_pieces_bytes(pieces) < size || pieces->extents == NULL)
        return false;
    for (uintptr_t at = 0; sg_range_map_next(pieces->extents, at, &extent); at = extent.end)
        if (extent.end - extent.begin >= size && has_within(pieces->free, &extent, size, stream))
            return true;
    return false;
}

/* Whether an extent may hold no block. A block that is being freed counts as free: the driver may have freed it
 * already. `is_for_all`: only pieces that all streams may use; otherwise any stream may have finished unseen. */
static bool is_empty(const struct sg_range_map *free, const struct sg_range *extent, bool is_for_all)
{
    struct sg_range piece;
    uintptr_t at = extent->begin;
    while (sg_range_map_within(free, at, extent->end, &piece) && piece.begin == at &&
           (!is_for_all || piece.flags == SG_STREAM_DONE))
        at = piece.end;
    return at == extent->end;
}

void sg_pieces_forget_empty(struct sg_pieces *pieces, bool is_for_all)
{
    struct sg_range extent;
    for (uintptr_t at = 0;
         pieces->free != NULL && pieces->extents != NULL && sg_range_map_next(pieces->extents, at, &extent);
         at = extent.end) {
        if (!is_empty(pieces->free, &extent, is_for_all))
            continue;
        set(pieces, &pieces->free, &(struct sg_range){extent.begin, extent.end, SG_RANGE_NONE, 0, 0});
        if (pieces->extents != NULL)
            set(pieces, &pieces->extents, &(struct sg_range){extent.begin, extent.end, SG_RANGE_NONE, 0, 0});
    }
}

uint64_t sg_pieces_sure_bytes(const struct sg_pieces *pieces)
{
    struct sg_range extent;
    uint64_t certain = 0;
    if (pieces->free == NULL || pieces->extents == NULL)
        return 0;
    for (uintptr_t at = 0; sg_range_map_next(pieces->extents, at, &extent); at = extent.end)
        if (extent.kind == SG_RANGE_COUNTED && is_empty(pieces->free, &extent, true))
            certain += extent.end - extent.begin;
    return certain;
}

uint64_t sg_pieces_least_empty_bytes(const struct sg_pieces *pieces)
{
    struct sg_range extent;
    uint64_t least = UINT64_MAX;
    if (pieces->free == NULL || pieces->extents == NULL)
        return least;
    for (uintptr_t at = 0; sg_range_map_next(pieces->extents, at, &extent); at = extent.end)
        if (extent.end - extent.begin < least && is_empty(pieces->free, &extent, false))
            least = extent.end - extent.begin;
    return least;
}

uint64_t sg_pieces_bytes(const struct sg_pieces *pieces)
{
    return pieces->free != NULL ? pieces->free->counted_bytes : 0;
}
