/*
 * gpu_measure.c - measures what docs/assumptions.md says of a driver, one line of "key value" each. It judges nothing.
 *
 *     gpu_measure
 *
 * integrated N         CU_DEVICE_ATTRIBUTE_INTEGRATED
 * same_pointers N      1: cuGetProcAddress answers the driver's exported function
 * context_bytes N      by how much MemAvailable fell when the context was made
 * pooled_bytes N       how much cudaMalloc gave before MemAvailable fell: what a driver with pools had kept
 * fall_bytes N         by how much it fell for the next SIZE bytes, read when the call has returned
 * back_ms N            until MemAvailable has 7/8 of them again after cudaFree; -1: not within 3 s
 * managed_seen_bytes N what mincore shows of SIZE bytes of managed memory after a prefetch to the GPU
 * managed_fall_bytes N by how much MemAvailable fell for that
 * info_ns N            one cudaMemGetInfo
 */
#include "gpu.h"

#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SIZE (256 * MIB)
#define MOST_BLOCKS 1024

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* A driver with pools serves from them first, so that nothing falls until they are empty. */
static void measure_device_memory(int is_pooled)
{
    static void *pointers[MOST_BLOCKS];
    int last = -1;
    long long before, least;
    do {
        before = available_bytes();
        MUST(cudaMalloc(&pointers[++last], SIZE));
        least = available_bytes();
    } while (is_pooled && before - least < (long long)SIZE / 2 && last + 1 < MOST_BLOCKS);
    printf("pooled_bytes %zu\nfall_bytes %lld\n", (size_t)last * SIZE, before - least);
    MUST(cudaFree(pointers[last]));
    long long begin = now_ns(), enough = least + (before - least) / 8 * 7;
    long long until = begin + back_ms_most() * 1000000LL;
    while (available_bytes() < enough && now_ns() < until)
        usleep(1000); /* poll: MemAvailable */
    printf("back_ms %lld\n", available_bytes() >= enough ? (now_ns() - begin) / 1000000 : -1);
    while (last-- > 0)
        MUST(cudaFree(pointers[last]));
}

static void measure_managed_memory(void)
{
    void *pointer;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), seen = 0;
    unsigned char *pages = malloc(SIZE / page);
    MUST(cudaMallocManaged(&pointer, SIZE, cudaMemAttachGlobal));
    long long before = available_bytes();
    MUST(driver(cuMemPrefetchAsync, 8000)((CUdeviceptr)pointer, SIZE, 0, NULL));
    MUST(cudaDeviceSynchronize());
    if (pages && mincore(pointer, SIZE, pages) == 0)
        for (size_t i = 0; i < SIZE / page; i++)
            seen += (pages[i] & 1) * page;
    printf("managed_seen_bytes %zu\nmanaged_fall_bytes %lld\n", seen, before - available_bytes());
    MUST(cudaFree(pointer));
    free(pages);
}

int main(void)
{
    int integrated = 0;
    long long before = available_bytes();
    MUST(cudaFree(NULL)); /* makes the context */
    printf("context_bytes %lld\n", before - available_bytes());
    MUST(driver(cuDeviceGetAttribute, 2000)(&integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0));
    printf("integrated %d\n", integrated);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *exported = library ? dlsym(library, "cuMemAlloc_v2") : NULL;
    printf("same_pointers %d\n", exported && exported == driver_function("cuMemAlloc", 3020));
    measure_device_memory(integrated && has_pools());
    measure_managed_memory();
    long long begin = now_ns();
    for (int i = 0; i < 100; i++)
        (void)free_bytes();
    printf("info_ns %lld\n", (now_ns() - begin) / 100);
    return 0;
}
