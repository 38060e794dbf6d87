/*
 * gpu_assume.c - one assumption of docs/assumptions.md, by the number of its RESULT there: what was measured, and whether
 * it holds.
 *
 *     gpu_assume NUMBER
 *
 * Prints one line, "RESULT NUMBER VERDICT: what was measured". The verdict is holds, fails, or unknown where it cannot
 * be told here. 9 and 10 are measured under the guard, with RESERVE, or LIMIT and WAIT, set by whoever runs them. A
 * driver that is simulated (sgsim_break) has no kernels, and a machine of its own (SGSIM_MEMINFO).
 */
#include "gpu.h"

#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (256 * MIB)
#define GRANULE (2 * MIB)
#define NOISE (64 * MIB) /* of a machine on which others work */

enum verdict { FAILS, HOLDS, UNKNOWN };

static int number;

static int __attribute__((format(printf, 2, 3))) result(enum verdict verdict, const char *format, ...)
{
    static const char *const words[] = {"fails", "holds", "unknown"};
    va_list arguments;
    va_start(arguments, format);
    printf("RESULT %d %s: ", number, words[verdict]);
    vprintf(format, arguments);
    puts("");
    va_end(arguments);
    return 0;
}

/* A function of the simulated driver; NULL: the driver is a real one. */
static void *simulators(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

/* Whether as much is available within `ms` milliseconds. */
static int is_back(long long bytes, int ms)
{
    while (available_bytes() < bytes && ms-- > 0)
        usleep(1000); /* poll: MemAvailable */
    return available_bytes() >= bytes;
}

/* 3: what a driver with pools keeps of a free serves the next request. The pools may have had more before. */
static int pools_serve(void)
{
    void *pointer;
    long long before, between;
    MUST(cudaFree(NULL));
    MUST(cudaMalloc(&pointer, SIZE));
    before = available_bytes();
    MUST(cudaFree(pointer));
    if (!has_pools())
        return result(UNKNOWN, "this driver has no pools");
    if (is_back(before + (long long)SIZE / 8 * 7, back_ms_most()))
        return result(FAILS, "%zu MiB that were freed are the machine's again, though the driver lists pools",
                      SIZE / MIB);
    between = available_bytes();
    MUST(cudaMalloc(&pointer, SIZE));
    long long fall = between - available_bytes();
    return result(fall < (long long)SIZE / 8 ? HOLDS : FAILS,
                  "of %zu MiB that were freed and asked for again %lld MiB came from the machine", SIZE / MIB,
                  fall / (long long)MIB);
}

/* 9: the runtime makes a context after the driver had no memory for one. RESERVE leaves less than 2 GiB. */
static int context_after_refusal(void)
{
    for (size_t size = 2048 * MIB; size >= 64 * MIB; size -= 64 * MIB) {
        void *filler = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (filler == MAP_FAILED)
            continue;
        int first = (int)cudaFree(NULL);
        munmap(filler, size);
        if (first == 0)
            return result(UNKNOWN, "the context was not refused beside %zu MiB", size / MIB);
        void *pointer;
        int second = (int)cudaFree(NULL), third = (int)cudaMalloc(&pointer, MIB);
        return result(second == 0 && third == 0 ? HOLDS : FAILS,
                      "the first context was refused (%d), later cudaFree answered %d and cudaMalloc %d", first, second,
                      third);
    }
    return result(UNKNOWN, "there is no room for anything");
}

/* 10: others call the driver while a thread waits inside an allocation. LIMIT is 512 MiB, and WAIT half a minute. */
static int waiting; /* (atomic) 1: about to ask, 2: it has an answer */

static void *wait_inside(void *answer)
{
    void *pointer;
    __atomic_store_n(&waiting, 1, __ATOMIC_SEQ_CST);
    *(int *)answer = (int)cudaMalloc(&pointer, 256 * MIB);
    __atomic_store_n(&waiting, 2, __ATOMIC_SEQ_CST);
    return NULL;
}

static int others_go_on(void)
{
    enum { ROUNDS = 20 };
    void *pointer;
    pthread_t thread;
    char bytes[4096] = "";
    int answer = 0, done = 0;
    MUST(cudaMalloc(&pointer, 320 * MIB));
    MUST(pthread_create(&thread, NULL, wait_inside, &answer));
    while (__atomic_load_n(&waiting, __ATOMIC_SEQ_CST) == 0)
        usleep(1000); /* poll: the thread is about to ask */
    usleep(100000);   /* pace: it gets as far as to wait inside; the rounds before count as well */
    while (done < ROUNDS && __atomic_load_n(&waiting, __ATOMIC_SEQ_CST) == 1) {
        MUST(cudaMemcpy(pointer, bytes, sizeof bytes, cudaMemcpyHostToDevice));
        MUST(cudaDeviceSynchronize());
        (void)free_bytes();
        done += __atomic_load_n(&waiting, __ATOMIC_SEQ_CST) == 1;
    }
    MUST(cudaFree(pointer)); /* now it fits */
    pthread_join(thread, NULL);
    if (done == 0 && answer == 0)
        return result(UNKNOWN, "nothing had to wait");
    return result(done == ROUNDS && answer == 0 ? HOLDS : FAILS,
                  "%d of %d rounds of copy, synchronise and query ended while a request waited, which was answered %d "
                  "behind a free",
                  done, ROUNDS, answer);
}

/* 12: the question whether the default stream captures answers what a kernel left behind. */
static const char kernel[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
                             ".visible .entry stop()\n{\n    trap;\n    ret;\n}\n";

static int break_context(void)
{
    void (*fake)(int) = NULL, *symbol = simulators("sgsim_break");
    memcpy(&fake, &symbol, sizeof fake);
    if (fake) {
        fake(CUDA_ERROR_LAUNCH_FAILED);
    } else {
        CUmodule module;
        CUfunction function;
        CUresult loaded = driver(cuModuleLoadData, 2000)(&module, kernel);
        if (loaded != CUDA_SUCCESS)
            return -(int)loaded;
        MUST(driver(cuModuleGetFunction, 2000)(&function, module, "stop"));
        MUST(driver(cuLaunchKernel, 4000)(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    }
    return (int)driver(cuStreamSynchronize, 2000)(NULL);
}

static int dead_context(void)
{
    CUstreamCaptureStatus status;
    MUST(cudaFree(NULL));
    PFN_cuStreamIsCapturing_v10000 ask = driver(cuStreamIsCapturing, 10000);
    int left = break_context(), answer = (int)ask(NULL, &status);
    if (left <= 0)
        return result(UNKNOWN, "no kernel could be made to fail (%d)", -left);
    return result(answer == left ? HOLDS : FAILS, "a kernel left %d, cuStreamIsCapturing answers %d", left, answer);
}

/* 13: pinned memory is the machine's; and which cgroup pays. */
static long long cgroup_bytes(void)
{
    char line[4096], path[4200];
    long long bytes = -1;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && bytes < 0 && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::", 3) != 0)
            continue;
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", line + 3);
        FILE *current = fopen(path, "re");
        if (current && fscanf(current, "%lld", &bytes) != 1)
            bytes = -1;
        if (current)
            fclose(current);
    }
    if (file)
        fclose(file);
    return bytes;
}

static int pinned_is_the_machines(void)
{
    void *pointer;
    MUST(cudaFree(NULL));
    long long available = available_bytes(), charged = cgroup_bytes();
    MUST(cudaMallocHost(&pointer, SIZE));
    memset(pointer, 1, SIZE);
    long long fall = available - available_bytes(), rise = cgroup_bytes() - charged;
    const char *payer = charged < 0                   ? "which cgroup pays cannot be told here"
                        : rise >= (long long)SIZE / 2 ? "this process's cgroup pays"
                                                      : "this process's cgroup does not pay";
    return result(fall >= (long long)SIZE / 2 ? HOLDS : FAILS,
                  "256 MiB of pinned memory took %lld MiB of the machine; %s (%lld MiB)", fall / (long long)MIB, payer,
                  charged < 0 ? 0 : rise / (long long)MIB);
}

/* 18: a forked child that calls the driver is told so, and does not hang, whatever another thread was at. */
static int stop; /* (atomic) */

static void *take_and_give(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
        void *pointer;
        MUST(cudaMalloc(&pointer, 4 * MIB));
        MUST(cudaFree(pointer));
    }
    return NULL;
}

static int forked_child(void)
{
    enum { CHILDREN = 20, SECONDS = 5 };
    pthread_t thread;
    int told = 0, hung = 0, served = 0;
    MUST(cudaFree(NULL));
    MUST(pthread_create(&thread, NULL, take_and_give, NULL));
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            void *pointer;
            signal(SIGALRM, SIG_DFL);
            alarm(SECONDS);
            _exit(cudaMalloc(&pointer, MIB) == cudaSuccess);
        }
        MUST(waitpid(child, &status, 0) != child);
        hung += WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
        told += WIFEXITED(status) && WEXITSTATUS(status) == 0;
        served += WIFEXITED(status) && WEXITSTATUS(status) == 1;
    }
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    return result(
        told == CHILDREN ? HOLDS : FAILS,
        "of %d forked children that called cudaMalloc %d were refused by the driver, %d hung and %d were served",
        CHILDREN, told, hung, served);
}

/* 19: what the driver takes for many small blocks, and for blocks just above 1 MiB. */
static long long taken_by(int count, size_t size)
{
    void *pointer;
    size_t before = free_bytes();
    for (int i = 0; i < count; i++)
        MUST(cudaMalloc(&pointer, size));
    return (long long)before - (long long)free_bytes();
}

static int small_blocks(void)
{
    enum { SMALL = 10000, LARGE = 1000 };
    MUST(cudaFree(NULL));
    long long small = taken_by(SMALL, 256), large = taken_by(LARGE, MIB + 1);
    int is_bounded =
        small <= (long long)(SMALL * 512 + GRANULE + NOISE) && large <= (long long)(LARGE * GRANULE + NOISE);
    return result(is_bounded ? HOLDS : FAILS,
                  "%d blocks of 256 bytes took %lld KiB, %d of 1 MiB and a byte took %lld MiB", SMALL, small / 1024,
                  LARGE, large / (long long)MIB);
}

int main(int argc, char **argv)
{
    static const struct {
        int number;
        int (*measure)(void);
    } all[] = {{3, pools_serve},   {9, context_after_refusal},   {10, others_go_on},
               {12, dead_context}, {13, pinned_is_the_machines}, {18, forked_child},
               {19, small_blocks}};
    number = argc == 2 ? atoi(argv[1]) : 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].number == number)
            return all[i].measure();
    return 2;
}
