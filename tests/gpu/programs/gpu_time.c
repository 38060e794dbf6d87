/*
 * gpu_time.c - how long an allocation takes.
 *
 *     gpu_time SIZE COUNT     COUNT times cudaMalloc and cudaFree of SIZE bytes; prints nanoseconds N, for one pair
 */
#include "gpu.h"

#include <time.h>

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int argc, char **argv)
{
    void *pointer;
    if (argc != 3)
        return 2;
    size_t size = strtoul(argv[1], NULL, 10);
    long count = strtol(argv[2], NULL, 10);
    MUST(cudaMalloc(&pointer, size));
    MUST(cudaFree(pointer));
    long long start = now();
    for (long i = 0; i < count; i++) {
        MUST(cudaMalloc(&pointer, size));
        MUST(cudaFree(pointer));
    }
    printf("nanoseconds %lld\n", (now() - start) / count);
    return 0;
}
