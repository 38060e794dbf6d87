/*
 * map_high CASE - mappings at addresses above 48 bits, which a program gets only if it asks for them: counted to the
 * byte. Exit 77 where there are none (processors without them, kernels that were not told of them).
 */
#include "heap_case.h"

#define READ_WRITE (PROT_READ | PROT_WRITE)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)
#define HINT ((char *)0x5a5a000000000) /* between 48 and 52 bits, whichever page it is in */
#define PAGES 64

#define CHECK_MAPPED(bytes) CHECK_EQUAL(live(SG_DOMAIN_MAPPED) - base, bytes)

static uint64_t base;

static char *map_high(size_t pages)
{
    char *ptr = mmap(HINT, pages * PAGE, READ_WRITE, ANONYMOUS, -1, 0);
    CHECK(ptr != MAP_FAILED);
    if ((uintptr_t)ptr >> 48 == 0)
        _exit(77);
    return ptr;
}

CASE(parts_come_and_go)
{
    char *ptr = map_high(PAGES);
    CHECK_MAPPED(PAGES * PAGE);
    memset(ptr, 1, PAGES * PAGE);
    CHECK_EQUAL(munmap(ptr + 8 * PAGE, 8 * PAGE), 0);
    CHECK_MAPPED((PAGES - 8) * PAGE);
    CHECK(mmap(ptr + 8 * PAGE, 4 * PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == ptr + 8 * PAGE);
    CHECK_MAPPED((PAGES - 4) * PAGE);
    CHECK_EQUAL(munmap(ptr, PAGES * PAGE), 0);
    CHECK_MAPPED(0);
}

CASE(reserved_addresses_count_when_they_may_be_written)
{
    char *ptr = mmap(HINT, PAGES * PAGE, PROT_NONE, ANONYMOUS, -1, 0);
    CHECK(ptr != MAP_FAILED);
    if ((uintptr_t)ptr >> 48 == 0)
        _exit(77);
    CHECK_MAPPED(0);
    CHECK_EQUAL(mprotect(ptr + PAGE, 3 * PAGE, READ_WRITE), 0);
    CHECK_MAPPED(3 * PAGE);
    CHECK_EQUAL(munmap(ptr, PAGES * PAGE), 0);
    CHECK_MAPPED(0);
}

CASE(moved_from_low_to_high_and_back)
{
    char *high = map_high(PAGES), *low = mmap(NULL, 2 * PAGES * PAGE, READ_WRITE, ANONYMOUS, -1, 0);
    CHECK(low != MAP_FAILED);
    CHECK_EQUAL(munmap(low + PAGES * PAGE, PAGES * PAGE), 0); /* room to grow into */
    CHECK_MAPPED(2 * PAGES * PAGE);
    CHECK(mremap(low, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, high) == high);
    CHECK_MAPPED(PAGES * PAGE);
    CHECK(mremap(high, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, low) == low);
    CHECK_MAPPED(2 * PAGES * PAGE);
    CHECK_EQUAL(munmap(low, 2 * PAGES * PAGE), 0);
    CHECK_MAPPED(0);
}

CASE(beside_low_ones)
{
    char *low[8], *high[8];
    for (size_t i = 0; i < 8; i++) {
        low[i] = mmap(NULL, (i + 1) * PAGE, READ_WRITE, ANONYMOUS, -1, 0);
        high[i] = map_high(i + 1);
    }
    CHECK_MAPPED(2 * 36 * PAGE);
    for (size_t i = 0; i < 8; i++)
        CHECK_EQUAL(munmap(high[i], (i + 1) * PAGE), 0);
    CHECK_MAPPED(36 * PAGE);
    for (size_t i = 0; i < 8; i++)
        CHECK_EQUAL(munmap(low[i], (i + 1) * PAGE), 0);
    CHECK_MAPPED(0);
}

int main(int count, char **arguments)
{
    live_begin();
    base = live(SG_DOMAIN_MAPPED);
    return run_case(count, arguments);
}
