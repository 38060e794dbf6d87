/*
 * helper_heap - a program with a heap of its own, as statically linked allocators are: one lock, chunks from mmap
 * under that lock, and later from mprotect of space reserved before. Takes 320 MiB either way: "taken".
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHUNK_BYTES ((size_t)4 << 20)
#define RESERVED_BYTES ((size_t)1 << 30)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *next, *end, *reserved;
static int is_reserving;

static char *new_chunk(size_t bytes)
{
    if (!is_reserving)
        return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (reserved == NULL)
        reserved = mmap(NULL, RESERVED_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *chunk = reserved;
    reserved += bytes;
    return mprotect(chunk, bytes, PROT_READ | PROT_WRITE) == 0 ? chunk : MAP_FAILED;
}

static void *take(size_t size, size_t alignment)
{
    pthread_mutex_lock(&lock);
    uintptr_t begin = ((uintptr_t)next + sizeof(size_t) + alignment - 1) & -(uintptr_t)alignment;
    if (next == NULL || begin + size > (uintptr_t)end) {
        size_t bytes = (size + alignment + 2 * CHUNK_BYTES) & ~(CHUNK_BYTES - 1);
        char *chunk = new_chunk(bytes);
        if (chunk == MAP_FAILED)
            _exit(1);
        end = chunk + bytes;
        begin = ((uintptr_t)chunk + sizeof(size_t) + alignment - 1) & -(uintptr_t)alignment;
    }
    next = (char *)begin + size;
    ((size_t *)begin)[-1] = size;
    pthread_mutex_unlock(&lock);
    return (void *)begin;
}

void *malloc(size_t size)
{
    return take(size, 16);
}

void free(void *block)
{
    pthread_mutex_lock(&lock);
    (void)block;
    pthread_mutex_unlock(&lock);
}

void *calloc(size_t count, size_t size)
{
    return malloc(count * size); /* never used before: zero */
}

void *realloc(void *old, size_t size)
{
    void *block = malloc(size);
    if (old != NULL)
        memcpy(block, old, size < ((size_t *)old)[-1] ? size : ((size_t *)old)[-1]);
    return block;
}

void *memalign(size_t alignment, size_t size)
{
    return take(size, alignment < 16 ? 16 : alignment);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int posix_memalign(void **block, size_t alignment, size_t size)
{
    *block = memalign(alignment, size);
    return 0;
}

size_t malloc_usable_size(void *block)
{
    return block != NULL ? ((size_t *)block)[-1] : 0;
}

int main(void)
{
    for (is_reserving = 0; is_reserving < 2; is_reserving++)
        for (int i = 0; i < 40; i++)
            *(char *)malloc(2 * CHUNK_BYTES) = 1;
    return write(1, "taken\n", 6) == 6 ? 0 : 1;
}
