/*
 * cuda_meminfo.c - asks how much memory there is, through one entry point, and then for exactly that.
 *
 *     cuda_meminfo ENTRY KIND
 *
 * ENTRY is linked, dlsym (on a handle of its own), address4 or address5 (cuGetProcAddress with four arguments, _v2 with
 * five), or runtime (cudaMemGetInfo). KIND is what is asked for: device, managed or pinned. Prints "key value" lines:
 * result, free, total: the answer; device_total: cuDeviceTotalMem_v2's; exact: the result of a request of `free` bytes,
 * which is given back; free_again, total_again; more: the result of a request of 2 MiB more than that. Nothing is
 * printed, so nothing allocated, in between.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MORE ((size_t)2 << 20)

typedef CUresult (*question)(size_t *, size_t *);

static question reach(const char *entry)
{
    void *found = NULL;
    question ask;
    if (strcmp(entry, "runtime") == 0)
        return NULL;
    if (strcmp(entry, "linked") == 0)
        return cuMemGetInfo_v2;
    if (strcmp(entry, "dlsym") == 0)
        found = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "cuMemGetInfo_v2");
    else if (strcmp(entry, "address4") == 0)
        cuGetProcAddress("cuMemGetInfo", &found, 3020, 0);
    else
        cuGetProcAddress_v2("cuMemGetInfo", &found, 13000, 0, NULL);
    memcpy(&ask, &found, sizeof ask);
    return ask;
}

static int take_and_give(const char *kind, size_t size)
{
    CUdeviceptr address = 0;
    void *host = NULL;
    int result;
    if (strcmp(kind, "pinned") == 0) {
        result = (int)cuMemHostAlloc(&host, size, 0);
        if (result == 0)
            cuMemFreeHost(host);
        return result;
    }
    result = strcmp(kind, "managed") == 0 ? (int)cuMemAllocManaged(&address, size, CU_MEM_ATTACH_GLOBAL)
                                          : (int)cuMemAlloc_v2(&address, size);
    if (result == 0)
        cuMemFree_v2(address);
    return result;
}

int main(int argc, char **argv)
{
    size_t left[2] = {0, 0}, total[2] = {0, 0}, device_total = 0;
    if (argc != 3 || cudaFree(NULL) != cudaSuccess) /* makes the context */
        return 2;
    question ask = reach(argv[1]);
    int result = ask ? (int)ask(&left[0], &total[0]) : (int)cudaMemGetInfo(&left[0], &total[0]);
    int exact = take_and_give(argv[2], left[0]);
    int again = ask ? (int)ask(&left[1], &total[1]) : (int)cudaMemGetInfo(&left[1], &total[1]);
    int more = take_and_give(argv[2], left[1] + MORE);
    cuDeviceTotalMem_v2(&device_total, 0);
    printf("result %d\nfree %zu\ntotal %zu\ndevice_total %zu\n", result, left[0], total[0], device_total);
    printf("exact %d\nagain %d\nfree_again %zu\ntotal_again %zu\nmore %d\n", exact, again, left[1], total[1], more);
    return 0;
}
