/*
 * lock.c - see lock.h.
 */
#include "hooks/cuda/lock.h"

struct sg_lock sg_cuda_lock;
