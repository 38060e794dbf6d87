/*
 * files.h - shared mappings of files whose pages are memory (tmpfs, memfd): what is missing of such a file is promised once
 * on the machine, however many processes map it.
 *
 * A window is what was mapped: a file and a part of it. Windows of one process have numbers, which its ranges carry in their
 * flags (index.h), so that a scan can tell what is missing of each; the largest stand in the seat (struct sg_memory_file),
 * where the others see which promises are the same. Two windows that overlap without being equal are two promises: too much,
 * never too little.
 */
#ifndef SG_FILES_H
#define SG_FILES_H

#include "map_shape.h"
#include "sparkguard_abi.h"

#include <stdint.h>

/* A window's number, 1 or more; 0: there is none left, or the mapping is of no such file. Its bytes then count by
 * themselves. sg_files_entered must follow when the ranges carry it, or the mapping failed. Any thread. */
uint32_t sg_files_enter(const struct sg_map_shape *shape);
void sg_files_entered(uint32_t number);

/* Whether a number was ever given. Under sg_index_maps_lock. */
bool sg_files_has_any(void);

/* The same as flags of a range, and back. */
uint32_t sg_files_flags(uint32_t number);
uint32_t sg_files_number(uint32_t flags);

/* A scan: begin, then what is missing of each range that carries a number, then the sum of the windows' promises. Under the
 * decision lock. */
void sg_files_begin_scan(void);
void sg_files_add_missing(uint32_t number, uint64_t bytes);
uint64_t sg_files_promised_bytes(void);

/* What the seat shall show by the last scan: the largest of them. Returns how many. Under the decision lock. */
uint32_t sg_files_list(struct sg_memory_file file[SG_FILE_ROOM]);

#endif
