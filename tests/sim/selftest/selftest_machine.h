/*
 * selftest_machine.h - scenarios of selftest.c on a fake machine of their own: page cache, several processes, late
 * frees, contexts, touched managed memory, calls that are held. Included by selftest.c.
 */
#ifndef SGSIM_SELFTEST_MACHINE_H
#define SGSIM_SELFTEST_MACHINE_H

#include <fcntl.h>
#include <signal.h>
#include <time.h>

#define MACHINE_TEXT \
    "MemTotal:     100000 kB\nMemFree:       20480 kB\nMemAvailable:  81920 kB\n" \
    "Buffers: 0 kB\nCached:        65536 kB\nSwapCached:    5 kB\nSwapFree:       5120 kB\n" \
    "AnonPages:     15360 kB\nMlocked:           0 kB\nShmem:             0 kB\n"
static const char plain_text[] = MACHINE_TEXT,
                  cma_text[] = MACHINE_TEXT "CmaTotal:          0 kB\nCmaFree:        8192 kB\n";
static const char *machine_text = plain_text;
static char machine_path[96];

/* Before the first driver call: a machine of 80 MiB, of which 60 are page cache. */
static void make_machine(void)
{
    snprintf(machine_path, sizeof machine_path, "%s/%s.meminfo", scratch, scenario_name);
    FILE *file = fopen(machine_path, "we");
    CHECK(file && fputs(machine_text, file) >= 0 && fclose(file) == 0);
    setenv("SGSIM_MEMINFO", machine_path, 1);
}

static void end_machine(void)
{
    char books[112];
    snprintf(books, sizeof books, "%s.machine", machine_path);
    unlink(machine_path);
    unlink(books);
    remove_processes(machine_path);
}

static long long machine(const char *what)
{
    long long bytes = sgsim_machine_bytes(machine_path, what);
    return bytes % (long long)MIB == 0 ? bytes / (long long)MIB : -9999;
}

static void test_reclaim(void)
{
    CUdeviceptr one, two, three;
    size_t left, total;
    char text[256];
    make_machine();
    start();
    OK(cuMemGetInfo_v2(&left, &total));
    CHECK(left == 20 * MIB && total > 121 * GIB); /* MemFree, not MemAvailable */
    OK(cuMemAlloc_v2(&one, 15 * MIB));
    CHECK(machine("free") == 5 && machine("available") == 65 && machine("cached") == 64);
    OK(cuMemAlloc_v2(&two, 15 * MIB)); /* 10 MiB of it were cache */
    CHECK(machine("free") == 0 && machine("available") == 50 && machine("cached") == 54);
    read_file(machine_path, text, sizeof text);
    CHECK(strstr(text, "MemFree:           0 kB\nMemAvailable:  51200 kB\nBuffers: 0 kB\nCached:        55296 kB\n"
                       "SwapCached:    5 kB\n"));
    OK(cuMemFree_v2(two)); /* the cache does not come back */
    CHECK(machine("free") == 15 && machine("available") == 65 && machine("cached") == 54);
    FAILS(cuMemAlloc_v2(&three, 66 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    sgsim_machine_move(machine_path, "cached", 5 * (long long)MIB);
    CHECK(machine("free") == 10 && machine("available") == 65 && machine("cached") == 59);
    sgsim_machine_move(machine_path, "cached", -59 * (long long)MIB);
    CHECK(machine("free") == 69 && machine("available") == 65 && machine("cached") == 0);
    sgsim_machine_move(machine_path, "other", 40 * (long long)MIB);
    CHECK(machine("free") == 29 && machine("available") == 25 && machine("least_available") == 25);
    sgsim_machine_move(machine_path, "other", -40 * (long long)MIB);
    sgsim_machine_move(machine_path, "least_available", 0);
    CHECK(machine("least_available") == 65 && machine("taken") == 15 && machine("nonsense") == -9999);
    end_machine();
}

/* SGSIM_RECLAIM=no */
static void test_no_reclaim(void)
{
    CUdeviceptr pointer;
    make_machine();
    start();
    FAILS(cuMemAlloc_v2(&pointer, 21 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    FAILS(cuMemHostAlloc((void **)&pointer, 21 * MIB, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(machine("cached") == 64 && sgsim_live_bytes("total") == 0);
    sgsim_machine_move(machine_path, "cached", -8 * (long long)MIB);
    OK(cuMemAlloc_v2(&pointer, 21 * MIB));
    CHECK(machine("free") == 7 && machine("cached") == 56);
    end_machine();
}

/* A child that takes `size` of the machine and says so through a pipe; then it waits for its end. */
static pid_t tenant(size_t size, int is_exiting)
{
    int pipe_ends[2];
    char said = 0;
    OK(pipe(pipe_ends));
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr pointer;
        start();
        OK(cuMemAlloc_v2(&pointer, size));
        CHECK(write(pipe_ends[1], "x", 1) == 1);
        close_range(3, ~0U, 0); /* its place is not a descriptor's */
        if (is_exiting)
            exit(0);
        for (;;)
            pause();
    }
    close(pipe_ends[1]);
    CHECK(read(pipe_ends[0], &said, 1) == 1 && said == 'x');
    close(pipe_ends[0]);
    return child;
}

static void test_tenants(void)
{
    int status;
    make_machine(); /* this process makes no driver call before it forks */
    pid_t one = tenant(10 * MIB, 0), two = tenant(20 * MIB, 0);
    CHECK(sgsim_settle(machine_path) == 2);
    CHECK(machine("available") == 50 && machine("taken") == 30);
    kill(one, SIGKILL);
    waitpid(one, &status, 0);
    CHECK(sgsim_settle(machine_path) == 1 && machine("available") == 60);
    pid_t three = tenant(5 * MIB, 1);
    waitpid(three, &status, 0);
    CHECK(status == 0 && machine("available") == 60 && machine("least_available") == 50);
    CUdeviceptr pointer;
    start();
    OK(cuMemAlloc_v2(&pointer, MIB));
    kill(two, SIGKILL);
    waitpid(two, &status, 0);
    OK(cuMemAlloc_v2(&pointer, MIB)); /* whoever comes next pays back */
    CHECK(machine("available") == 78 && sgsim_settle(machine_path) == 1);
    CHECK(sgsim_settle("/no/such/meminfo") == -1);
    end_machine();
}

static long long elapsed_ms(const struct timespec *begin)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - begin->tv_sec) * 1000LL + (now.tv_nsec - begin->tv_nsec) / 1000000;
}

/* How often it looks must not show in the number of checks. */
static void wait_for_late_frees(void)
{
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (machine("late") != 0 && elapsed_ms(&begin) < 30000)
        ;
    CHECK(machine("late") == 0);
}

/* SGSIM_LATE_FREE=100 */
static void test_late_free(void)
{
    CUdeviceptr pointer;
    struct timespec begin;
    make_machine();
    start();
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    clock_gettime(CLOCK_MONOTONIC, &begin);
    OK(cuMemFree_v2(pointer));
    CHECK((machine("available") == 70 && machine("late") == 10) || elapsed_ms(&begin) >= 100);
    wait_for_late_frees();
    CHECK(elapsed_ms(&begin) >= 100 && machine("available") == 80);
    for (int i = 0; i < 100; i++) { /* more than there are places for */
        OK(cuMemAlloc_v2(&pointer, MIB / 4));
        OK(cuMemFree_v2(pointer));
    }
    wait_for_late_frees();
    CHECK(machine("available") == 80);
    end_machine();
}

/* SGSIM_CHUNK=2M: what the machine shows is what was taken, in whole chunks. */
static void test_chunks(void)
{
    CUdeviceptr small[4], large;
    make_machine();
    start();
    for (int i = 0; i < 3; i++)
        OK(cuMemAlloc_v2(&small[i], MIB));
    CHECK(sgsim_live_bytes("device") == 3 * MIB && sgsim_live_bytes("pages") == 4 * MIB && machine("available") == 76);
    OK(cuMemAlloc_v2(&small[3], 1));
    CHECK(sgsim_live_bytes("pages") == 4 * MIB);
    OK(cuMemAlloc_v2(&large, MIB + 1));
    CHECK(sgsim_live_bytes("device") == 4 * MIB + 2 && sgsim_live_bytes("pages") == 6 * MIB &&
          machine("available") == 74);
    OK(cuMemFree_v2(large));
    OK(cuMemFree_v2(small[2])); /* the last byte keeps its chunk */
    CHECK(sgsim_live_bytes("pages") == 4 * MIB && machine("available") == 76);
    OK(cuMemFree_v2(small[3]));
    CHECK(sgsim_live_bytes("pages") == 2 * MIB && machine("available") == 78);
    FAILS(cuMemAlloc_v2(&large, 79 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree_v2(small[0]));
    OK(cuMemFree_v2(small[1]));
    CHECK(sgsim_live_bytes("pages") == 0 && machine("available") == 80);
    end_machine();
}

/* SGSIM_POOL=keep */
static void test_driver_pool(void)
{
    CUdeviceptr pointer, managed;
    int status;
    make_machine();
    pid_t other = tenant(5 * MIB, 0);
    start();
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    OK(cuMemFree_v2(pointer));
    CHECK(machine("available") == 65 && machine("kept") == 10);
    OK(cuMemAlloc_v2(&pointer, 6 * MIB));
    CHECK(machine("available") == 65 && machine("kept") == 4);
    OK(cuMemFree_v2(pointer));
    OK(cuMemAllocManaged(&managed, 2 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(sgsim_touch(managed, 2 * MIB));
    CHECK(machine("available") == 63 && machine("kept") == 10);
    OK(cuMemFree_v2(managed));
    CHECK(machine("available") == 65 && machine("kept") == 10);
    kill(other, SIGKILL);
    waitpid(other, &status, 0);
    CHECK(sgsim_settle(machine_path) == 0 && machine("kept") == 15 && machine("available") == 65);
    end_machine();
}

/* SGSIM_CONTEXT=8M */
static void test_context_cost(void)
{
    CUcontext context, other;
    CUdevResource resource;
    CUdevResourceDesc desc;
    CUgreenCtx green;
    unsigned int flags;
    int active;
    make_machine();
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxSetFlags_v2(0, 4)); /* makes no context */
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(flags == 4 && active == 0 && machine("available") == 80);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuDevicePrimaryCtxRetain(&context, 0)); /* costs nothing more */
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 1 && machine("available") == 72 && sgsim_live_bytes("context") == 8 * MIB);
    OK(cuCtxCreate_v4(&other, NULL, 0, 0));
    CHECK(machine("available") == 64);
    OK(cuCtxDestroy_v2(other));
    CHECK(machine("available") == 72);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK(machine("available") == 72);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 0 && machine("available") == 80);
    OK(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevResourceGenerateDesc(&desc, &resource, 1));
    FAILS(cuGreenCtxCreate(&green, NULL, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuGreenCtxCreate(&green, desc, 3, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_ERROR_INVALID_DEVICE);
    OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM)); /* retains the primary one */
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 1 && machine("available") == 72);
    OK(cuGreenCtxDestroy(green));
    FAILS(cuGreenCtxDestroy(green), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(machine("available") == 80);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK(machine("available") == 80);
    end_machine();
}

static void test_touch(void)
{
    CUdeviceptr pointer, device;
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                  nowhere = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 7};
    make_machine();
    start();
    OK(cuMemAlloc_v2(&device, MIB));
    OK(cuMemAllocManaged(&pointer, 30 * MIB, CU_MEM_ATTACH_GLOBAL));
    CHECK(machine("available") == 79);
    OK(sgsim_touch(pointer, 4 * MIB));
    OK(sgsim_touch(pointer + 2 * MIB, MIB)); /* is there */
    CHECK(machine("available") == 75);
    FAILS(sgsim_touch(pointer + 2 * MIB, 29 * MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(sgsim_touch(device, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPrefetchAsync(pointer, 6 * MIB, 0, NULL));
    CHECK(machine("available") == 73);
    OK(cuMemPrefetchAsync_ptsz(pointer, 7 * MIB, CU_DEVICE_CPU, NULL));
    OK(cuMemPrefetchAsync_v2(pointer, 8 * MIB, here, 0, NULL));
    FAILS(cuMemPrefetchAsync_v2(pointer, 9 * MIB, nowhere, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPrefetchAsync_v2_ptsz(pointer + 9 * MIB, MIB, here, 0, NULL));
    CHECK(machine("available") == 69 && sgsim_live_bytes("managed") == 30 * MIB);
    sgsim_machine_move(machine_path, "other", 60 * (long long)MIB);
    OK(sgsim_touch(pointer, 30 * MIB)); /* 11 MiB more than there is */
    CHECK(machine("available") == -11 && machine("least_available") == -11);
    OK(cuMemFree_v2(pointer));
    CHECK(machine("available") == 19);
    end_machine();
}

static void test_batches(void)
{
    CUdeviceptr pointer, parts[2];
    size_t sizes[2] = {2 * MIB, 4 * MIB}, from[2] = {0, 1}, backwards[2] = {0, 0};
    CUmemLocation places[2] = {{.type = CU_MEM_LOCATION_TYPE_DEVICE}, {.type = CU_MEM_LOCATION_TYPE_HOST}};
    make_machine();
    start();
    OK(cuMemAllocManaged(&pointer, 16 * MIB, CU_MEM_ATTACH_GLOBAL));
    parts[0] = pointer;
    parts[1] = pointer + 2 * MIB;
    FAILS(cuMemPrefetchBatchAsync(parts, sizes, 2, places, from, 2, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemPrefetchBatchAsync_ptsz(parts, sizes, 2, places, backwards, 2, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemDiscardBatchAsync(parts, sizes, 2, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPrefetchBatchAsync(parts, sizes, 1, places, from, 1, 0, CU_STREAM_PER_THREAD));
    CHECK(machine("available") == 78);
    OK(cuMemPrefetchBatchAsync_ptsz(parts, sizes, 2, places, from, 2, 0, NULL));
    CHECK(machine("available") == 74);
    OK(cuMemDiscardBatchAsync(&parts[1], &sizes[1], 1, 0, CU_STREAM_PER_THREAD));
    CHECK(machine("available") == 78);
    OK(cuMemDiscardAndPrefetchBatchAsync(parts, sizes, 2, places, from, 2, 0, CU_STREAM_PER_THREAD));
    OK(cuMemDiscardAndPrefetchBatchAsync_ptsz(parts, sizes, 2, places, from, 2, 0, NULL));
    CHECK(machine("available") == 74);
    OK(cuMemDiscardBatchAsync_ptsz(parts, sizes, 1, 0, NULL)); /* resident up to the last byte touched */
    CHECK(machine("available") == 74 && sgsim_live_bytes("managed") == 16 * MIB);
    OK(cuMemFree_v2(pointer));
    CHECK(machine("available") == 80);
    end_machine();
}

static void *allocate_held(void *context)
{
    CUdeviceptr pointer;
    OK(cuCtxSetCurrent((CUcontext)context));
    OK(cuMemAlloc_v2(&pointer, MIB));
    return NULL;
}

/* SGSIM_HOLD=cuMemFree_v2:2:60,cuMemAllocHost_v2:1:1 */
static void test_hold(void)
{
    char path[96], held[112];
    struct timespec begin;
    CUdeviceptr pointer;
    pthread_t thread;
    snprintf(path, sizeof path, "%s/go", scratch);
    snprintf(held, sizeof held, "%s.held", path);
    CUcontext context = start();
    for (int i = 0; i < 2; i++) {
        OK(cuMemAlloc_v2(&pointer, MIB));
        clock_gettime(CLOCK_MONOTONIC, &begin);
        OK(cuMemFree_v2(pointer));
    }
    CHECK(elapsed_ms(&begin) >= 60);
    sgsim_hold("cuMemAlloc_v2", 1, path);
    OK(pthread_create(&thread, NULL, allocate_held, context));
    while (access(held, F_OK) != 0)
        ;
    OK(cuMemAllocManaged(&pointer, MIB, CU_MEM_ATTACH_GLOBAL)); /* others go on */
    CHECK(sgsim_live_bytes("device") == 0 && sgsim_calls("cuMemAlloc_v2") == 3);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    pthread_join(thread, NULL);
    CHECK(sgsim_live_bytes("device") == MIB);
    sgsim_hold("cuMemAlloc_v2", -1, "100000");
    sgsim_hold("cuMemAlloc_v2", 0, "");
    OK(cuMemAlloc_v2(&pointer, MIB));
    unlink(path);
    unlink(held);
}

/* SGSIM_DEVICES=3 CUDA_VISIBLE_DEVICES=2,0 */
static void test_identity(void)
{
    CUuuid one, two;
    char first[16], second[16];
    int count;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK(count == 2);
    OK(cuDeviceGetUuid(&one, 0));
    OK(cuDeviceGetUuid_v2(&two, 1));
    CHECK(memcmp(one.bytes, "sgsim-gb10-gpu-C", 16) == 0 && memcmp(two.bytes, "sgsim-gb10-gpu-A", 16) == 0);
    FAILS(cuDeviceGetUuid_v2(&two, 2), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDeviceGetPCIBusId(first, sizeof first, 0));
    OK(cuDeviceGetPCIBusId(second, sizeof second, 1));
    CHECK(strcmp(first, "0000:02:00.0") == 0 && strcmp(second, "0000:00:00.0") == 0);
    FAILS(cuDeviceGetPCIBusId(first, 5, 0), CUDA_ERROR_INVALID_VALUE);
}

#endif
