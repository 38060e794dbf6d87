/*
 * pairs.c - tight loops of one pair of calls, for `make bench`: pairs KIND COUNT [THREADS].
 *
 *   heap     malloc + free of 64 bytes
 *   large    malloc + free of 4 MiB
 *   map      mmap + munmap of 1 MiB
 *   cuda     cuMemAlloc + cuMemFree of 64 KiB on the simulated driver (SGSIM_BACKING=none)
 *   small    mmap + munmap of 512 KiB: a request below LARGE
 *   device   cuMemAlloc + cuMemFree of 64 MiB on the simulated driver
 *   refused  cuMemAlloc of 4 TiB, which the driver itself would refuse
 *   none     nothing: what starting the process costs
 *
 * Nothing is timed in here: the caller takes the CPU time of the whole process, and subtracts that of "none".
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static long count;
static const char *kind;

static void heap(size_t size)
{
    for (long i = 0; i < count; i++) {
        void *volatile block = malloc(size);
        free(block);
    }
}

static void map(size_t size)
{
    for (long i = 0; i < count; i++)
        munmap(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), size);
}

static void *look_up(void *driver, const char *name)
{
    void *function = dlsym(driver, name);
    if (function == NULL) {
        fprintf(stderr, "pairs: %s\n", dlerror());
        exit(1);
    }
    return function;
}

static void cuda(size_t size, int is_granted)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = look_up(driver, "cuInit");
    int (*retain)(void **, int) = look_up(driver, "cuDevicePrimaryCtxRetain");
    int (*set_current)(void *) = look_up(driver, "cuCtxSetCurrent");
    int (*allocate)(unsigned long long *, size_t) = look_up(driver, "cuMemAlloc_v2");
    int (*release)(unsigned long long) = look_up(driver, "cuMemFree_v2");
    void *context;
    if (init(0) || retain(&context, 0) || set_current(context))
        exit(1);
    for (long i = 0; i < count; i++) {
        unsigned long long ptr;
        if ((allocate(&ptr, size) == 0) != is_granted || (is_granted && release(ptr)))
            exit(1);
    }
}

static void *work(void *unused)
{
    if (strcmp(kind, "heap") == 0)
        heap(64);
    else if (strcmp(kind, "large") == 0)
        heap(4 << 20);
    else if (strcmp(kind, "map") == 0)
        map(1 << 20);
    else if (strcmp(kind, "small") == 0)
        map(512 << 10);
    else if (strcmp(kind, "cuda") == 0)
        cuda(65536, 1);
    else if (strcmp(kind, "device") == 0)
        cuda((size_t)64 << 20, 1);
    else if (strcmp(kind, "refused") == 0)
        cuda((size_t)4 << 40, 0);
    return unused;
}

int main(int argc, char **argv)
{
    kind = argc > 1 ? argv[1] : "none";
    count = argc > 2 ? atol(argv[2]) : 0;
    int threads = argc > 3 ? atoi(argv[3]) : 1;
    pthread_t thread[64];
    for (int i = 1; i < threads && i < 64; i++)
        pthread_create(&thread[i], NULL, work, NULL);
    work(NULL);
    for (int i = 1; i < threads && i < 64; i++)
        pthread_join(thread[i], NULL);
    return 0;
}
