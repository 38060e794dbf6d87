/*
 * derived.c - reallocarray and the frees that say the size (C23, glibc 2.43, and other allocators before it): glibc
 * makes them of the global realloc and free, and so does this.
 */
#include "base/atomics.h"
#include "base/compiler.h"
#include "hooks/heap/heap.h"
#include "hooks/real.h"

#include <errno.h>
#include <stdlib.h>

/* An allocator that lies before us need not define reallocarray, because glibc's asks for `realloc` by name: it gets
 * the call. */
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

/* Only another allocator's own function is worth a call: it may look at the size. */
static void give_back_sized(void *ptr, const char *name, sg_function *known, struct sg_heap_sized sized)
{
    if (SG_FIRST(free) != free) { /* an allocator before us, without this function */
        SG_FIRST(free)(ptr);
        return;
    }
    if (sg_load_relaxed(&sg_heap_inside) != 0)
        sized.real = sg_real_unless_libcs(name, known);
    if (sized.real != NULL)
        sg_heap_give_back_sized(ptr, &sized);
    else
        free(ptr);
}

SG_EXPORT void free_sized(void *ptr, size_t size)
{
    static sg_function known;
    give_back_sized(ptr, "free_sized", &known, (struct sg_heap_sized){NULL, 0, size});
}

SG_EXPORT void free_aligned_sized(void *ptr, size_t alignment, size_t size)
{
    static sg_function known;
    give_back_sized(ptr, "free_aligned_sized", &known, (struct sg_heap_sized){NULL, alignment, size});
}
