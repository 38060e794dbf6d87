/*
 * container.h - what a process can see of the container that it runs in. The record keeps it after the process's end.
 */
#ifndef SG_PRELOAD_SHARED_CONTAINER_H
#define SG_PRELOAD_SHARED_CONTAINER_H

#include "sparkguard_abi.h"

/* Fills pid_namespace and container of the segment. Costs two calls of stat(2), and outside the machine's own
 * namespaces reads one or two small files. One thread at a time. */
void sg_container_describe(struct sg_segment *segment);

#endif
