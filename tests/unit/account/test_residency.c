/*
 * What of a piece of address space is there, by each way of asking that some kernel or sandbox leaves.
 */
#include "fixture.h"

#include "../lib/call_filter.h"
#include "account/residency.h"

#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define ANSWER(is_on) (&(struct sg_seccomp_answer){true, is_on})

enum { PIECES = 200 }; /* more than one answer of the kernel holds */

/* From here on `call` fails. */
static void deny(unsigned call, unsigned error)
{
    if (!filter_call(call, SECCOMP_RET_ERRNO | error))
        SKIP("no seccomp here");
}

static void deny_page_scan(void)
{
    deny(SYS_ioctl, ENOTTY); /* as before Linux 6.7 */
}

/* Linux 6.7; it looks at the size of what it is given first. */
static bool can_scan(void)
{
    char nothing[96] = {0};
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), answer = ioctl(fd, _IOWR('f', 16, nothing), nothing);
    CHECK(fd >= 0 && answer == -1);
    (void)close(fd);
    return errno == EINVAL;
}

static char *map(uint64_t bytes, int flags, int fd)
{
    char *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    CHECK(address != MAP_FAILED);
    (void)madvise(address, bytes, MADV_NOHUGEPAGE);
    return address;
}

/* Every other page, of twice so many. */
static void touch_pieces(char *address, uint64_t page)
{
    for (uint64_t i = 0; i < PIECES; i++)
        address[2 * i * page] = 1;
}

static void check_anonymous(bool can_scan)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), bytes = 2 * PIECES * page;
    char *address = map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    uintptr_t begin = (uintptr_t)address, end = begin + bytes;
    for (int is_sandboxed = 0; is_sandboxed < 2; is_sandboxed++)
        CHECK_EQUAL(sg_residency_bytes(begin, end, ANSWER(is_sandboxed)), 0);
    for (uint64_t i = 0; i < bytes; i += page) /* only read: everywhere the kernel's one page of zeros */
        CHECK_EQUAL(((volatile char *)address)[i], 0);
    CHECK_EQUAL(sg_residency_bytes(begin, end, ANSWER(false)), can_scan ? 0 : bytes);
    CHECK_EQUAL(madvise(address, bytes, MADV_DONTNEED), 0);
    touch_pieces(address, page);
    for (int is_sandboxed = 0; is_sandboxed < 2; is_sandboxed++) {
        CHECK_EQUAL(sg_residency_bytes(begin, end, ANSWER(is_sandboxed)), PIECES * page);
        CHECK_EQUAL(sg_residency_bytes(begin + 1, end, ANSWER(is_sandboxed)), (PIECES - 1) * page); /* whole pages */
    }
    CHECK_EQUAL(munmap(address, bytes), 0);
    CHECK_EQUAL(sg_residency_bytes(begin, end, ANSWER(true)), 0);
}

CHILD_TEST(anonymous_pages_are_there_when_they_were_touched)
{
    check_anonymous(can_scan());
}

CHILD_TEST(and_on_a_kernel_that_cannot_scan)
{
    deny_page_scan();
    check_anonymous(false);
}

CHILD_TEST(where_nothing_tells_nothing_is_said)
{
    uint64_t bytes = 16 * (uint64_t)sysconf(_SC_PAGESIZE);
    char *address = map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    memset(address, 1, bytes);
    deny(SYS_openat, EACCES);
    CHECK_EQUAL(sg_residency_bytes((uintptr_t)address, (uintptr_t)address + bytes, ANSWER(true)), 0);
    CHECK_EQUAL(sg_residency_bytes((uintptr_t)address, (uintptr_t)address + bytes, ANSWER(false)), bytes);
}

CHILD_TEST(nor_where_it_stops_in_the_middle)
{
    uint64_t bytes = 16 * (uint64_t)sysconf(_SC_PAGESIZE);
    char *address = map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    memset(address, 1, bytes);
    deny_page_scan();
    deny(SYS_pread64, EIO);
    CHECK_EQUAL(sg_residency_bytes((uintptr_t)address, (uintptr_t)address + bytes, ANSWER(true)), 0);
}

CHILD_TEST(failure_that_passes_is_not_kept_in_mind)
{
    const struct rlimit none = {0, 1024}, some = {1024, 1024};
    if (!can_scan())
        SKIP("the kernel has no PAGEMAP_SCAN");
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK(!sg_residency_is_cheap());
    CHECK(setrlimit(RLIMIT_NOFILE, &some) == 0);
    CHECK(sg_residency_is_cheap());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anonymous_pages_are_there_when_they_were_touched),
        cmocka_unit_test(and_on_a_kernel_that_cannot_scan),
        cmocka_unit_test(where_nothing_tells_nothing_is_said),
        cmocka_unit_test(nor_where_it_stops_in_the_middle),
        cmocka_unit_test(failure_that_passes_is_not_kept_in_mind),
    };
    return cmocka_run_group_tests_name("resident", tests, NULL, NULL);
}
