/*
 * containers.h - what the processes of containers have promised that share no registry with this one.
 *
 * sparkguard-runtime gives each container, or pod, a directory of its own in SG_CONTAINERS_DIR, which is root's. The
 * registry in it is the container's: its processes can write anything there. So only sums are taken from it, by reading
 * and never by mapping, of a bounded part of a regular file that has one name. What runtime_own_publish() has written
 * beside the directory is root's: it names the container's cgroup. No container counts with more than that cgroup still
 * allows it to take (memory.max less memory.current). A container without such a limit may take all of the machine
 * by writing to memory. What such containers promise counts up to half of what the machine has left above the
 * reserve: so they get what they were granted in most cases, and one that lies leaves others half of what there is.
 *
 * A container is read every 100 ms at most, before a refusal every 5 ms, and only so often that reading it takes 2 % of
 * the time: it can make that slow, by locks. Costs one stat every 100 ms where there is no container. All functions
 * need the decision lock.
 */
#ifndef SG_PRELOAD_ADMIT_APART_CONTAINERS_H
#define SG_PRELOAD_ADMIT_APART_CONTAINERS_H

#include "admit/snapshot.h"

#include <stdbool.h>
#include <stdint.h>

enum { SG_CONTAINERS_MOST = 64 }; /* of more, those that the folder names first count */

/* Reads what is due. Call it before the kernel's figures are read: bytes move from promises to these.
 * `is_closely`: before a refusal. */
void sg_containers_look(bool is_closely);

/* Adds up what the living processes of a container have promised or have in flight, by an open registry of theirs. */
uint64_t sg_containers_read(int fd, uint64_t file_bytes);

/* The bytes that containers have promised, as read last; `machine`: the constraint of the machine. */
uint64_t sg_containers_promised(const struct sg_constraint *machine);

#endif
