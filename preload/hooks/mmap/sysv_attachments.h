/*
 * sysv_attachments.h - where System V segments are attached, as the kernel finds it out for shmdt, which is told no
 * size.
 *
 * An attachment is known by the address of its first byte, whether that is still mapped or not: shmdt(base) takes all
 * pieces that lie as far behind `base` as they do in the segment, of the attachment that has the lowest of them. mremap
 * moves pieces, with a base of their own then; what is mapped over one cuts it. What was unmapped otherwise may still
 * be listed: nothing is there.
 *
 * Every call under sg_tracker_maps_lock. Cost: nothing without attachments, else a walk over all pieces.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_SYSV_ATTACHMENTS_H
#define SG_PRELOAD_HOOKS_MMAP_SYSV_ATTACHMENTS_H

#include <stdbool.h>
#include <stdint.h>

struct sg_sysv_attached {
    uintptr_t begin;
    uintptr_t end;
    uintptr_t base;
    uint64_t number; /* of the shmat */
};

/* A new attachment at [begin, end). False: no memory to remember it by. */
bool sg_sysv_attached_add(uintptr_t begin, uintptr_t end);

/* Something else is at [begin, end) now. */
void sg_sysv_attached_cut(uintptr_t begin, uintptr_t end);

/* What is known of [from, from + bytes) is at `to`, over whatever was there; at `from` too if `is_copy`. */
void sg_sysv_attached_move(uintptr_t from, uintptr_t to, uint64_t bytes, bool is_copy);

/* What ends at `begin` goes on to `end` now, over whatever was there. */
void sg_sysv_attached_grow(uintptr_t begin, uintptr_t end);

/* In a forked child whose parent was changing the list: it is lost. */
void sg_sysv_attached_forget(void);

/* The next piece that shmdt(base) detaches, which is forgotten by that; false if there is none. *number: 0 for the
 * first. */
bool sg_sysv_attached_take(uintptr_t base, uint64_t *number, struct sg_sysv_attached *out);

#endif
