/*
 * cuda_race.c - threads that ask for CUDA memory at the same instant.
 *
 *     cuda_race once  CALL SIZE ROUNDS    two threads ask at once, where one fits: prints how often both or none got it
 *     cuda_race apart CALL SIZE ROUNDS    two threads take and give back by themselves, where both fit: prints refusals
 *
 * CALL is cuMemAlloc_v2, cuMemHostAlloc or cuMemAllocManaged. Prints "key value" lines.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUcontext context;
static pthread_barrier_t begin, end;
static const char *call;
static size_t size;
static unsigned rounds;
static CUresult results[2];
static unsigned long refused, others;

static CUresult take(CUdeviceptr *address)
{
    if (strcmp(call, "cuMemHostAlloc") == 0)
        return cuMemHostAlloc((void **)address, size, 0);
    if (strcmp(call, "cuMemAllocManaged") == 0)
        return cuMemAllocManaged(address, size, CU_MEM_ATTACH_GLOBAL);
    return cuMemAlloc_v2(address, size);
}

static CUresult give(CUdeviceptr address)
{
    return strcmp(call, "cuMemHostAlloc") == 0 ? cuMemFreeHost((void *)address) : cuMemFree_v2(address);
}

static void note(CUresult result)
{
    __atomic_add_fetch(result == CUDA_ERROR_OUT_OF_MEMORY ? &refused : &others, result != CUDA_SUCCESS,
                       __ATOMIC_RELAXED);
}

static void *ask_once(void *number)
{
    CUdeviceptr address = 0;
    size_t index = (size_t)number;
    cuCtxSetCurrent(context);
    for (unsigned i = 0; i < rounds; i++) {
        pthread_barrier_wait(&begin);
        results[index] = take(&address);
        pthread_barrier_wait(&end);
        if (results[index] == CUDA_SUCCESS)
            note(give(address));
        pthread_barrier_wait(&end);
    }
    return NULL;
}

static void *ask_apart(void *unused)
{
    CUdeviceptr address = 0;
    (void)unused;
    cuCtxSetCurrent(context);
    for (unsigned i = 0; i < rounds; i++) {
        CUresult result = take(&address);
        note(result);
        if (result == CUDA_SUCCESS)
            note(give(address));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    int is_once = strcmp(argv[1], "once") == 0;
    pthread_t threads[2];
    unsigned both = 0, none = 0;
    call = argv[2];
    size = strtoull(argv[3], NULL, 0);
    rounds = (unsigned)atoi(argv[4]);
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS)
        return 1;
    pthread_barrier_init(&begin, NULL, 3);
    pthread_barrier_init(&end, NULL, 3);
    for (size_t i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, is_once ? ask_once : ask_apart, (void *)i);
    for (unsigned i = 0; is_once && i < rounds; i++) {
        pthread_barrier_wait(&begin);
        pthread_barrier_wait(&end);
        both += results[0] == CUDA_SUCCESS && results[1] == CUDA_SUCCESS;
        none += results[0] != CUDA_SUCCESS && results[1] != CUDA_SUCCESS;
        pthread_barrier_wait(&end);
    }
    for (size_t i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("both %u\nnone %u\nrefused %lu\nothers %lu\n", both, none, refused, others);
    return 0;
}
