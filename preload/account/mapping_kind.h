/*
 * mapping_kind.h - how a mapping counts, told from the arguments of mmap or shmat. Any thread; no state.
 */
#ifndef SG_PRELOAD_ACCOUNT_MAPPING_KIND_H
#define SG_PRELOAD_ACCOUNT_MAPPING_KIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sg_mapping_kind {
    uint32_t kind;          /* enum sg_range_kind */
    uint32_t flags;         /* enum sg_range_flag */
    uint64_t bytes;         /* in whole pages, of the size that is used */
    bool is_judged;         /* its pages come out of MemAvailable */
    uint64_t source;        /* where which shared memory begins there (range_map.h), unless it is sparse; else 0 */
    uint64_t missing_bytes; /* at most so much of it is not there yet */
};

struct sg_mapping_kind sg_mapping_kind_of(size_t length, int prot, int flags, int fd, uint64_t offset);

/* Of a System V segment that is to be attached; of kind SG_RANGE_NONE where the kernel tells nothing about it. */
struct sg_mapping_kind sg_mapping_kind_of_segment(int id, int flags);

#endif
