/*
 * sysv_attachments.h - the list of attached System V segments. shmdt gets no size; this list finds what it detaches, as
 * the kernel does.
 *
 * An attachment is known by its base, the address of its first byte, mapped or not. shmdt(base) detaches all pieces
 * that lie at the same distance from `base` as from the start of the segment. If several attachments have that base, it
 * takes the one with the lowest piece. mremap moves pieces and gives them a new base. A mapping placed over a piece
 * cuts it. A piece that was unmapped in another way may still be listed; the range map has nothing there.
 *
 * Call all functions under sg_tracker_maps_lock. Without attachments they cost nothing; otherwise they walk the list.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_SYSV_ATTACHMENTS_H
#define SG_PRELOAD_HOOKS_MMAP_SYSV_ATTACHMENTS_H

#include <stdbool.h>
#include <stdint.h>

struct sg_sysv_attached {
    uintptr_t begin;
    uintptr_t end;
    uintptr_t base;
    uint64_t number; /* counts the calls of shmat */
};

/* Adds an attachment at [begin, end). Returns false if there is no memory for the list. */
bool sg_sysv_attached_add(uintptr_t begin, uintptr_t end);

/* Removes [begin, end) from the list: something else is mapped there now. */
void sg_sysv_attached_cut(uintptr_t begin, uintptr_t end);

/* Moves the pieces of [from, from + bytes) to `to`, in place of what was listed there. With `is_copy` they also stay at
 * `from`. */
void sg_sysv_attached_move(uintptr_t from, uintptr_t to, uint64_t bytes, bool is_copy);

/* Extends the pieces that end at `begin` up to `end`, in place of what was listed there. */
void sg_sysv_attached_grow(uintptr_t begin, uintptr_t end);

/* Drops the list, in a forked child whose parent was changing it at the fork. The memory of the list is not freed. */
void sg_sysv_attached_forget(void);

/* Removes the next piece that shmdt(base) detaches from the list and stores it in *out. Returns false if there is none.
 * Set *number to 0 before the first call; it then holds the attachment's number. */
bool sg_sysv_attached_take(uintptr_t base, uint64_t *number, struct sg_sysv_attached *out);

#endif
