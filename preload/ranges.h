/*
 * ranges.h - ordered index of address ranges: what the program has mapped, and how each part counts.
 *
 * A hash cannot answer partial munmap, MAP_FIXED over several mappings, a splitting mremap or mprotect of a part.
 * Neighbours of equal attributes are merged, as the kernel merges its own.
 *
 * Not thread-safe: every call under one struct sg_lock (hook_map's), which blocks signals. Memory: one lazily touched
 * mapping, no malloc. Cost: two binary searches and a memmove of at most one 4 KiB chunk.
 */
#ifndef SG_RANGES_H
#define SG_RANGES_H

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
    SG_RANGE_INHERITED = 1u << 2, /* what is missing of it is the parent's promise (seats.h) */
    SG_RANGE_COPIED = 1u << 3,    /* a private mapping of a memory file: what is there are the pages that were copied */
    SG_RANGE_UNFORKED = 1u << 4,  /* MADV_DONTFORK: a forked child does not have it */
    SG_RANGE_WIPED = 1u << 5,     /* MADV_WIPEONFORK: of its pages a forked child has none */
    /* Bits 8 to 15: the number of its memory file (files.h), 0: none; bits 16 to 20: that of its call site (sites.h). */
    SG_RANGE_SITE_SHIFT = 16,
    SG_RANGE_SITES = 32,
};

struct sg_range {
    uintptr_t begin;
    uintptr_t end;
    uint32_t kind;
    uint32_t flags;
};

struct sg_range_chunk;

enum { SG_RANGE_CHUNKS = 4096 };

/* All zero is a valid empty index. */
struct sg_ranges {
    struct sg_range_chunk *pool;
    uint64_t counted_bytes; /* sum of the COUNTED ranges */
    struct {
        uint64_t bytes;
        uint32_t count;
    } site[SG_RANGE_SITES]; /* the same of those that have a call site */
    uint32_t changed_sites; /* a bit for each, until somebody clears it */
    uint32_t chunk_count;   /* in use, in order */
    uint32_t pool_used;     /* ever used */
    uint32_t free_count;
    uint16_t order[SG_RANGE_CHUNKS];
    uint16_t free_chunk[SG_RANGE_CHUNKS];
};

/* What follows returns 0, or -ENOMEM when no chunk is left: the index may then lack a piece it should hold. */

/* Makes [begin, end) what `kind` and `flags` say, whatever was there; NONE: forgets it. */
int sg_ranges_set(struct sg_ranges *ranges, uintptr_t begin, uintptr_t end, uint32_t kind, uint32_t flags);

/* Turns the RESERVED parts of [begin, end) into COUNTED ones. */
int sg_ranges_commit(struct sg_ranges *ranges, uintptr_t begin, uintptr_t end);

/* Adds flags to all that is known in [begin, end). */
int sg_ranges_flag(struct sg_ranges *ranges, uintptr_t begin, uintptr_t end, uint32_t flags);

/* Takes them away. */
int sg_ranges_unflag(struct sg_ranges *ranges, uintptr_t begin, uintptr_t end, uint32_t flags);

/* Carries what is known of [from, from + bytes) to `to`, over whatever was there; it stays at `from` too if `is_copy`. */
int sg_ranges_move(struct sg_ranges *ranges, uintptr_t from, uintptr_t to, uintptr_t bytes, bool is_copy);

/* Bytes of one kind in [begin, end). */
uint64_t sg_ranges_bytes(const struct sg_ranges *ranges, uintptr_t begin, uintptr_t end, uint32_t kind);

/* The first range that ends behind `address`; false if there is none. */
bool sg_ranges_next(const struct sg_ranges *ranges, uintptr_t address, struct sg_range *out);

/* The first piece of what is known in [begin, end), cut to it; false if there is none. The next one is behind its end. */
bool sg_ranges_within(const struct sg_ranges *ranges, uintptr_t begin, uintptr_t end, struct sg_range *out);

void sg_ranges_destroy(struct sg_ranges *ranges);

#endif
