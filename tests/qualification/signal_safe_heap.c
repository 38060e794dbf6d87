/*
 * signal_safe_heap.c - a heap that a signal handler may use wherever it came from: for tests only, to be preloaded
 * behind the guard.
 *
 * It looks like glibc's: its sizes, its headers, its names, so the guard's fastest ways are open. No locks: a block is
 * taken out of a place and put back into one by a single exchange; what finds no place is lost. Above 64 KiB each has a
 * mapping of its own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STEP = 16, MAPPED = 2, CLASSES = 65536 / STEP + 2, PLACES = 8, ROOM = 1 << 30 };

static _Atomic(void *) place[CLASSES][PLACES];
static _Atomic(char *) room;
static atomic_size_t used;

static void *map(size_t size)
{
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    long mapped = syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, kind, -1, 0);
    return mapped == -1 ? NULL : (void *)mapped;
}

static uint64_t *header(void *ptr)
{
    return (uint64_t *)ptr - 1;
}

static void *carve(size_t chunk)
{
    char *begin = atomic_load(&room);
    if (begin == NULL) {
        char *mapped = map(ROOM);
        if (atomic_compare_exchange_strong(&room, &begin, mapped))
            begin = mapped;
        else
            syscall(SYS_munmap, mapped, ROOM);
    }
    size_t at = atomic_fetch_add(&used, chunk);
    return at + chunk + STEP > ROOM ? NULL : begin + at + STEP;
}

size_t malloc_usable_size(void *ptr)
{
    return ptr == NULL ? 0 : (*header(ptr) & ~(uint64_t)7) - (*header(ptr) & MAPPED ? 16 : 8);
}

void *__libc_malloc(size_t size)
{
    size_t chunk = size < 24 ? 32 : (size + 8 + STEP - 1) / STEP * STEP;
    void *ptr = NULL;
    int saved_errno = errno;
    if (size > PTRDIFF_MAX) {
        errno = ENOMEM;
        return NULL;
    }
    if (size > 65536) {
        chunk = (size + 16 + 4095) / 4096 * 4096;
        char *mapped = map(chunk);
        ptr = mapped != NULL ? mapped + 16 : NULL;
        if (ptr != NULL)
            *header(ptr) = chunk | MAPPED;
        return ptr;
    }
    for (unsigned i = 0; i < PLACES && ptr == NULL; i++)
        ptr = atomic_exchange(&place[chunk / STEP][i], NULL);
    if (ptr == NULL)
        ptr = carve(chunk);
    if (ptr != NULL)
        *header(ptr) = chunk | 1;
    errno = ptr != NULL ? saved_errno : ENOMEM;
    return ptr;
}

void __libc_free(void *ptr)
{
    if (ptr == NULL)
        return;
    uint64_t size = *header(ptr) & ~(uint64_t)7;
    if (*header(ptr) & MAPPED) {
        syscall(SYS_munmap, (char *)ptr - 16, size);
        return;
    }
    for (unsigned i = 0; i < PLACES; i++) {
        void *nothing = NULL;
        if (atomic_compare_exchange_strong(&place[size / STEP][i], &nothing, ptr))
            return;
    }
}

void *__libc_calloc(size_t count, size_t size)
{
    void *ptr = __libc_malloc(count * size); /* the guard asks for one */
    return ptr != NULL ? memset(ptr, 0, count * size) : NULL;
}

void *__libc_realloc(void *ptr, size_t size)
{
    void *moved = __libc_malloc(size);
    size_t old = malloc_usable_size(ptr);
    if (moved != NULL && ptr != NULL) {
        memcpy(moved, ptr, old < size ? old : size);
        __libc_free(ptr);
    }
    return moved;
}

void *malloc(size_t size) __attribute__((alias("__libc_malloc")));
void free(void *ptr) __attribute__((alias("__libc_free")));
void *calloc(size_t count, size_t size) __attribute__((alias("__libc_calloc")));
void *realloc(void *ptr, size_t size) __attribute__((alias("__libc_realloc")));
