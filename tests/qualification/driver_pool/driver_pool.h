/*
 * driver_pool.h - what the kernel module and the stand-in libcuda.so.1 agree on.
 */
#ifndef DRIVER_POOL_H
#define DRIVER_POOL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define DRIVER_POOL_DEVICE "/dev/driver_pool"

/* The bytes to take, rounded up to whole blocks, and the number that gives them back. */
struct driver_pool_request {
    __u64 bytes;
    __u64 number;
};

/* ENOMEM: the kernel has no more blocks. What was taken until then is in the pool. */
#define DRIVER_POOL_TAKE _IOWR('P', 1, struct driver_pool_request)
/* EINVAL: this open file holds nothing of that number. */
#define DRIVER_POOL_GIVE _IOW('P', 2, __u64)

#endif
