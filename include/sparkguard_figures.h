/*
 * sparkguard_figures.h - what a container that has a directory of its own tells the host: the sums over its registry.
 *
 * sparkguard-runtime makes the file SG_FIGURES_NAME in that directory, of the size of struct sg_figures, and mounts it
 * at SG_PROMISES_DIR/ID on the host. Beside that, SG_PROMISES_DIR/.ID has two lines of root's: the cgroup of the
 * container, or of its pod, below the mount of cgroups, and the container's name. preload/core/admit/containers.h says
 * who reads and writes the figures.
 *
 * Decisions use the promises alone. The limit and the live bytes are for sparkguard-report on the host.
 */
#ifndef SPARKGUARD_FIGURES_H
#define SPARKGUARD_FIGURES_H

#include <stdint.h>

#define SG_FIGURES_NAME "promises"
#define SG_PROMISES_DIR "/run/sparkguard/promises"
#define SG_FIGURES_MAGIC UINT64_C(0x5255474946475053) /* "SPGFIGUR" in memory order */
#define SG_FIGURES_VERSION 1u
#define SG_FIGURES_AGE_NS UINT64_C(5000000000) /* older ones do not count */
struct sg_figures {
    uint64_t magic;
    uint32_t version;
    uint32_t reserved;
    uint64_t time_ns;        /* the writer's CLOCK_MONOTONIC; in a time namespace another one than the host's */
    uint64_t limit_bytes;    /* of the job that wrote this; 0: none */
    uint64_t live_bytes;     /* of that job */
    uint64_t promised_bytes; /* of all processes: promised or in flight */
    uint64_t more[2];        /* 0 */
};
_Static_assert(sizeof(struct sg_figures) == 64, "a container's figures keep their layout");

#endif
