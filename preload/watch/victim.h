/*
 * victim.h - the second line of defence: who has to go when something no call announces has taken the machine below its
 * floor.
 *
 * Every process's watchdog sees the same registry entries and comes to the same answer, and ends only its own process.
 * What counts as left are the kernel's figures alone, and of constraints with a hard limit: nobody is ended for a
 * promise, nor for memory.high. Under the decision lock.
 */
#ifndef SG_PRELOAD_WATCH_VICTIM_H
#define SG_PRELOAD_WATCH_VICTIM_H

#include <stdbool.h>
#include <stdint.h>

struct sg_danger {
    bool is_below_floor; /* of the machine or of one of our cgroups */
    bool is_ours;        /* and this process is the one to go */
    uint64_t identity;   /* which it is, 0: the machine */
    uint64_t left_bytes; /* of what is below its floor; else of what is nearest to it */
    uint64_t floor_bytes;
    uint64_t reserve_bytes;
    uint64_t holds_bytes; /* what this process would give back */
    uint64_t zero_in_ns;  /* when nothing is left, by the rate of a continuous fall (fall.h); UINT64_MAX: no fall */
};

/* Says in our registry entry what this process holds: anonymous memory grown since it was forked, copies of what it was
 * forked with, pinned and device memory. */
void sg_victim_publish(void);

/* Looks at the machine and ranks the registry entries. Below the floor what a forked child holds is measured before,
 * now and then. */
void sg_victim_look(struct sg_danger *danger);

/* In a forked child: what there is belongs to the parent. */
void sg_victim_refork(void);

#endif
