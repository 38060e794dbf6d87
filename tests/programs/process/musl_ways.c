/*
 * musl_ways - what programs of any C library do with the functions that the guard hooks. Plain POSIX: the tests build it
 * with musl's compiler, too. Prints "done" and ends with status 3.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED(condition) \
    do \
        if (!(condition)) { \
            (void)!write(2, #condition "\n", sizeof #condition); \
            _exit(1); \
        } \
    while (0)

enum { SIZES = 30, THREADS = 4, ROUNDS = 3, MAPPED_BYTES = 16 << 20 };

extern char **environ;

static void use_heap(void)
{
    for (unsigned i = 0; i < SIZES; i++) {
        size_t size = (size_t)1 << i % 24;
        unsigned char *block = malloc(size), *zeros = calloc(1, size);
        void *aligned = NULL;
        NEED(block != NULL && zeros != NULL && zeros[size - 1] == 0);
        memset(block, (int)i, size);
        block = realloc(block, 3 * size);
        NEED(block != NULL && block[size - 1] == i);
        NEED(posix_memalign(&aligned, 4096, size) == 0 && (size_t)aligned % 4096 == 0);
        free(aligned);
        aligned = aligned_alloc(64, (size + 63) / 64 * 64);
        NEED(aligned != NULL && (size_t)aligned % 64 == 0);
        free(aligned);
        free(zeros);
        free(block);
    }
    NEED(malloc((size_t)-1 / 4) == NULL);
}

static void use_mappings(void)
{
    char *mapped = mmap(NULL, MAPPED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(mapped != MAP_FAILED);
    memset(mapped, 1, MAPPED_BYTES);
    NEED(mprotect(mapped, MAPPED_BYTES, PROT_READ) == 0 && madvise(mapped, MAPPED_BYTES, MADV_DONTNEED) == 0);
    NEED(munmap(mapped, MAPPED_BYTES) == 0);
}

static void *run_thread(void *unused)
{
    for (unsigned i = 0; i < ROUNDS; i++)
        use_heap();
    return unused;
}

static void use_threads(void)
{
    pthread_t thread[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        NEED(pthread_create(&thread[i], NULL, run_thread, NULL) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        NEED(pthread_join(thread[i], NULL) == 0);
}

static void use_processes(const char *self)
{
    int status = -1;
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        use_heap();
        exit(7);
    }
    NEED(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    char name[] = "program", word[] = "short";
    char *arguments[] = {name, word, NULL};
    NEED(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0);
    NEED(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

int main(int count, char **arguments)
{
    use_heap();
    if (count == 1) {
        use_mappings();
        use_threads();
        use_processes(arguments[0]);
        void *function = dlsym(RTLD_DEFAULT, "malloc");
        NEED(function != NULL && dlopen("/no/such/library.so", RTLD_NOW) == NULL && dlerror() != NULL);
        puts("done");
    }
    return 3;
}
