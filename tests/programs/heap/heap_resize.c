/*
 * heap_resize realloc|reallocarray - growing and shrinking through all ways of counting (small, entered in the index,
 * judged by itself) is counted to the byte and keeps the contents.
 */
#include "heap_case.h"

#include <malloc.h>

static const size_t sizes[] = {10,      100,     70000,   200000,  65000,    3000000,  6000000, 2000000,
                               9000000, 1048576, 1048575, 1048577, 40 << 20, 80 << 20, 65536,   16};

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    live_begin();
    uint64_t frees, frees_before, calls, before = live(SG_DOMAIN_HEAP);
    unsigned char *ptr = malloc(50);
    memset(ptr, 0x5a, 50);
    calls = heap_calls(&frees_before);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t keep = malloc_usable_size(ptr) < sizes[i] ? 10 : 1;
        ptr = strcmp(arguments[1], "realloc") == 0 ? realloc(ptr, sizes[i]) : reallocarray(ptr, sizes[i] / 2, 2);
        CHECK(ptr != NULL);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, malloc_usable_size(ptr));
        CHECK(ptr[0] == 0x5a && ptr[keep - 1] == 0x5a);
    }
    CHECK_EQUAL(heap_calls(&frees), calls); /* a block that is resized is neither new nor gone */
    CHECK_EQUAL(frees, frees_before);
    free(ptr);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    CHECK_EQUAL(segment->unmatched_frees, 0);
    return 0;
}
