/*
 * gpu_room.c - asks how much there is, and then for that.
 *
 *     gpu_room [SIZE]     SIZE: instead of what cudaMemGetInfo says is free
 *
 * Prints free N and total N of cudaMemGetInfo, exact N, which is what cudaMalloc of that much answered (given back),
 * and more N, what 64 MiB more answered.
 */
#include "gpu.h"

static int take_and_give(size_t size)
{
    void *pointer;
    int result = (int)cudaMalloc(&pointer, size);
    if (result == 0)
        MUST(cudaFree(pointer));
    return result;
}

int main(int argc, char **argv)
{
    size_t left = 0, total = 0;
    MUST(take_and_give(MIB)); /* makes the context, and whatever a first allocation brings */
    MUST(cudaMemGetInfo(&left, &total));
    size_t size = argc > 1 ? strtoul(argv[1], NULL, 10) : left;
    int exact = take_and_give(size);
    int more = take_and_give(size + 64 * MIB);
    printf("free %zu\ntotal %zu\nexact %d\nmore %d\n", left, total, exact, more);
    return 0;
}
