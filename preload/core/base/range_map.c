/*
 * range_map.c - see range_map.h. A two-level sorted list: `order` lists the chunks in ascending order of address. Each
 * chunk holds its ranges in ascending order. A chunk in `order` is never empty.
 *
 * All functions use three primitives: insert one range, erase one range, split ranges at an address. After splits at
 * both bounds, an operation concerns whole ranges only.
 */
#include "base/range_map.h"

#include "base/syscall.h"

#include <string.h>
#include <sys/mman.h>

enum { CHUNK_BYTES = 4096, CHUNK_CAPACITY = (CHUNK_BYTES - 8) / (int)sizeof(struct sg_range) };

struct sg_range_chunk {
    uint32_t count;
    uint32_t reserved;
    struct sg_range item[CHUNK_CAPACITY];
};
_Static_assert(sizeof(struct sg_range_chunk) <= CHUNK_BYTES, "a chunk is at most a page");

/* A position in the list. At the end of the list `chunk` equals chunk_count. */
struct place {
    uint32_t chunk;
    uint32_t item;
};

/* The chunks of the pools before this one, and so the number of its first chunk. */
static uint32_t chunks_before(uint32_t pool)
{
    return ((1u << pool) - 1) * SG_RANGE_FIRST_CHUNKS;
}

static uint32_t pool_of(uint32_t number)
{
    return 31 - (uint32_t)__builtin_clz(number / SG_RANGE_FIRST_CHUNKS + 1);
}

static struct sg_range_chunk *chunk_numbered(const struct sg_range_map *ranges, uint32_t number)
{
    uint32_t pool = pool_of(number);
    return &ranges->pool[pool][number - chunks_before(pool)];
}

static struct sg_range_chunk *chunk_at(const struct sg_range_map *ranges, uint32_t chunk)
{
    return chunk_numbered(ranges, ranges->order[chunk]);
}

static bool is_end(const struct sg_range_map *ranges, struct place place)
{
    return place.chunk >= ranges->chunk_count;
}

static struct sg_range *range_at(const struct sg_range_map *ranges, struct place place)
{
    return &chunk_at(ranges, place.chunk)->item[place.item];
}

/* The first range that ends after `address`. */
static struct place find(const struct sg_range_map *ranges, uintptr_t address)
{
    uint32_t low = 0, high = ranges->chunk_count;
    while (low < high) { /* the first chunk whose last range ends after the address */
        uint32_t middle = (low + high) / 2;
        const struct sg_range_chunk *chunk = chunk_at(ranges, middle);
        if (chunk->item[chunk->count - 1].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    struct place place = {low, 0};
    if (is_end(ranges, place))
        return place;
    const struct sg_range_chunk *chunk = chunk_at(ranges, low);
    uint32_t first = 0, last = chunk->count;
    while (first < last) {
        uint32_t middle = (first + last) / 2;
        if (chunk->item[middle].end > address)
            last = middle;
        else
            first = middle + 1;
    }
    place.item = first;
    return place;
}

static int64_t length_of(const struct sg_range *range)
{
    return (int64_t)(range->end - range->begin);
}

/* The bytes of a range that are private, of MAP_NORESERVE or copies of a file's, and writable now. */
static int64_t open_length_of(const struct sg_range *range)
{
    uint32_t flags = range->flags & (SG_RANGE_COMMITTED | SG_RANGE_SHARED | SG_RANGE_SHUT);
    return range->kind == SG_RANGE_SPARSE && flags == SG_RANGE_COMMITTED ? length_of(range) : 0;
}

static uint64_t shut_length_of(const struct sg_range *range)
{
    return (range->flags & SG_RANGE_SHUT) != 0 ? (uint64_t)length_of(range) : 0;
}

static uint64_t inherited_length_of(const struct sg_range *range)
{
    bool is_inherited = range->kind == SG_RANGE_COUNTED &&
                        (range->flags & (SG_RANGE_INHERITED | SG_RANGE_SHARED)) == SG_RANGE_INHERITED;
    return is_inherited ? (uint64_t)length_of(range) : 0;
}

static int64_t cover(struct sg_range_map *shared, uint64_t begin, uint64_t end, int by);

/* Updates the sums: `piece` of a range was added (sign 1) or removed (-1), and with it `count` whole ranges. */
static void update_sums(struct sg_range_map *ranges, const struct sg_range *piece, int sign, int count)
{
    uint32_t site = piece->flags >> SG_RANGE_SITE_SHIFT & (SG_RANGE_SITES - 1);
    ranges->open_bytes += (uint64_t)(sign * open_length_of(piece));
    ranges->shut_bytes += (uint64_t)sign * shut_length_of(piece);
    ranges->inherited_bytes += (uint64_t)sign * inherited_length_of(piece);
    if (piece->kind != SG_RANGE_COUNTED)
        return;
    int64_t bytes = sign * length_of(piece), once = bytes;
    if (piece->source != 0 && ranges->shared != NULL)
        once = cover(ranges->shared, piece->source, sg_range_source_at(piece, piece->end), sign);
    ranges->counted_bytes += (uint64_t)once;
    if (site == 0)
        return;
    ranges->site[site].bytes += (uint64_t)bytes;
    ranges->site[site].count += (uint32_t)count;
    ranges->changed_sites |= 1u << site;
}

static size_t pool_bytes(uint32_t pool)
{
    return ((size_t)SG_RANGE_FIRST_CHUNKS << pool) * sizeof(struct sg_range_chunk);
}

/* Maps the pool that has the first chunk never used, if it is not there yet. False: all chunks are in use, or no memory
 * is left. */
static bool has_fresh_chunk(struct sg_range_map *ranges)
{
    if (ranges->pool_used >= SG_RANGE_CHUNKS)
        return false;
    uint32_t pool = pool_of(ranges->pool_used);
    if (ranges->pool[pool] == NULL) {
        void *fresh = sg_sys_mmap(NULL, pool_bytes(pool), PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        ranges->pool[pool] = sg_is_error(fresh) ? NULL : fresh;
    }
    return ranges->pool[pool] != NULL;
}

/* Inserts an empty chunk at `position` of the order. False: no chunk is left. */
static bool add_chunk(struct sg_range_map *ranges, uint32_t position)
{
    uint16_t fresh;
    if (ranges->free_count > 0)
        fresh = ranges->free_chunk[--ranges->free_count];
    else if (has_fresh_chunk(ranges))
        fresh = (uint16_t)ranges->pool_used++;
    else
        return false;
    memmove(&ranges->order[position + 1], &ranges->order[position],
            (ranges->chunk_count - position) * sizeof ranges->order[0]);
    ranges->order[position] = fresh;
    ranges->chunk_count++;
    chunk_numbered(ranges, fresh)->count = 0;
    return true;
}

static void erase(struct sg_range_map *ranges, struct place place)
{
    struct sg_range_chunk *chunk = chunk_at(ranges, place.chunk);
    const struct sg_range *range = &chunk->item[place.item];
    update_sums(ranges, range, -1, -1);
    chunk->count--;
    memmove(&chunk->item[place.item], &chunk->item[place.item + 1],
            (chunk->count - place.item) * sizeof chunk->item[0]);
    if (chunk->count > 0)
        return;
    ranges->free_chunk[ranges->free_count++] = ranges->order[place.chunk];
    ranges->chunk_count--;
    memmove(&ranges->order[place.chunk], &ranges->order[place.chunk + 1],
            (ranges->chunk_count - place.chunk) * sizeof ranges->order[0]);
}

/* Inserts a range that overlaps no other. */
static int insert(struct sg_range_map *ranges, struct sg_range range)
{
    struct place place = find(ranges, range.begin);
    if (is_end(ranges, place)) { /* after all others: at the end of the last chunk */
        if (ranges->chunk_count == 0 && !add_chunk(ranges, 0))
            return -ENOMEM;
        place.chunk = ranges->chunk_count - 1;
        place.item = chunk_at(ranges, place.chunk)->count;
    }
    struct sg_range_chunk *chunk = chunk_at(ranges, place.chunk);
    if (chunk->count == CHUNK_CAPACITY) {
        if (!add_chunk(ranges, place.chunk + 1))
            return -ENOMEM;
        struct sg_range_chunk *right = chunk_at(ranges, place.chunk + 1);
        uint32_t keep = CHUNK_CAPACITY / 2;
        right->count = CHUNK_CAPACITY - keep;
        memcpy(right->item, &chunk->item[keep], right->count * sizeof right->item[0]);
        chunk->count = keep;
        if (place.item > keep) {
            place.item -= keep;
            chunk = right;
        }
    }
    memmove(&chunk->item[place.item + 1], &chunk->item[place.item],
            (chunk->count - place.item) * sizeof chunk->item[0]);
    chunk->item[place.item] = range;
    chunk->count++;
    update_sums(ranges, &range, 1, 1);
    return 0;
}

/* Splits the range that contains `address` in its inside, if there is one, so that no range crosses `address`. */
static int split(struct sg_range_map *ranges, uintptr_t address)
{
    struct place place = find(ranges, address);
    if (is_end(ranges, place) || range_at(ranges, place)->begin >= address)
        return 0;
    struct sg_range *left = range_at(ranges, place);
    struct sg_range right = *left;
    right.begin = address;
    right.source = sg_range_source_at(left, address);
    update_sums(ranges, &right, -1, 0);
    left->end = address;
    return insert(ranges, right);
}

/* Joins the range that begins at `address` with the one that ends there, if their attributes are equal. */
static void join(struct sg_range_map *ranges, uintptr_t address)
{
    struct place at = find(ranges, address);
    if (address == 0 || is_end(ranges, at) || range_at(ranges, at)->begin != address)
        return;
    struct sg_range right = *range_at(ranges, at);
    struct place before = find(ranges, address - 1);
    struct sg_range *left = range_at(ranges, before);
    if (left->end != address || left->kind != right.kind || left->flags != right.flags ||
        sg_range_source_at(left, address) != right.source)
        return;
    erase(ranges, at); /* `at` comes after `before`, so `left` stays valid */
    left->end = right.end;
    update_sums(ranges, &right, 1, 0);
}

static int cut(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end)
{
    struct place first = find(ranges, begin);
    if (is_end(ranges, first) || range_at(ranges, first)->begin >= end)
        return 0;
    if (range_at(ranges, first)->begin == begin && range_at(ranges, first)->end == end) {
        erase(ranges, first);
        return 0;
    }
    int result = split(ranges, begin);
    if (result == 0)
        result = split(ranges, end);
    for (struct place place = find(ranges, begin); !is_end(ranges, place); place = find(ranges, begin)) {
        if (range_at(ranges, place)->begin >= end)
            break;
        erase(ranges, place);
    }
    return result;
}

int sg_range_map_set(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t kind, uint32_t flags)
{
    return sg_range_map_set_shared(ranges, begin, end, kind, flags, 0);
}

int sg_range_map_set_shared(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t kind, uint32_t flags,
                            uint64_t source)
{
    if (begin >= end)
        return 0;
    int result = cut(ranges, begin, end);
    if (kind == SG_RANGE_NONE)
        return result;
    int inserted = insert(ranges, (struct sg_range){begin, end, kind, flags, source});
    if (inserted != 0)
        return inserted;
    join(ranges, end);
    join(ranges, begin);
    return result;
}

/* Changes all ranges in [begin, end). `is_commit`: makes RESERVED ranges COUNTED, and marks SPARSE ones COMMITTED.
 * Removes the flags `without` and adds the flags `with`. */
static int change(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, bool is_commit, uint32_t without,
                  uint32_t with)
{
    int result = split(ranges, begin);
    if (result == 0)
        result = split(ranges, end);
    for (uintptr_t at = begin; result == 0 && at < end;) {
        struct place place = find(ranges, at);
        if (is_end(ranges, place) || range_at(ranges, place)->begin >= end)
            break;
        struct sg_range *range = range_at(ranges, place);
        uint64_t was_open = (uint64_t)open_length_of(range);
        if (is_commit && range->kind == SG_RANGE_RESERVED) {
            range->kind = SG_RANGE_COUNTED;
            update_sums(ranges, range, 1, 1);
            range->flags |= SG_RANGE_COMMITTED;
        } else if (is_commit && range->kind == SG_RANGE_SPARSE && (range->flags & SG_RANGE_COMMITTED) == 0) {
            range->flags =
                (range->flags | SG_RANGE_COMMITTED) & ~(uint32_t)SG_RANGE_INHERITED; /* no parent had pages there */
        }
        ranges->shut_bytes -= shut_length_of(range);
        ranges->inherited_bytes -= inherited_length_of(range);
        range->flags = (range->flags & ~without) | with;
        ranges->shut_bytes += shut_length_of(range);
        ranges->inherited_bytes += inherited_length_of(range);
        ranges->open_bytes += (uint64_t)open_length_of(range) - was_open;
        at = range->end;
        join(ranges, range->begin);
    }
    join(ranges, end);
    return result;
}

/* Maps the units [begin, end) once more (`by` 1) or once less (-1). Returns the bytes that are mapped for the first
 * time, or as a negative number those that are mapped no more. A unit for which memory ran out counts neither now nor
 * when it is unmapped. */
static int64_t cover(struct sg_range_map *shared, uint64_t begin, uint64_t end, int by)
{
    int64_t units = 0;
    if (split(shared, begin) != 0 || split(shared, end) != 0)
        return 0;
    for (uint64_t at = begin; at < end;) {
        struct place place = find(shared, at);
        struct sg_range *range = is_end(shared, place) ? NULL : range_at(shared, place);
        uint64_t next = range == NULL || range->begin > end ? end : range->begin > at ? range->begin : range->end;
        if (range != NULL && range->begin == at && by < 0 && range->flags == 1) {
            erase(shared, place);
            units -= (int64_t)(next - at);
        } else if (range != NULL && range->begin == at) {
            range->flags += (uint32_t)by;
            join(shared, at);
        } else if (by > 0 && insert(shared, (struct sg_range){at, next, SG_RANGE_COUNTED, 1, 0}) == 0) {
            units += (int64_t)(next - at);
            join(shared, at);
        }
        at = next;
    }
    join(shared, end);
    shared->is_changed = shared->is_changed || units != 0;
    return units * (int64_t)SG_SHARED_UNIT;
}

uint64_t sg_range_map_unmapped_bytes(const struct sg_range_map *ranges, uint64_t begin, uint64_t end)
{
    uint64_t units = end - begin;
    if (ranges->shared != NULL)
        units -= sg_range_map_bytes(ranges->shared, begin, end, SG_RANGE_COUNTED);
    return units * SG_SHARED_UNIT;
}

/* The number of units in [begin, end) that are mapped exactly once. */
static uint64_t mapped_once(const struct sg_range_map *shared, uint64_t begin, uint64_t end)
{
    struct sg_range range;
    uint64_t units = 0;
    for (uint64_t at = begin; sg_range_map_within(shared, at, end, &range); at = range.end)
        units += range.flags == 1 ? range.end - range.begin : 0;
    return units;
}

uint64_t sg_range_map_leaving_bytes(const struct sg_range_map *ranges, uintptr_t begin, uintptr_t end)
{
    struct sg_range range;
    uint64_t bytes = 0;
    for (uintptr_t at = begin; sg_range_map_within(ranges, at, end, &range); at = range.end)
        if (range.kind == SG_RANGE_COUNTED && (range.source == 0 || ranges->shared == NULL))
            bytes += range.end - range.begin;
        else if (range.kind == SG_RANGE_COUNTED)
            bytes += mapped_once(ranges->shared, range.source, sg_range_source_at(&range, range.end)) * SG_SHARED_UNIT;
    return bytes;
}

uint64_t sg_range_map_coming_bytes(const struct sg_range_map *ranges, uintptr_t begin, uintptr_t end)
{
    struct sg_range range;
    uint64_t bytes = 0;
    for (uintptr_t at = begin; sg_range_map_within(ranges, at, end, &range); at = range.end)
        if (range.kind == SG_RANGE_RESERVED && range.source == 0)
            bytes += range.end - range.begin;
        else if (range.kind == SG_RANGE_RESERVED)
            bytes += sg_range_map_unmapped_bytes(ranges, range.source, sg_range_source_at(&range, range.end));
    return bytes;
}

int sg_range_map_commit(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end)
{
    return change(ranges, begin, end, true, 0, 0);
}

int sg_range_map_flag(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t flags)
{
    return change(ranges, begin, end, false, 0, flags);
}

int sg_range_map_unflag(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t flags)
{
    return change(ranges, begin, end, false, flags, 0);
}

int sg_range_map_shut(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, bool is_shut)
{
    struct sg_range range;
    int result = 0;
    for (uintptr_t at = begin; sg_range_map_within(ranges, at, end, &range); at = range.end) {
        bool was_writable = range.kind == SG_RANGE_COUNTED || (range.flags & SG_RANGE_COMMITTED) != 0;
        uint32_t state = range.flags & (SG_RANGE_SHARED | SG_RANGE_SHUT), other = is_shut ? 0 : SG_RANGE_SHUT;
        if (was_writable && state == other)
            result |=
                change(ranges, range.begin, range.end, false, is_shut ? 0 : SG_RANGE_SHUT, is_shut ? SG_RANGE_SHUT : 0);
    }
    return result;
}

int sg_range_map_move(struct sg_range_map *ranges, uintptr_t from, uintptr_t to, uintptr_t bytes, bool is_copy)
{
    int result = split(ranges, from);
    if (result == 0)
        result = split(ranges, from + bytes);
    if (result == 0)
        result = cut(ranges, to, to + bytes);
    for (uintptr_t at = from; result == 0 && at < from + bytes;) {
        struct place place = find(ranges, at);
        if (is_end(ranges, place) || range_at(ranges, place)->begin >= from + bytes)
            break;
        struct sg_range range = *range_at(ranges, place);
        at = range.end;
        if (!is_copy)
            erase(ranges, place);
        range.begin = range.begin - from + to;
        range.end = range.end - from + to;
        result = insert(ranges, range); /* joined below: a join now could absorb a range that is still to be moved */
    }
    join(ranges, to);
    join(ranges, to + bytes);
    join(ranges, from + bytes);
    join(ranges, from);
    return result;
}

uint64_t sg_range_map_bytes(const struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t kind)
{
    uint64_t bytes = 0;
    struct sg_range range;
    for (uintptr_t at = begin; sg_range_map_within(ranges, at, end, &range); at = range.end)
        if (range.kind == kind)
            bytes += range.end - range.begin;
    return bytes;
}

bool sg_range_map_next(const struct sg_range_map *ranges, uintptr_t address, struct sg_range *out)
{
    struct place place = find(ranges, address);
    if (is_end(ranges, place))
        return false;
    *out = *range_at(ranges, place);
    return true;
}

bool sg_range_map_within(const struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, struct sg_range *out)
{
    if (begin >= end || !sg_range_map_next(ranges, begin, out) || out->begin >= end)
        return false;
    if (out->begin < begin) {
        out->source = sg_range_source_at(out, begin);
        out->begin = begin;
    }
    out->end = out->end < end ? out->end : end;
    return true;
}

void sg_range_map_clear(struct sg_range_map *ranges)
{
    ranges->counted_bytes = ranges->open_bytes = ranges->shut_bytes = ranges->inherited_bytes = 0;
    ranges->chunk_count = ranges->pool_used = ranges->free_count = 0;
}

void sg_range_map_destroy(struct sg_range_map *ranges)
{
    for (uint32_t pool = 0; pool < SG_RANGE_POOLS; pool++)
        if (ranges->pool[pool] != NULL)
            (void)sg_sys_munmap(ranges->pool[pool], pool_bytes(pool));
    memset(ranges, 0, sizeof *ranges);
}
