/*
 * cuda_cancel AMOUNT - threads that are cancelled while they take CUDA memory: the request to end waits until they let
 * it, so nothing is lost of what they were given.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "heap_case.h"

#include <pthread.h>

static CUcontext context;

static void give_back(void *address)
{
    CHECK_EQUAL(cuMemFree_v2(*(CUdeviceptr *)address), CUDA_SUCCESS);
}

static void *be_cancelled(void *unused)
{
    CUdeviceptr address = 0, none = 0;
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    pthread_cancel(pthread_self());
    CHECK_EQUAL(cuMemAlloc_v2(&address, 8 * MIB), CUDA_SUCCESS);
    pthread_cleanup_push(give_back, &address);
    CHECK_EQUAL(cuMemAlloc_v2(&none, (size_t)1 << 45), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemAllocManaged(&none, 8 * MIB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFree_v2(none), CUDA_SUCCESS);
    pthread_testcancel();
    fail(__FILE__, __LINE__, "went on", 0, 1);
    pthread_cleanup_pop(1);
    return unused;
}

int main(int count, char **arguments)
{
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    live_begin();
    for (int i = count > 1 ? atoi(arguments[1]) : 1; i > 0; i--) {
        pthread_t thread;
        void *result = NULL;
        CHECK_EQUAL(pthread_create(&thread, NULL, be_cancelled, NULL), 0);
        CHECK_EQUAL(pthread_join(thread, &result), 0);
        CHECK(result == PTHREAD_CANCELED);
        CHECK_EQUAL(live(SG_DOMAIN_DEVICE) + live(SG_DOMAIN_MANAGED), 0);
        CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    }
    return 0;
}
