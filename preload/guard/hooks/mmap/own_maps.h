/*
 * own_maps.h - this process's mappings, as the kernel lists them in /proc/self/maps.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_OWN_MAPS_H
#define SG_PRELOAD_HOOKS_MMAP_OWN_MAPS_H

#include <stdbool.h>
#include <stdint.h>

struct sg_own_mapping {
    uintptr_t begin, end;
    char rights[5]; /* "rwxp": p private, s shared */
    char path[12];  /* how the path or name begins; empty: anonymous */
};

/* Calls `visit` for each mapping, by rising addresses, until it returns false. Leaves out what lies above the address
 * space of programs. Returns false if the list cannot be read to its end. No lock, no memory; any thread, also in
 * signal handlers. */
bool sg_own_maps_visit(bool (*visit)(void *context, const struct sg_own_mapping *mapping), void *context);

#endif
