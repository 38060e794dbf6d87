/* Every call that succeeds must leave errno as it was: first calls, later calls, small, large, in threads. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int bad;

static void check(const char *what)
{
    if (errno != 77)
        bad += printf("%s: errno is %d\n", what, errno) > 0;
    errno = 77;
}

#define TRY(call) \
    do { \
        errno = 77; \
        call; \
        check(#call); \
    } while (0)

static void *try_all(void *unused)
{
    static const size_t sizes[] = {1, 70 << 10, 300 << 10, 1 << 20, 33 << 20};
    (void)unused;
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        void *volatile block, *aligned = NULL;
        TRY(block = malloc(sizes[i]));
        TRY(block = realloc(block, sizes[i] * 2));
        TRY(free(block));
        TRY(block = calloc(1, sizes[i]));
        TRY(block = reallocarray(block, 1, sizes[i] / 2 + 1));
        TRY((void)malloc_usable_size(block));
        TRY(free(block));
        TRY(block = memalign(4096, sizes[i]));
        TRY(free(block));
        TRY(block = aligned_alloc(64, (sizes[i] + 63) / 64 * 64));
        TRY(free(block));
        TRY((void)!posix_memalign(&aligned, 64, sizes[i]));
        TRY(free(aligned));
        TRY((void)posix_memalign(&aligned, 3, sizes[i])); /* the error is the answer */
        void *map;
        TRY(map = mmap(NULL, sizes[i], PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        TRY(mprotect(map, sizes[i], PROT_READ | PROT_WRITE));
        TRY(map = mremap(map, sizes[i], sizes[i] * 2, MREMAP_MAYMOVE));
        TRY(madvise(map, sizes[i] * 2, MADV_DONTNEED));
        TRY(munmap(map, sizes[i] * 2));
    }
    return NULL;
}

int main(void)
{
    pthread_t thread;
    try_all(NULL);
    TRY(pthread_create(&thread, NULL, try_all, NULL));
    TRY(pthread_join(thread, NULL));
    return bad != 0;
}
