/*
 * range_map.h - ordered index of the address ranges that the program has mapped, and how each range counts.
 *
 * A hash table would not do: munmap, mprotect and mremap may change a part of a mapping, and MAP_FIXED may replace
 * several. Adjacent ranges with equal attributes are merged, as the kernel merges its own.
 *
 * Shared memory: a range of a memory file that is mapped several times counts once. `source` says where in which file a
 * range begins, in units of SG_SHARED_UNIT bytes: file << SG_SHARED_SHIFT | unit. A second index, `shared`, has these
 * units as its addresses. The flags of its ranges say how often each unit is mapped.
 *
 * Not thread-safe: the owner of an index protects it with one struct sg_lock, which blocks signals. Memory: mappings
 * made as needed, of 64 KiB first and each as large as all before it, because a program may lock all its mappings
 * (mlockall); no malloc. Cost: two binary searches and a memmove of at most one 4 KiB chunk; twice
 * that for shared memory.
 */
#ifndef SG_PRELOAD_BASE_RANGE_MAP_H
#define SG_PRELOAD_BASE_RANGE_MAP_H

#include "sparkguard_abi.h"

#include <stdbool.h>
#include <stdint.h>

enum sg_range_kind {
    SG_RANGE_NONE = 0,
    SG_RANGE_RESERVED = 1, /* not writable yet; would count if it were */
    SG_RANGE_COUNTED = 2,  /* part of the domain "mapped" */
    SG_RANGE_SPARSE = 3,   /* MAP_NORESERVE, private of a file: only resident pages are reported */
};

enum sg_range_flag {
    SG_RANGE_SETTLED = 1u << 0,   /* promises nothing: was fully resident once, was given back, or has huge pages */
    SG_RANGE_SHARED = 1u << 1,    /* its pages are not private anonymous pages of this process */
    SG_RANGE_INHERITED = 1u << 2, /* its missing pages are the parent's promise (registry.h) */
    SG_RANGE_COMMITTED = 1u << 3, /* SPARSE: is or was writable; COUNTED: was RESERVED before */
    SG_RANGE_UNFORKED = 1u << 4,  /* MADV_DONTFORK: a forked child does not have the range */
    SG_RANGE_COPIED = 1u << 6,    /* SPARSE: private, of a file; only pages that were copied count */
    SG_RANGE_WIPED = 1u << 5,     /* MADV_WIPEONFORK: a forked child has the range without pages */
    SG_RANGE_SHUT = 1u << 7,      /* private, was writable, and is not now */
    /* Bits 16 to 20: the number of its call site (callsites.h). */
    SG_RANGE_SITE_SHIFT = 16,
    SG_RANGE_SITES = 32,
};

struct sg_range {
    uintptr_t begin;
    uintptr_t end;
    uint32_t kind;
    uint32_t flags;
    uint64_t source; /* of `begin`; 0: not shared memory */
};

#define SG_SHARED_UNIT SG_FILE_UNIT_BYTES
#define SG_SHARED_SHIFT 32 /* bits of a unit's number in its file: files of up to 16 TiB */

struct sg_range_chunk;

enum { SG_RANGE_FIRST_CHUNKS = 16, SG_RANGE_POOLS = 9, SG_RANGE_CHUNKS = SG_RANGE_FIRST_CHUNKS * 511 };

/* All zero is a valid empty index. */
struct sg_range_map {
    struct sg_range_chunk *pool[SG_RANGE_POOLS]; /* the first has SG_RANGE_FIRST_CHUNKS, each next twice as many */
    struct sg_range_map *shared;                 /* units of shared memory that COUNTED ranges map, or NULL */
    uint64_t counted_bytes;                      /* sum of the COUNTED ranges; each unit of shared memory counts once */
    uint64_t open_bytes;                         /* sum of the SPARSE ranges that are private and writable now */
    struct {
        uint64_t bytes;
        uint32_t count;
    } site[SG_RANGE_SITES];   /* sums of the COUNTED ranges of each call site, each range with its whole length */
    uint64_t shut_bytes;      /* sum of the ranges that are SHUT */
    uint64_t inherited_bytes; /* sum of the COUNTED ranges that are private and INHERITED */
    bool is_changed;          /* in `shared`: units were added or removed; the user clears it */
    uint32_t changed_sites;   /* bit n: site[n] has changed; the user clears it */
    uint32_t chunk_count;     /* chunks in use, the length of `order` */
    uint32_t pool_used;       /* chunks of the pools ever used */
    uint32_t free_count;
    uint16_t order[SG_RANGE_CHUNKS];
    uint16_t free_chunk[SG_RANGE_CHUNKS];
};

/* The functions that return int return 0, or -ENOMEM when no chunk is left. After -ENOMEM the index may lack a part of
 * the range. */

/* Gives [begin, end) this kind and these flags, and replaces all earlier ranges there. SG_RANGE_NONE removes them. */
int sg_range_map_set(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t kind, uint32_t flags);

/* As sg_range_map_set for a range of shared memory that begins at `source`. The index ranges->shared must belong to
 * `ranges` alone. */
int sg_range_map_set_shared(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t kind, uint32_t flags,
                            uint64_t source);

/* The bytes by which counted_bytes would fall if [begin, end) were removed. */
uint64_t sg_range_map_leaving_bytes(const struct sg_range_map *ranges, uintptr_t begin, uintptr_t end);

/* The bytes by which counted_bytes would rise if the RESERVED parts of [begin, end) became COUNTED. */
uint64_t sg_range_map_coming_bytes(const struct sg_range_map *ranges, uintptr_t begin, uintptr_t end);

/* The bytes of the units [begin, end) of shared memory that no COUNTED range maps. */
uint64_t sg_range_map_unmapped_bytes(const struct sg_range_map *ranges, uint64_t begin, uint64_t end);

/* The source of `address`, which is in the range or at its end; 0 if the range is not shared memory. */
static inline uint64_t sg_range_source_at(const struct sg_range *range, uintptr_t address)
{
    return range->source == 0 ? 0 : range->source + (address - range->begin) / SG_SHARED_UNIT;
}

/* Makes the RESERVED parts of [begin, end) COUNTED, and marks these and the SPARSE parts as COMMITTED. */
int sg_range_map_commit(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end);

/* Add flags to all ranges in [begin, end), or remove them. */
int sg_range_map_flag(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t flags);
int sg_range_map_unflag(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t flags);

/* Marks the ranges of [begin, end) that are private and were writable as SHUT, or no longer so. */
int sg_range_map_shut(struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, bool is_shut);

/* Moves the ranges of [from, from + bytes) to `to`, and replaces all ranges there. If `is_copy`, they stay at `from`
 * too. */
int sg_range_map_move(struct sg_range_map *ranges, uintptr_t from, uintptr_t to, uintptr_t bytes, bool is_copy);

/* Bytes of one kind in [begin, end). */
uint64_t sg_range_map_bytes(const struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, uint32_t kind);

/* Finds the first range that ends after `address`. False: there is none. */
bool sg_range_map_next(const struct sg_range_map *ranges, uintptr_t address, struct sg_range *out);

/* Finds the first range in [begin, end), cut to these bounds. False: there is none. The next call begins at
 * out->end. */
bool sg_range_map_within(const struct sg_range_map *ranges, uintptr_t begin, uintptr_t end, struct sg_range *out);

/* Removes all ranges and keeps the memory. Only for an index without call sites, whose sums are not cleared. */
void sg_range_map_clear(struct sg_range_map *ranges);

/* Removes all ranges and unmaps the memory. */
void sg_range_map_destroy(struct sg_range_map *ranges);

#endif
