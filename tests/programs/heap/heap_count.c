/*
 * heap_count FUNCTION - blocks of many sizes are counted to the byte by malloc_usable_size, one allocation and one free
 * each, and nothing is left when they are gone.
 */
#include "heap_case.h"
#include "heap_take.h"

static const size_t sizes[] = {0, 1, 24, 25, 4096, 65535, 65536, 100000, 262144, 1048575, 1048576, 5000000};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

int main(int count, char **arguments)
{
    void *block[SIZES];
    uint64_t frees, frees_before, sum = 0;
    if (count != 2)
        return 2;
    live_begin();
    uint64_t before = live(SG_DOMAIN_HEAP), mapped = live(SG_DOMAIN_MAPPED), calls = heap_calls(&frees_before);
    for (size_t i = 0; i < SIZES; i++) {
        block[i] = take(arguments[1], sizes[i]);
        CHECK(block[i] != NULL);
        CHECK(malloc_usable_size(block[i]) >= sizes[i]);
        sum += malloc_usable_size(block[i]);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, sum);
    }
    CHECK_EQUAL(heap_calls(&frees) - calls, SIZES);
    CHECK_EQUAL(frees, frees_before);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), mapped); /* what backs the heap is not counted again */
    for (size_t i = 0; i < SIZES; i++) {
        sum -= malloc_usable_size(block[i]);
        free(block[i]);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, sum);
    }
    CHECK_EQUAL(heap_calls(&frees) - calls, SIZES);
    CHECK_EQUAL(frees - frees_before, SIZES);
    return 0;
}
