/* passthrough.c - a preloaded library that hands malloc, free, mmap and munmap on: what interposing costs whoever does
 * it. */
#include <dlfcn.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/types.h>

extern void *__libc_malloc(size_t size);
extern void __libc_free(void *ptr);

static void *(*real_malloc)(size_t) = __libc_malloc;
static void (*real_free)(void *) = __libc_free;
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static int (*real_munmap)(void *, size_t);

static void find(void)
{
    *(void **)&real_mmap = dlsym(RTLD_NEXT, "mmap");
    *(void **)&real_munmap = dlsym(RTLD_NEXT, "munmap");
}

__attribute__((constructor)) static void begin(void)
{
    *(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc");
    *(void **)&real_free = dlsym(RTLD_NEXT, "free");
    find();
}

void *malloc(size_t size)
{
    return real_malloc(size);
}

void free(void *ptr)
{
    real_free(ptr);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (real_mmap == NULL)
        find();
    return real_mmap(address, bytes, protection, flags, fd, offset);
}

int munmap(void *address, size_t bytes)
{
    if (real_munmap == NULL)
        find();
    return real_munmap(address, bytes);
}
