/*
 * containers.h - what containers have promised that share no registry with this process.
 *
 * A container that sparkguard-runtime gives a directory of its own finds a file SG_FIGURES_NAME there, of the size of
 * struct sg_figures. On the host the same file is mounted in SG_PROMISES_DIR, which is root's: the container changes
 * the bytes, and cannot put anything else in its place. Beside it a file of root's, with a point before its name, says
 * in its first line which cgroup the container or its pod is in, and in the second its name.
 *
 * A guarded program in the container writes the sums over its registry; one on the host reads them. Nobody locks or
 * maps the file, and a reader opens it for reading alone, so that neither side can hold up the other. Figures older
 * than SG_FIGURES_AGE_NS do not count: those of a container that has ended, or is stopped, end by themselves.
 *
 * A container is believed up to what is left of the hard limits of its cgroup and of all above it, each of which bounds
 * all containers below it together. Without a limit below the machine's memory it is believed up to what it uses, by
 * the kernel's figure: a lie takes as much memory as it keeps from others.
 *
 * All functions need the decision lock.
 */
#ifndef SG_PRELOAD_ADMIT_CONTAINERS_H
#define SG_PRELOAD_ADMIT_CONTAINERS_H

#include "admit/snapshot.h"

#include <stdbool.h>
#include <stdint.h>

/* The containers as read last. */
struct sg_containers {
    uint64_t promised_bytes;
    uint64_t most_bytes; /* (atomic) of the container that counts with the most */
    char most_name[64];  /* its name: root's word, of any characters */
};
extern struct sg_containers sg_containers;

/* Reads what is due: every 250 ms, or if `is_closely` every 5 ms, and only so often that it takes 2 % of the time, or
 * 20 %. One reading takes 10 ms of the processor at most; containers that it does not reach do not count. Call it
 * before the kernel's figures are read: bytes move from promises to these. `snapshot`: the last one, for the machine's
 * size. Costs one open each time where there is no such folder. */
void sg_containers_read(struct sg_snapshot *snapshot, bool is_closely);

/* A container's words about itself, and the part of its promise that its cgroups allow. */
struct sg_container_figures {
    const char *name;        /* root's word, of any characters */
    uint64_t limit_bytes;    /* of the job that spoke last; 0: none */
    uint64_t live_bytes;     /* of that job */
    uint64_t promised_bytes; /* as it counts; smaller ones than 1 MiB do not */
};
typedef void sg_container_visitor(const struct sg_container_figures *container, void *data);

/* Reads at once, and tells the visitor of each container that has spoken in time. Decides nothing. For the tools. */
void sg_containers_visit(struct sg_snapshot *snapshot, sg_container_visitor *visitor, void *data);

/* Whether this process may be in a container that has such a file: on the host nobody sums up for it. */
bool sg_containers_may_publish(void);

/* Writes this registry's sums where the host reads them, if sg_containers_may_publish() and the file is there: at most
 * every 100 ms, unless the promises have changed by 64 MiB. True, once a second at most: they were written, and
 * those of dead owners are to be looked for. */
bool sg_containers_publish(uint64_t limit_bytes, uint64_t live_bytes, uint64_t promised_bytes);

#endif
