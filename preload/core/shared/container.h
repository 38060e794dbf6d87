/*
 * container.h - what a process can see of the container that it runs in. The record keeps it after the process's end.
 */
#ifndef SG_PRELOAD_SHARED_CONTAINER_H
#define SG_PRELOAD_SHARED_CONTAINER_H

#include "sparkguard_abi.h"

/* Fills pid_namespace and container of the segment. Costs two calls of stat(2), and outside the machine's own
 * namespaces reads one or two small files. One thread at a time. */
void sg_container_describe(struct sg_segment *segment);

/* Inode of /proc/self/ns/pid outside all containers (PROC_PID_INIT_INO of Linux). */
#define SG_FIRST_PID_NAMESPACE UINT64_C(0xEFFFFFFC)

#endif
