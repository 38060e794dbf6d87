/*
 * range_map.h - ordered index of address ranges: what the program has mapped, and how each part counts.
 *
 * A hash cannot answer partial munmap, MAP_FIXED over several mappings, a splitting mremap or mprotect of a part.
 * Neighbours of equal attributes are merged, as the kernel merges its own.
 *
 * Shared memory. A range of a memory file has several addresses when it is mapped several times, and counts once.
 * `source` tells where in which file a range begins, in units of SG_SHARED_UNIT bytes: file << SG_SHARED_SHIFT |
 * unit. A second index, `shared`, has these units as its addresses. The flags of its ranges say how often each unit
 * is mapped.
 *
 * Not thread-safe: every call under one struct sg_lock (hook_map's), which blocks signals. Memory: one lazily touched
 * mapping, no malloc. Cost: two binary searches and a memmove of at most one 4 KiB chunk; for shared memory twice that.
 */
#ifndef SG_PRELOAD_BASE_RANGE_MAP_H
#define SG_PRELOAD_BASE_RANGE_MAP_H

#include "sparkguard_abi.h"

#include <stdbool.h>
#include <stdint.h>

enum sg_range_kind {
    SG_RANGE_NONE = 0,
    SG_RANGE_RESERVED = 1, /* would count, but is not writable yet */
    SG_RANGE_COUNTED = 2,  /* part of the domain "mapped" */
    SG_RANGE_SPARSE = 3,   /* MAP_NORESERVE: only what is resident is reported */
};

enum sg_range_flag {
    SG_RANGE_SETTLED = 1u << 0,   /* promises nothing: was fully resident once, given back, or huge pages */
    SG_RANGE_SHARED = 1u << 1,    /* its pages are not anonymous ones of this process */
    SG_RANGE_INHERITED = 1u << 2, /* what is missing of it is the parent's promise (registry.h) */
    SG_RANGE_COMMITTED = 1u << 3, /* of SPARSE: it is or was writable; of COUNTED: it was reserved before it was */
    SG_RANGE_UNFORKED = 1u << 4,  /* MADV_DONTFORK: a forked child does not have it */
    SG_RANGE_WIPED = 1u << 5,     /* MADV_WIPEONFORK: of its pages a forked child has none */
    /* Bits 16 to 20: the number of its call site (callsites.h). */
    SG_RANGE_SITE_SHIFT = 16,
    SG_RANGE_SITES = 32,
};

struct sg_range {
    uintptr_t begin;
    uintptr_t end;
    uint32_t kind;
    uint32_t flags;
    uint64_t source; /* of `begin`; 0: the memory has no other name */
};

#define SG_SHARED_UNIT SG_FILE_UNIT_BYTES
#define SG_SHARED_SHIFT 32 /* bits of a unit's place in its file: 16 TiB */

struct sg_range_chunk;

enum { SG_RANGE_CHUNKS = 8192 };

/* All zero is a valid empty index. */
struct sg_range_map {
    struct sg_range_chunk *pool;
    struct sg_range_map *shared; /* units of shared memory that COUNTED ranges map, or NULL */
    uint64_t counted_bytes;      /* sum of the COUNTED ranges, of shared memory each unit once */
    struct {
        uint64_t bytes;
        uint32_t count;
    } site[SG_RANGE_SITES]; /* the COUNTED ranges that have a call site, each with its whole length */
    bool is_changed;        /* of `shared`: units have come or gone since somebody cleared it */
    uint32_t changed_sites; /* a bit for each, until somebody clears it */
    uint32_t chunk_count;   /* in use, in order */
    uint32_t pool_used;     /* ever used */
    uint32_t free_count;
    uint16_t order[SG_RANGE_CHUNKS];
    uint16_t free_chunk[SG_RANGE_CHUNKS];
};

/* What follows returns 0, or -ENOMEM when no chunk is left: the index may then lack a piece it should hold. */

/* Makes [begin, end) what `kind` and `flags` say, whatever was there; NONE: forgets it. */
int sg_range_map_set(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t kind, uint32_t flags);

/* The same for a range of shared memory. Nothing else has the index `shared` of `ranges`. */
int sg_range_map_set_shared(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t kind, uint32_t flags,
                            uint64_t source);

/* How much less would count if [begin, end) were forgotten, and how much more if its RESERVED parts were COUNTED. */
uint64_t sg_range_map_leaving_bytes(const struct sg_range_map *ranges, uintptr_t begin, uintptr_t end);
uint64_t sg_range_map_coming_bytes(const struct sg_range_map *ranges, uintptr_t begin, uintptr_t end);

/* Of the units [begin, end) of shared memory those that no COUNTED range maps, in bytes. */
uint64_t sg_range_map_unmapped_bytes(const struct sg_range_map *ranges, uint64_t begin, uint64_t end);

/* Where in its file the byte at `address` of the range lies. */
static inline uint64_t sg_range_source_at(const struct sg_range *range, uintptr_t address)
{
    return range->source == 0 ? 0 : range->source + (address - range->begin) / SG_SHARED_UNIT;
}

/* Turns the RESERVED parts of [begin, end) into COUNTED ones, and marks these and the SPARSE ones as COMMITTED. */
int sg_range_map_commit(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end);

/* Adds flags to all that is known in [begin, end). */
int sg_range_map_flag(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t flags);

/* Takes them away. */
int sg_range_map_unflag(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t flags);

/* Carries what is known of [from, from + bytes) to `to`, over whatever was there; it stays at `from` too if `is_copy`. */
int sg_range_map_move(struct sg_range_map *ranges, uintptr_t from, uintptr_t to, uintptr_t bytes, bool is_copy);

/* Bytes of one kind in [begin, end). */
uint64_t sg_range_map_bytes(const struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t kind);

/* The first range that ends behind `address`; false if there is none. */
bool sg_range_map_next(const struct sg_range_map *ranges, uintptr_t address, struct sg_range *out);

/* The first piece of what is known in [begin, end), cut to it; false if there is none. The next one is behind its end. */
bool sg_range_map_within(const struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, struct sg_range *out);

/* Forgets everything and keeps the memory. Of an index without call sites. */
void sg_range_map_clear(struct sg_range_map *ranges);

void sg_range_map_destroy(struct sg_range_map *ranges);

#endif
