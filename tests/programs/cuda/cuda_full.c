/*
 * cuda_full - with a heap that is full up to the last small request, the driver still gets the host memory that it
 * needs in a call, and the program none.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "heap_case.h"

int main(void)
{
    CUcontext context;
    CUdeviceptr address = 0;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&address, 8 * MIB), CUDA_SUCCESS);
    live_begin();
    for (size_t size = 500000; size > 50000; size /= 2)
        for (void *volatile block = malloc(size); block != NULL;)
            block = malloc(size);
    uint64_t before = live(SG_DOMAIN_HEAP);
    CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    void *volatile block = malloc(500000);
    CHECK(block == NULL && errno == ENOMEM);
    CHECK_EQUAL(cuMemFree_v2(address), CUDA_SUCCESS);
    CHECK_EQUAL(live(SG_DOMAIN_DEVICE), 0);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    return 0;
}
