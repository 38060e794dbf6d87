/*
 * derived.c - reallocarray, free_sized and free_aligned_sized. glibc makes them of the global realloc and free, and so
 * does this file. The sized frees are of C23; glibc has them since 2.43, other allocators had them before.
 */
#include "base/atomics.h"
#include "base/compiler.h"
#include "hooks/heap/heap.h"
#include "hooks/real.h"

#include <errno.h>
#include <stdlib.h>

/* An allocator loaded before this library need not define reallocarray, because glibc's calls `realloc` by name. Such
 * an allocator gets the call. */
SG_EXPORT void *reallocarray(void *ptr, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    void *(*first)(void *, size_t) = SG_FIRST(realloc);
    if (first != realloc)
        return first(ptr, bytes);
    return sg_heap_resize(ptr, bytes, SG_HOOK_reallocarray, __builtin_return_address(0));
}

SG_EXPORT void free_sized(void *ptr, size_t size);
SG_EXPORT void free_aligned_sized(void *ptr, size_t alignment, size_t size);

/* Frees by the allocator's own function if another allocator than glibc has one: it may check the size. Otherwise by
 * free. */
static void free_by_size(void *ptr, const char *name, sg_function *address, struct sg_heap_sized sized)
{
    if (SG_FIRST(free) != free) { /* an allocator loaded before this library, without this function */
        SG_FIRST(free)(ptr);
        return;
    }
    if (sg_load_relaxed(&sg_heap_inside) != 0)
        sized.real = sg_real_unless_libcs(name, address);
    if (sized.real != NULL)
        sg_heap_give_back_sized(ptr, &sized);
    else
        free(ptr);
}

SG_EXPORT void free_sized(void *ptr, size_t size)
{
    static sg_function address;
    free_by_size(ptr, "free_sized", &address, (struct sg_heap_sized){NULL, 0, size});
}

SG_EXPORT void free_aligned_sized(void *ptr, size_t alignment, size_t size)
{
    static sg_function address;
    free_by_size(ptr, "free_aligned_sized", &address, (struct sg_heap_sized){NULL, alignment, size});
}
