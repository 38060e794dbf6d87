/*
 * mapping_kind.h - decides from the arguments of mmap or shmat how a mapping counts. Any thread.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_MAPPING_KIND_H
#define SG_PRELOAD_HOOKS_MMAP_MAPPING_KIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sg_mapping_kind {
    uint32_t kind;   /* enum sg_range_kind */
    uint32_t flags;  /* enum sg_range_flag */
    uint64_t bytes;  /* whole pages, of the page size that the mapping uses */
    bool is_judged;  /* false: huge pages that the call does not take, or cannot */
    bool is_huge;    /* the call takes the pages: those of the huge page pool, then missing_bytes of ordinary memory */
    uint64_t source; /* shared memory: file and place where the mapping begins (range_map.h); else, or sparse: 0 */
    uint64_t missing_bytes;     /* upper bound of the bytes that have no pages yet */
    uint64_t file_bytes;        /* what a lock takes from MemAvailable: page cache, missing pages of a memory file */
    bool is_partly_allocated;   /* a part of the file has pages: sg_mmap_settle_allocated */
    uint64_t memory_file_bytes; /* size of the memory file, of ordinary pages, that is mapped shared; 0: none */
    uint64_t allocated_bytes;   /* what the file system has allocated of it */
};

/* The kind of a mapping, from the arguments of mmap; `offset` in bytes. SG_RANGE_NONE: the mapping does not count. Call
 * it before mmap. */
struct sg_mapping_kind sg_mapping_kind_of(size_t length, int prot, int flags, int fd, uint64_t offset);

/* The page size that the flags of mmap or shmget ask for with MAP_HUGETLB or SHM_HUGETLB. */
uint64_t sg_mapping_huge_page_bytes(int flags);

/* Of `bytes` in huge pages, those that the pool lacks. *is_possible becomes false if the kernel may not take them from
 * ordinary memory. */
uint64_t sg_mapping_surplus_bytes(uint64_t bytes, uint64_t page_bytes, bool *is_possible);

/* Bytes of a part of a memory file that have pages: resident, swapped out, or taken by fallocate and not touched yet,
 * which no other method shows. Returns false where the kernel does not tell (before Linux 6.5, in a sandbox, or for a
 * file of another user). Costs 3 ms per GiB of pages of 4 KiB. */
bool sg_mapping_file_bytes(int fd, uint64_t offset, uint64_t bytes, uint64_t *allocated);

/* The kind of a System V segment, from the arguments of shmat. SG_RANGE_NONE: the kernel tells nothing about the
 * segment. Call it before shmat. */
struct sg_mapping_kind sg_mapping_kind_of_segment(int id, int flags);

#endif
