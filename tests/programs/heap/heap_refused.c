/*
 * heap_refused FUNCTION - under SPARKGUARD_LIMIT=32M: NULL and ENOMEM (posix_memalign: ENOMEM, errno and the pointer as
 * they were), nothing counted, and a smaller request succeeds.
 */
#include "heap_case.h"
#include "heap_take.h"

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    const char *function = arguments[1];
    live_begin();
    void *held = malloc(20 * MIB), *out = &held;
    CHECK(held != NULL);
    uint64_t before = live(SG_DOMAIN_HEAP);
    if (strcmp(function, "posix_memalign") == 0) {
        errno = 77;
        int result = posix_memalign(&out, 4096, 16 * MIB);
        CHECK_EQUAL(result, ENOMEM);
        CHECK_EQUAL(errno, 77);
        CHECK(out == &held);
    } else {
        errno = 0;
        void *ptr = take(function, 16 * MIB);
        int error = errno;
        CHECK(ptr == NULL);
        CHECK_EQUAL(error, ENOMEM);
    }
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    CHECK_EQUAL(refused_count(SG_DOMAIN_HEAP), 1);
    void *small = take(function, 8 * MIB);
    CHECK(small != NULL);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, malloc_usable_size(small));
    free(small);
    free(held);
    return 0;
}
