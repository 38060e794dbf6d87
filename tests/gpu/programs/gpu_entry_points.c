/*
 * gpu_entry_points.c - cuMemAlloc through one entry point to the driver.
 *
 *     gpu_entry_points ENTRY LARGE SMALL
 *
 * ENTRY is dlsym (on a handle of its own), address4 or address5 (cuGetProcAddress with four arguments, _v2 with five)
 * or entry_point (cudaGetDriverEntryPointByVersion). Prints large N, untouched N (1: the output is as it was), small N.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaTypedefs.h>

#include "gpu.h"

#include <dlfcn.h>
#include <string.h>

#define SENTINEL 0x5a5a5a5aULL

static PFN_cuMemAlloc_v3020 reach(const char *entry)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *found = NULL;
    if (!library)
        return NULL;
    if (strcmp(entry, "dlsym") == 0)
        found = dlsym(library, "cuMemAlloc_v2");
    else if (strcmp(entry, "address4") == 0)
        MUST(((PFN_cuGetProcAddress_v11030)dlsym(library, "cuGetProcAddress"))("cuMemAlloc", &found, 11030, 0));
    else if (strcmp(entry, "address5") == 0)
        MUST(
            ((PFN_cuGetProcAddress_v12000)dlsym(library, "cuGetProcAddress_v2"))("cuMemAlloc", &found, 12000, 0, NULL));
    else if (strcmp(entry, "entry_point") == 0)
        found = driver_function("cuMemAlloc", 12000);
    return (PFN_cuMemAlloc_v3020)found;
}

int main(int argc, char **argv)
{
    CUdeviceptr address = SENTINEL;
    if (argc != 4)
        return 2;
    MUST(cudaFree(NULL)); /* makes the context */
    PFN_cuMemAlloc_v3020 take = reach(argv[1]);
    if (!take)
        return 2;
    printf("large %d\n", (int)take(&address, strtoul(argv[2], NULL, 10)));
    printf("untouched %d\n", address == SENTINEL);
    printf("small %d\n", (int)take(&address, strtoul(argv[3], NULL, 10)));
    return 0;
}
