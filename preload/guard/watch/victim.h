/*
 * victim.h - victim selection: which process ends when memory that no call announced has taken the machine below its
 * floor.
 *
 * Each process's watchdog reads the same registry entries, computes the same victim, and ends only its own process.
 * Victim selection uses only the kernel's figures, and only constraints with a hard limit: no process ends for a
 * promise, or for memory.high.
 *
 * All functions need the decision lock, except where noted.
 */
#ifndef SG_PRELOAD_WATCH_VICTIM_H
#define SG_PRELOAD_WATCH_VICTIM_H

#include <stdbool.h>
#include <stdint.h>

struct sg_danger {
    bool is_below_floor; /* the constraint is below its floor */
    bool is_ours;        /* and this process is the victim */
    uint64_t identity;   /* of the constraint; 0: the machine */
    uint64_t left_bytes; /* headroom of the constraint: one below its floor, or else the one nearest to it */
    uint64_t floor_bytes;
    uint64_t reserve_bytes;
    uint64_t holds_bytes; /* what this process would give back by ending */
    uint64_t zero_in_ns;  /* until nothing is left at the rate of a continuous fall (fall.h); UINT64_MAX: no fall */
};

/* Publishes in the registry entry what this process holds: anonymous memory grown since its fork, copies of pages that
 * it was forked with, pinned and device memory. */
void sg_victim_publish(void);

/* Takes a snapshot and ranks the registry entries. Below the floor a forked child first measures from time to time how
 * much of its memory is its own, and publishes that. */
void sg_victim_refresh(struct sg_danger *danger);

/* In a forked child: its present memory belongs to the parent. Without the lock. */
void sg_victim_atfork_child(void);

#endif
