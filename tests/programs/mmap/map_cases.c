/*
 * map_cases CASE - what counts as mapped, call by call: after each step the guard's live bytes are compared, to the
 * byte, with what the program knows it holds.
 */
#include "heap_case.h"
#include "look.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/wait.h>

#define READ_WRITE (PROT_READ | PROT_WRITE)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

static uint64_t base; /* live bytes at the beginning of the case */

#define CHECK_MAPPED(bytes) CHECK_EQUAL(live(SG_DOMAIN_MAPPED) - base, bytes)

static char *map_pages(size_t pages, int prot, int flags)
{
    char *ptr = mmap(NULL, pages * PAGE, prot, flags, -1, 0);
    CHECK(ptr != MAP_FAILED);
    return ptr;
}

/* A length or an address that gcc does not know. */
static size_t any(size_t value)
{
    volatile size_t copy = value;
    return copy;
}

static void look(void)
{
    void *volatile most = ask_for_too_much(); /* what is refused, everything was looked at for */
    CHECK(most == NULL);
}

/* Runs `check` in a forked child. */
static void in_child(void (*check)(char *ptr), char *ptr)
{
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        live_begin();
        check(ptr);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* ---- what counts ---- */

CASE(private_anonymous_counts_in_whole_pages)
{
    char *one = mmap(NULL, 1, READ_WRITE, ANONYMOUS, -1, 0);
    CHECK_MAPPED(PAGE);
    char *two = mmap(NULL, 2 * MIB + 5, READ_WRITE, ANONYMOUS, -1, 0);
    CHECK_MAPPED(PAGE + 2 * MIB + PAGE);
    CHECK_EQUAL(munmap(one, 1), 0);
    CHECK_MAPPED(2 * MIB + PAGE);
    CHECK_EQUAL(munmap(two, 2 * MIB + 1), 0);
    CHECK_MAPPED(0);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), live(SG_DOMAIN_HEAP));
}

CASE(write_only_counts)
{
    char *ptr = map_pages(3, PROT_WRITE, ANONYMOUS);
    CHECK_MAPPED(3 * PAGE);
    munmap(ptr, 3 * PAGE);
    CHECK_MAPPED(0);
}

CASE(shared_anonymous_counts)
{
    char *ptr = map_pages(300, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS);
    CHECK_MAPPED(300 * PAGE);
    munmap(ptr, 300 * PAGE);
    CHECK_MAPPED(0);
}

CASE(memfd_counts)
{
    int fd = memfd_create("map_cases", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, 3 * MIB) == 0);
    char *ptr = mmap(NULL, 3 * MIB, READ_WRITE, MAP_SHARED, fd, 0);
    CHECK_MAPPED(3 * MIB);
    char *read_only = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);
    CHECK_MAPPED(3 * MIB);
    munmap(ptr, 3 * MIB);
    munmap(read_only, MIB);
    CHECK_MAPPED(0);
}

CASE(tmpfs_file_counts)
{
    char name[] = "/dev/shm/map_cases-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0 && ftruncate(fd, MIB) == 0);
    char *ptr = mmap(NULL, MIB, READ_WRITE, MAP_SHARED, fd, 0);
    CHECK_MAPPED(MIB);
    munmap(ptr, MIB);
    CHECK_MAPPED(0);
}

CASE(dev_zero_counts)
{
    int fd = open("/dev/zero", O_RDWR);
    char *private = mmap(NULL, MIB, READ_WRITE, MAP_PRIVATE, fd, 0);
    char *shared = mmap(NULL, 2 * MIB, READ_WRITE, MAP_SHARED, fd, 0);
    CHECK(private != MAP_FAILED && shared != MAP_FAILED);
    CHECK_MAPPED(3 * MIB);
    munmap(private, MIB);
    munmap(shared, 2 * MIB);
    CHECK_MAPPED(0);
}

/* ---- what does not ---- */

/* Like that of an ordinary file: what is written to it becomes a copy, which nothing announced. */
CASE(private_mapping_of_a_memfd_does_not_count)
{
    int fd = memfd_create("map_cases", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, 3 * MIB) == 0);
    char *copy = mmap(NULL, 3 * MIB, READ_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(copy != MAP_FAILED);
    memset(copy, 1, MIB);
    CHECK_MAPPED(0);
    look();
    CHECK_MAPPED(0);
    CHECK_EQUAL(mprotect(copy, MIB, PROT_READ), 0);
    CHECK_EQUAL(mprotect(copy, MIB, READ_WRITE), 0);
    copy = mremap(copy, 3 * MIB, 2 * MIB, 0);
    CHECK_MAPPED(0);
    munmap(copy, 2 * MIB);
    CHECK_MAPPED(0);
}

CASE(ordinary_file_does_not_count)
{
    char name[] = "/var/tmp/map_cases-XXXXXX"; /* /tmp may be a tmpfs */
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0 && ftruncate(fd, 2 * MIB) == 0);
    char *shared = mmap(NULL, 2 * MIB, READ_WRITE, MAP_SHARED, fd, 0);
    char *private = mmap(NULL, 2 * MIB, READ_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(private != MAP_FAILED && shared != MAP_FAILED);
    CHECK_MAPPED(0);
    CHECK_EQUAL(mprotect(private, MIB, PROT_READ), 0);
    CHECK_EQUAL(mprotect(private, MIB, READ_WRITE), 0);
    CHECK_MAPPED(0);
    private = mremap(private, 2 * MIB, MIB, 0);
    munmap(private, MIB);
    munmap(shared, 2 * MIB);
    CHECK_MAPPED(0);
}

CASE(reservations_do_not_count)
{
    char *none = map_pages(1000, PROT_NONE, ANONYMOUS), *read_only = map_pages(1000, PROT_READ, ANONYMOUS);
    CHECK_MAPPED(0);
    munmap(none, 1000 * PAGE);
    munmap(read_only, 1000 * PAGE);
    CHECK_MAPPED(0);
}

/* What is resident of them is reported instead, as of the last snapshot: a refused request looks. */
CASE(noreserve_is_sparse)
{
    void *volatile refused;
    const size_t pages = 16 * 256;
    char *ptr = map_pages(pages, READ_WRITE, ANONYMOUS | MAP_NORESERVE);
    CHECK_MAPPED(0);
    CHECK_EQUAL(madvise(ptr, pages * PAGE, MADV_NOHUGEPAGE), 0);
    for (size_t i = 0; i < 1000; i++)
        ptr[i * PAGE] = 1;
    refused = ask_for_too_much();
    CHECK(refused == NULL);
    CHECK_EQUAL(segment->sparse_resident_bytes, 1000 * PAGE);
    CHECK_MAPPED(0);
    CHECK_EQUAL(mprotect(ptr, MIB, PROT_NONE), 0);
    CHECK_EQUAL(mprotect(ptr, MIB, READ_WRITE), 0);
    CHECK_MAPPED(0); /* a sparse one stays one */
    munmap(ptr, pages * PAGE);
    refused = ask_for_too_much();
    CHECK_EQUAL(segment->sparse_resident_bytes, 0);
}

/* ---- protection ---- */

CASE(mprotect_makes_a_part_count)
{
    char *ptr = map_pages(100, PROT_NONE, ANONYMOUS);
    CHECK_EQUAL(mprotect(ptr + 10 * PAGE, 20 * PAGE, READ_WRITE), 0);
    CHECK_MAPPED(20 * PAGE);
    CHECK_EQUAL(mprotect(ptr + 20 * PAGE, 20 * PAGE - 100, READ_WRITE), 0); /* half of it counts already */
    CHECK_MAPPED(30 * PAGE);
    CHECK_EQUAL(mprotect(ptr, 5 * PAGE, PROT_READ), 0);
    CHECK_MAPPED(30 * PAGE);
    munmap(ptr, 15 * PAGE);
    CHECK_MAPPED(25 * PAGE);
    munmap(ptr + 15 * PAGE, 85 * PAGE);
    CHECK_MAPPED(0);
}

CASE(pkey_mprotect_makes_a_part_count)
{
    char *ptr = map_pages(100, PROT_NONE, ANONYMOUS);
    CHECK_EQUAL(pkey_mprotect(ptr, 7 * PAGE, READ_WRITE, -1), 0);
    CHECK_MAPPED(7 * PAGE);
    munmap(ptr, 100 * PAGE);
    CHECK_MAPPED(0);
}

CASE(what_has_counted_counts_until_it_is_unmapped)
{
    char *ptr = map_pages(10, READ_WRITE, ANONYMOUS);
    memset(ptr, 1, 10 * PAGE);
    CHECK_EQUAL(mprotect(ptr, 10 * PAGE, PROT_NONE), 0);
    CHECK_MAPPED(10 * PAGE);
    CHECK_EQUAL(mprotect(ptr, 10 * PAGE, READ_WRITE), 0);
    CHECK_MAPPED(10 * PAGE);
    munmap(ptr, 10 * PAGE);
    CHECK_MAPPED(0);
}

/* Whether the kernel can write there. */
static bool is_writable(char *page)
{
    int ends[2];
    CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    bool is_written = read(ends[0], page, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return is_written;
}

/* But for the pages from `hole` to `end`, where somebody else may have mapped something since. */
static void check_what_is_writable_counts(char *ptr, size_t hole, size_t end, size_t pages)
{
    size_t count = 0;
    for (size_t i = 0; i < pages; i++)
        count += (size_t)((i < hole || i >= end) && is_writable(ptr + i * PAGE));
    CHECK_MAPPED(count * PAGE);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    munmap(ptr, hole * PAGE);
    munmap(ptr + end * PAGE, (pages - end) * PAGE);
    CHECK_MAPPED(0);
}

CASE(mprotect_that_fails_half_way_counts_what_it_made_writable)
{
    char *ptr = map_pages(1000, PROT_NONE, ANONYMOUS);
    munmap(ptr + 400 * PAGE, 100 * PAGE);
    CHECK_EQUAL(mprotect(ptr + 100 * PAGE, 50 * PAGE, PROT_READ), 0);
    look();
    uint64_t before = segment->slot.promised_bytes;
    CHECK(mprotect(ptr, 1000 * PAGE, READ_WRITE) == -1 && errno == ENOMEM);
    look();
    CHECK_EQUAL(segment->slot.promised_bytes - before, live(SG_DOMAIN_MAPPED) - base);
    check_what_is_writable_counts(ptr, 400, 500, 1000);
}

CASE(pkey_mprotect_that_fails_half_way_counts_what_it_made_writable)
{
    char *ptr = map_pages(1000, PROT_NONE, ANONYMOUS);
    int fd = open("/proc/self/exe", O_RDONLY);
    CHECK(mmap(ptr + 700 * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == ptr + 700 * PAGE);
    CHECK(pkey_mprotect(ptr, 1000 * PAGE, READ_WRITE, -1) == -1 && errno == EACCES);
    check_what_is_writable_counts(ptr, 700, 701, 1000);
}

CASE(mprotect_that_fails_half_way_counts_all_where_the_kernel_does_not_tell)
{
    char *ptr = map_pages(100, PROT_NONE, ANONYMOUS);
    CHECK_EQUAL(munmap(ptr + 40 * PAGE, 10 * PAGE), 0);
    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, 0}), 0);
    CHECK(mprotect(ptr, 100 * PAGE, READ_WRITE) == -1 && errno == ENOMEM);
    CHECK_MAPPED(90 * PAGE);
}

CASE(failing_mprotect_changes_nothing)
{
    char *ptr = map_pages(100, PROT_NONE, ANONYMOUS);
    CHECK(mprotect(ptr + 1, 10 * PAGE, READ_WRITE) == -1 && errno == EINVAL);
    CHECK(pkey_mprotect(ptr, 10 * PAGE, READ_WRITE, 99) == -1 &&
          (errno == EINVAL || errno == ENOSYS)); /* arm64 before 6.12 */
    CHECK_EQUAL(munmap(ptr, 50 * PAGE), 0);
    CHECK(mprotect(ptr, 100 * PAGE, READ_WRITE) == -1 && errno == ENOMEM); /* the hole is what it begins with */
    CHECK_MAPPED(0);
    check_what_is_writable_counts(ptr, 0, 50, 100);
}

static char *guarded_page;

static void unprotect(int number)
{
    (void)number;
    if (mprotect(guarded_page, PAGE, READ_WRITE) != 0)
        _exit(1);
}

CASE(mprotect_in_a_fault_handler_counts)
{
    struct sigaction action = {.sa_handler = unprotect};
    char *ptr = map_pages(64, PROT_NONE, ANONYMOUS);
    CHECK_EQUAL(sigaction(SIGSEGV, &action, NULL), 0);
    for (size_t i = 0; i < 64; i++) {
        guarded_page = ptr + i * PAGE;
        *(volatile char *)guarded_page = 1;
        CHECK_MAPPED((i + 1) * PAGE);
    }
    munmap(ptr, 64 * PAGE);
    CHECK_MAPPED(0);
}

/* ---- munmap ---- */

CASE(partial_munmap_of_head_middle_and_tail)
{
    char *ptr = map_pages(100, READ_WRITE, ANONYMOUS);
    munmap(ptr, 10 * PAGE);
    CHECK_MAPPED(90 * PAGE);
    munmap(ptr + 90 * PAGE, 10 * PAGE);
    CHECK_MAPPED(80 * PAGE);
    munmap(ptr + 40 * PAGE, 20 * PAGE);
    CHECK_MAPPED(60 * PAGE);
    munmap(ptr + 40 * PAGE, 20 * PAGE); /* there is nothing there any more */
    CHECK_MAPPED(60 * PAGE);
    munmap(ptr + 35 * PAGE, 30 * PAGE - 1); /* across the hole */
    CHECK_MAPPED(50 * PAGE);
    munmap(ptr, 100 * PAGE);
    CHECK_MAPPED(0);
}

CASE(munmap_of_several_mappings_at_once)
{
    char *ptr = map_pages(90, PROT_NONE, ANONYMOUS);
    CHECK(mmap(ptr, 30 * PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == ptr);
    CHECK(mmap(ptr + 30 * PAGE, 30 * PAGE, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
    CHECK_EQUAL(mprotect(ptr + 70 * PAGE, 5 * PAGE, READ_WRITE), 0);
    CHECK_MAPPED(65 * PAGE);
    munmap(ptr, 90 * PAGE);
    CHECK_MAPPED(0);
}

/* Every second page of 200, so that they are many mappings for the kernel and many ranges for us. */
static char *comb(void)
{
    char *ptr = map_pages(200, PROT_NONE, ANONYMOUS);
    for (size_t i = 0; i < 200; i += 2)
        CHECK_EQUAL(mprotect(ptr + i * PAGE, PAGE, READ_WRITE), 0);
    CHECK_MAPPED(100 * PAGE);
    return ptr;
}

CASE(failing_munmap_changes_nothing)
{
    char *ptr = comb();
    errno = 0;
    CHECK_EQUAL(munmap(ptr + 1, 10 * PAGE), -1);
    CHECK_EQUAL(errno, EINVAL);
    CHECK_EQUAL(munmap(ptr, 0), -1);
    CHECK_EQUAL(munmap(ptr, any(PTRDIFF_MAX)), -1);
    CHECK_EQUAL(munmap(ptr, any(SIZE_MAX)), -1);
    CHECK_EQUAL(munmap(ptr, any((size_t)1 << 56)), -1); /* beyond the end of any address space, over all of them */
    CHECK_EQUAL(errno, EINVAL);
    CHECK_MAPPED(100 * PAGE);
    for (size_t i = 0; i < 200; i += 2) {
        ptr[i * PAGE] = 1;
        CHECK_EQUAL(munmap(ptr + i * PAGE, PAGE), 0);
        CHECK_MAPPED((99 - i / 2) * PAGE);
    }
    munmap(ptr, 200 * PAGE);
}

/* ---- MAP_FIXED ---- */

CASE(map_fixed_replaces_what_it_covers)
{
    char *ptr = map_pages(100, READ_WRITE, ANONYMOUS);
    CHECK(mmap(ptr + 10 * PAGE, 10 * PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == ptr + 10 * PAGE);
    CHECK_MAPPED(100 * PAGE);
    CHECK(mmap(ptr + 20 * PAGE, 10 * PAGE, PROT_NONE, ANONYMOUS | MAP_FIXED, -1, 0) == ptr + 20 * PAGE);
    CHECK_MAPPED(90 * PAGE);
    CHECK(mmap(ptr + 25 * PAGE, 10 * PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED);
    CHECK_MAPPED(85 * PAGE);
    int fd = open("/proc/self/exe", O_RDONLY);
    CHECK(mmap(ptr + 50 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == ptr + 50 * PAGE);
    CHECK_MAPPED(84 * PAGE);
    CHECK(mmap(ptr, 100 * PAGE, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == ptr);
    CHECK_MAPPED(100 * PAGE);
    munmap(ptr, 100 * PAGE);
    CHECK_MAPPED(0);
}

CASE(failing_mmap_changes_nothing)
{
    char *ptr = map_pages(10, READ_WRITE, ANONYMOUS);
    CHECK(mmap(NULL, 0, READ_WRITE, ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(ptr + 1, PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, 4 * MIB, READ_WRITE, MAP_PRIVATE, 999, 0) == MAP_FAILED && errno == EBADF);
    CHECK(mmap(ptr, PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST);
    CHECK(mmap(NULL, any(SIZE_MAX), READ_WRITE, ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
    CHECK(mmap(NULL, 4 * MIB, READ_WRITE, MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
    CHECK_MAPPED(10 * PAGE);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    munmap(ptr, 10 * PAGE);
}

CASE(mmap64_is_the_same)
{
    char *ptr = mmap64(NULL, 3 * MIB, READ_WRITE, ANONYMOUS, -1, 0);
    CHECK(ptr != MAP_FAILED);
    CHECK_MAPPED(3 * MIB);
    munmap(ptr, 3 * MIB);
    CHECK_MAPPED(0);
}

/* ---- mremap ---- */

CASE(mremap_shrinks)
{
    char *ptr = map_pages(100, READ_WRITE, ANONYMOUS);
    CHECK(mremap(ptr, 100 * PAGE, 30 * PAGE - 7, 0) == ptr);
    CHECK_MAPPED(30 * PAGE);
    munmap(ptr, 30 * PAGE);
    CHECK_MAPPED(0);
}

CASE(mremap_grows_and_moves)
{
    char *ptr = map_pages(100, READ_WRITE, ANONYMOUS);
    char *wall = mmap(ptr + 100 * PAGE, PAGE, PROT_NONE, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    ptr[0] = 42;
    CHECK(mremap(ptr, 100 * PAGE, 200 * PAGE, 0) == MAP_FAILED && errno == ENOMEM);
    CHECK_MAPPED(100 * PAGE);
    char *moved = mremap(ptr, 100 * PAGE, 300 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && moved != ptr && moved[0] == 42);
    CHECK_MAPPED(300 * PAGE);
    munmap(moved, 300 * PAGE);
    CHECK_MAPPED(0);
    if (wall != MAP_FAILED)
        munmap(wall, PAGE);
}

CASE(mremap_grows_in_place)
{
    char *room = map_pages(100, PROT_NONE, ANONYMOUS);
    CHECK(mmap(room, 50 * PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == room);
    munmap(room + 50 * PAGE, 50 * PAGE);
    CHECK(mremap(room, 50 * PAGE, 80 * PAGE, 0) == room);
    CHECK_MAPPED(80 * PAGE);
    munmap(room, 80 * PAGE);
    CHECK_MAPPED(0);
}

CASE(mremap_of_the_middle_splits)
{
    char *ptr = map_pages(100, READ_WRITE, ANONYMOUS), *room = map_pages(50, READ_WRITE, ANONYMOUS);
    CHECK_MAPPED(150 * PAGE);
    char *moved = mremap(ptr + 40 * PAGE, 20 * PAGE, 30 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room + 5 * PAGE);
    CHECK(moved == room + 5 * PAGE);
    CHECK_MAPPED(80 * PAGE + 50 * PAGE);
    munmap(ptr + 40 * PAGE, 20 * PAGE); /* a hole */
    CHECK_MAPPED(130 * PAGE);
    moved = mremap(ptr + 10 * PAGE, 10 * PAGE, 5 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved == ptr + 10 * PAGE);
    CHECK_MAPPED(125 * PAGE);
    munmap(ptr, 100 * PAGE);
    CHECK_MAPPED(50 * PAGE);
    munmap(room, 50 * PAGE);
    CHECK_MAPPED(0);
}

CASE(mremap_of_a_reservation_does_not_count)
{
    char *ptr = map_pages(100, PROT_NONE, ANONYMOUS);
    ptr = mremap(ptr, 100 * PAGE, 2000 * PAGE, MREMAP_MAYMOVE);
    CHECK(ptr != MAP_FAILED);
    CHECK_MAPPED(0);
    CHECK_EQUAL(mprotect(ptr + 500 * PAGE, PAGE, READ_WRITE), 0);
    CHECK_MAPPED(PAGE);
    munmap(ptr, 2000 * PAGE);
    CHECK_MAPPED(0);
}

CASE(mremap_dontunmap_counts_both)
{
    char *ptr = map_pages(100, READ_WRITE, ANONYMOUS);
    ptr[5 * PAGE] = 42;
    char *moved = mremap(ptr, 100 * PAGE, 100 * PAGE, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */, NULL);
    CHECK(moved != MAP_FAILED && moved != ptr && moved[5 * PAGE] == 42 && ptr[5 * PAGE] == 0);
    CHECK_MAPPED(200 * PAGE);
    munmap(ptr, 100 * PAGE);
    CHECK_MAPPED(100 * PAGE);
    munmap(moved, 100 * PAGE);
    CHECK_MAPPED(0);
}

static char *leave_and_move(char *ptr, size_t bytes)
{
    char *moved = mremap(ptr, bytes, bytes, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */, NULL);
    CHECK(moved != MAP_FAILED);
    look();
    return moved;
}

CASE(mremap_dontunmap_goes_where_its_address_hint_says)
{
    char *ptr = map_pages(100, READ_WRITE, ANONYMOUS), *hole = map_pages(1000, PROT_NONE, ANONYMOUS);
    char *free_place = hole + 500 * PAGE; /* without a hint the kernel begins at an end of the hole */
    CHECK_EQUAL(munmap(hole, 1000 * PAGE), 0);
    char *moved = mremap(ptr, 100 * PAGE, 100 * PAGE, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */, free_place);
    if (moved == MAP_FAILED) {
        CHECK_EQUAL(errno, EINVAL); /* Linux 5.7 */
        return;
    }
    CHECK(moved == free_place);
    CHECK_MAPPED(200 * PAGE);
    char *again = mremap(ptr, 100 * PAGE, 100 * PAGE, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */, free_place);
    CHECK(again != MAP_FAILED && again != free_place); /* a hint takes nothing away */
    CHECK_MAPPED(300 * PAGE);
}

CASE(mremap_dontunmap_promises_what_comes_anew_at_the_old_place)
{
    char *ptr = map_pages(8 * MIB / PAGE, READ_WRITE, ANONYMOUS);
    CHECK_EQUAL(madvise(ptr, 8 * MIB, MADV_NOHUGEPAGE), 0);
    memset(ptr, 1, 3 * MIB);
    look();
    CHECK_NEAR(segment->slot.promised_bytes, 5 * MIB);
    char *moved = leave_and_move(ptr, 8 * MIB);
    CHECK_NEAR(segment->slot.promised_bytes, (5 + 8) * MIB);
    memset(moved, 1, 8 * MIB);
    look();
    CHECK_NEAR(segment->slot.promised_bytes, 8 * MIB);
    char *again = leave_and_move(moved, 8 * MIB); /* all of it has come */
    CHECK_NEAR(segment->slot.promised_bytes, (8 + 8) * MIB);
    memset(ptr, 1, 8 * MIB);
    memset(moved, 1, 8 * MIB);
    look();
    CHECK_NEAR(segment->slot.promised_bytes, 0);
    CHECK(again[0] == 1);
}

CASE(mremap_dontunmap_of_shared_memory_promises_nothing_anew)
{
    char *ptr = map_pages(8 * MIB / PAGE, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS);
    memset(ptr, 1, 4 * MIB);
    look();
    uint64_t before = segment->slot.promised_bytes;
    char *moved = mremap(ptr, 8 * MIB, 8 * MIB, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */, NULL);
    CHECK(moved != MAP_FAILED || errno == EINVAL); /* since Linux 5.13 */
    look();
    CHECK_EQUAL(segment->slot.promised_bytes, before);
}

static void check_left_in_child(char *ptr)
{
    look();
    uint64_t before = segment->slot.promised_bytes;
    CHECK_EQUAL(segment->slot.inherited_promise_bytes, 8 * MIB);
    (void)leave_and_move(ptr, 8 * MIB);
    CHECK_EQUAL(segment->slot.promised_bytes - before, 8 * MIB);
    CHECK_EQUAL(segment->slot.inherited_promise_bytes, 8 * MIB);
}

CASE(mremap_dontunmap_of_an_inherited_mapping_promises_the_old_place)
{
    in_child(check_left_in_child, map_pages(8 * MIB / PAGE, READ_WRITE, ANONYMOUS));
}

CASE(mremap_of_shared_memory_with_old_size_zero_is_a_second_view)
{
    char *ptr = map_pages(100, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS);
    char *view = mremap(ptr, 0, 60 * PAGE, MREMAP_MAYMOVE);
    CHECK(view != MAP_FAILED && view != ptr);
    ptr[PAGE] = 42;
    CHECK(view[PAGE] == 42);
    CHECK_MAPPED(100 * PAGE);
    munmap(ptr, 100 * PAGE);
    CHECK_MAPPED(60 * PAGE);
    munmap(view, 60 * PAGE);
    CHECK_MAPPED(0);
}

/* ---- the same bytes at several addresses ---- */

static int memory_file(size_t bytes)
{
    int fd = memfd_create("map_cases", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    return fd;
}

static char *map_file(int fd, size_t offset, size_t bytes, int prot)
{
    char *ptr = mmap(NULL, bytes, prot, MAP_SHARED, fd, (off_t)offset);
    CHECK(ptr != MAP_FAILED);
    return ptr;
}

CASE(a_file_counts_once_however_often_it_is_mapped)
{
    int fd = memory_file(8 * MIB);
    char *view[3];
    for (size_t i = 0; i < 3; i++)
        view[i] = map_file(fd, 0, 8 * MIB, READ_WRITE);
    CHECK_MAPPED(8 * MIB);
    munmap(view[0], 8 * MIB);
    CHECK_MAPPED(8 * MIB);
    munmap(view[1] + MIB, 2 * MIB);
    CHECK_MAPPED(8 * MIB);
    munmap(view[2] + 2 * MIB, 4 * MIB);
    CHECK_MAPPED(7 * MIB); /* nobody has [2, 3) any more */
    munmap(view[1], 8 * MIB);
    CHECK_MAPPED(4 * MIB);
    munmap(view[2], 8 * MIB);
    CHECK_MAPPED(0);
}

CASE(ranges_of_a_file_that_overlap_count_once_where_they_do)
{
    int fd = memory_file(8 * MIB), other = memory_file(8 * MIB);
    char *low = map_file(fd, 0, 5 * MIB, READ_WRITE), *high = map_file(fd, 3 * MIB, 5 * MIB, READ_WRITE);
    CHECK_MAPPED(8 * MIB);
    char *third = map_file(other, 0, 2 * MIB, READ_WRITE); /* the same place in another file */
    CHECK_MAPPED(10 * MIB);
    munmap(low, 5 * MIB);
    CHECK_MAPPED(7 * MIB);
    munmap(high, 5 * MIB);
    munmap(third, 2 * MIB);
    CHECK_MAPPED(0);
}

CASE(a_read_only_view_of_what_counts_already_is_free_to_become_writable)
{
    int fd = memory_file(8 * MIB);
    char *view = map_file(fd, 0, 4 * MIB, READ_WRITE), *other = map_file(fd, 2 * MIB, 4 * MIB, PROT_READ);
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(mprotect(other, 2 * MIB, READ_WRITE), 0);
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(mprotect(other, 4 * MIB, READ_WRITE), 0);
    CHECK_MAPPED(6 * MIB);
    munmap(view, 4 * MIB);
    CHECK_MAPPED(4 * MIB);
    munmap(other, 4 * MIB);
    CHECK_MAPPED(0);
}

CASE(a_view_that_mremap_moved_or_grew_is_still_of_the_same_file)
{
    int fd = memory_file(8 * MIB);
    char *view = map_file(fd, 0, 4 * MIB, READ_WRITE), *other = map_file(fd, 4 * MIB, 4 * MIB, READ_WRITE);
    char *room = map_pages(10 * MIB / PAGE, PROT_NONE, ANONYMOUS);
    CHECK(mremap(view, 4 * MIB, 6 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
    CHECK_MAPPED(8 * MIB);
    munmap(other, 4 * MIB);
    CHECK_MAPPED(6 * MIB);
    CHECK(mmap(room + MIB, MIB, READ_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == room + MIB);
    CHECK_MAPPED(5 * MIB); /* [0, 1) twice, and [1, 2) no more */
    munmap(room, 10 * MIB);
    CHECK_MAPPED(0);
}

CASE(what_is_missing_of_a_file_is_promised_once_however_often_it_is_mapped)
{
    int fd = memory_file(16 * MIB);
    look();
    uint64_t before = segment->slot.promised_bytes;
    char *view = map_file(fd, 0, 16 * MIB, READ_WRITE), *other = map_file(fd, 8 * MIB, 8 * MIB, READ_WRITE);
    CHECK_EQUAL(segment->slot.promised_bytes - before, 16 * MIB);
    look();
    CHECK_EQUAL(segment->slot.promised_bytes - before, 16 * MIB);
    memset(other, 1, 4 * MIB);
    look();
    CHECK_EQUAL(segment->slot.promised_bytes - before, 12 * MIB);
    munmap(view, 16 * MIB);
    look();
    CHECK_EQUAL(segment->slot.promised_bytes - before, 4 * MIB);
    munmap(other, 8 * MIB);
}

static int file_of_child;

static void check_views_in_child(char *ptr)
{
    uint64_t inherited = live(SG_DOMAIN_MAPPED);
    char *again = map_file(file_of_child, 0, 4 * MIB, READ_WRITE);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), inherited);
    munmap(ptr, 4 * MIB);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), inherited);
    munmap(again, 4 * MIB);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), inherited - 4 * MIB);
}

CASE(a_forked_child_knows_what_it_has_mapped_already)
{
    file_of_child = memory_file(4 * MIB);
    in_child(check_views_in_child, map_file(file_of_child, 0, 4 * MIB, READ_WRITE));
    CHECK_MAPPED(4 * MIB);
}

/* Linux 6.1 has unmapped the fixed place by then, and what the old one has too much; 6.18 has not. What is left is what
 * counts. */
CASE(failing_mremap_to_a_fixed_place_counts_what_is_left)
{
    char *hole = map_pages(60, READ_WRITE, ANONYMOUS), *fixed = map_pages(60, READ_WRITE, ANONYMOUS);
    size_t left = 0;
    CHECK_EQUAL(munmap(hole + 10 * PAGE, 10 * PAGE), 0);
    CHECK_MAPPED(110 * PAGE);
    CHECK(mremap(hole, 60 * PAGE, 40 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, fixed) == MAP_FAILED && errno == EFAULT);
    for (size_t i = 0; i < 60; i++)
        left += (size_t)(msync(hole + i * PAGE, PAGE, MS_ASYNC) == 0) +
                (size_t)(msync(fixed + i * PAGE, PAGE, MS_ASYNC) == 0);
    CHECK_MAPPED(left * PAGE);
    CHECK_EQUAL(munmap(hole, 60 * PAGE), 0);
    CHECK_EQUAL(munmap(fixed, 60 * PAGE), 0);
    CHECK_MAPPED(0);
}

CASE(failing_mremap_changes_nothing)
{
    char *ptr = map_pages(100, READ_WRITE, ANONYMOUS);
    CHECK(mremap(ptr + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(ptr, PAGE, 0, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(ptr, PAGE, 2 * PAGE, 64) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(ptr, 10 * PAGE, 10 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, ptr + 5 * PAGE) == MAP_FAILED &&
          errno == EINVAL); /* onto itself */
    CHECK_MAPPED(100 * PAGE);
    char *gone = map_pages(10, READ_WRITE, ANONYMOUS);
    munmap(gone, 10 * PAGE);
    CHECK(mremap(gone, 10 * PAGE, 2000 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    CHECK_MAPPED(100 * PAGE);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    munmap(ptr, 100 * PAGE);
    CHECK_MAPPED(0);
}

/* ---- madvise ---- */

CASE(madvise_counts_as_before_and_promises_again)
{
    void *volatile refused;
    const size_t bytes = 32 * MIB;
    char *ptr = map_pages(bytes / PAGE, READ_WRITE, ANONYMOUS);
    memset(ptr, 1, bytes);
    refused = ask_for_too_much();
    CHECK_NEAR(segment->slot.promised_bytes, 0);
    CHECK_EQUAL(madvise(ptr, bytes / 2, MADV_DONTNEED), 0);
    CHECK_NEAR(segment->slot.promised_bytes, bytes / 2);
    refused = ask_for_too_much();
    CHECK_NEAR(segment->slot.promised_bytes, bytes / 2);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    memset(ptr, 1, bytes);
    refused = ask_for_too_much();
    CHECK(refused == NULL);
    CHECK_NEAR(segment->slot.promised_bytes, 0);
    CHECK_MAPPED(bytes);
    CHECK_EQUAL(madvise(ptr + 1, PAGE, MADV_DONTNEED), -1);
    CHECK_EQUAL(errno, EINVAL);
    munmap(ptr, bytes);
    CHECK_MAPPED(0);
}

CASE(touched_pages_are_no_promise)
{
    void *volatile refused;
    char *ptr = map_pages(64 * MIB / PAGE, READ_WRITE, ANONYMOUS);
    CHECK_EQUAL(madvise(ptr, 64 * MIB, MADV_NOHUGEPAGE), 0);
    refused = ask_for_too_much();
    CHECK_NEAR(segment->slot.promised_bytes, 64 * MIB);
    memset(ptr, 1, 24 * MIB);
    refused = ask_for_too_much();
    CHECK_NEAR(segment->slot.promised_bytes, 40 * MIB);
    CHECK(refused == NULL);
    munmap(ptr, 64 * MIB);
}

/* ---- the rest ---- */

CASE(errno_is_left_alone)
{
    errno = 77;
    char *ptr = map_pages(1000, READ_WRITE, ANONYMOUS);
    ptr = mremap(ptr, 1000 * PAGE, 2000 * PAGE, MREMAP_MAYMOVE);
    CHECK(mprotect(ptr, 5 * PAGE, PROT_NONE) == 0 && mprotect(ptr, 5 * PAGE, READ_WRITE) == 0);
    CHECK(madvise(ptr, 5 * PAGE, MADV_DONTNEED) == 0 && munmap(ptr, 2000 * PAGE) == 0);
    CHECK_EQUAL(errno, 77);
}

CASE(forked_child_begins_with_its_parents_figures)
{
    char *ptr = map_pages(1000, READ_WRITE, ANONYMOUS);
    pid_t child = fork();
    if (child == 0) {
        live_begin();
        CHECK_MAPPED(1000 * PAGE);
        CHECK_EQUAL(segment->inherited_domain_bytes[SG_DOMAIN_MAPPED], base + 1000 * PAGE);
        munmap(ptr + 10 * PAGE, 500 * PAGE);
        CHECK_MAPPED(500 * PAGE);
        munmap(ptr, 1000 * PAGE);
        CHECK_MAPPED(0);
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_MAPPED(1000 * PAGE);
    munmap(ptr, 1000 * PAGE);
    CHECK_MAPPED(0);
}

static void check_300_pages(char *ptr)
{
    CHECK_MAPPED(300 * PAGE);
    CHECK_EQUAL(segment->inherited_domain_bytes[SG_DOMAIN_MAPPED], base + 300 * PAGE);
    CHECK(segment->slot.inherited_promise_bytes <= base + 300 * PAGE + 4 * MIB);
    look();
    CHECK(segment->slot.inherited_promise_bytes <= 300 * PAGE);
    munmap(ptr, 200 * PAGE);
    munmap(ptr + 600 * PAGE, 100 * PAGE);
    CHECK_MAPPED(0);
}

CASE(forked_child_counts_nothing_that_was_not_forked)
{
    char *ptr = map_pages(1000, READ_WRITE, ANONYMOUS), *other = map_pages(10, PROT_NONE, ANONYMOUS);
    munmap(ptr + 400 * PAGE, 100 * PAGE);
    CHECK_EQUAL(madvise(other, 10 * PAGE, MADV_DONTFORK), 0);
    CHECK(madvise(ptr + 200 * PAGE, 800 * PAGE, MADV_DONTFORK) == -1 &&
          errno == ENOMEM); /* the hole; all else is done */
    CHECK_EQUAL(madvise(ptr + 600 * PAGE, 200 * PAGE, MADV_DOFORK), 0);
    CHECK_EQUAL(munmap(ptr + 700 * PAGE, 100 * PAGE), 0);
    CHECK_MAPPED(800 * PAGE);
    in_child(check_300_pages, ptr);
    CHECK_MAPPED(800 * PAGE);
}

static void check_none(char *ptr)
{
    (void)ptr;
    CHECK_MAPPED(0);
    CHECK(segment->slot.inherited_promise_bytes < 4 * MIB);
    look();
    CHECK_NEAR(segment->slot.inherited_promise_bytes, 0);
}

CASE(forked_child_counts_no_moved_mapping_that_was_not_forked)
{
    char *ptr = map_pages(1000, READ_WRITE, ANONYMOUS);
    CHECK_EQUAL(madvise(ptr, 1000 * PAGE, MADV_DONTFORK), 0);
    ptr = mremap(ptr, 1000 * PAGE, 3000 * PAGE, MREMAP_MAYMOVE);
    CHECK(ptr != MAP_FAILED);
    CHECK_MAPPED(3000 * PAGE);
    in_child(check_none, ptr);
    munmap(ptr, 3000 * PAGE);
}

CASE(forked_child_counts_no_segment_that_was_not_forked)
{
    int id = shmget(IPC_PRIVATE, 8 * MIB, IPC_CREAT | 0600);
    char *ptr = shmat(id, NULL, 0);
    CHECK(id >= 0 && ptr != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
    CHECK_EQUAL(madvise(ptr, 8 * MIB, MADV_DONTFORK), 0);
    CHECK_MAPPED(8 * MIB);
    in_child(check_none, ptr);
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_MAPPED(0);
}

CASE(forked_child_is_promised_no_block_that_was_not_forked)
{
    char *ptr = malloc(64 * MIB);
    CHECK(ptr != NULL);
    CHECK_EQUAL(madvise((char *)((uintptr_t)ptr & -PAGE) + PAGE, 63 * MIB, MADV_DONTFORK), 0);
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        live_begin();
        look();
        CHECK_NEAR(segment->slot.inherited_promise_bytes, 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    free(ptr);
}

static void check_wiped(char *ptr)
{
    CHECK_MAPPED(8 * MIB);
    look();
    CHECK_NEAR(segment->slot.inherited_promise_bytes, 4 * MIB);
    memset(ptr, 1, 8 * MIB);
    look();
    CHECK_NEAR(segment->slot.inherited_promise_bytes, 0);
}

/* What has come is promised again in the child. */
CASE(forked_child_inherits_the_promise_of_what_was_wiped)
{
    char *ptr = map_pages(8 * MIB / PAGE, READ_WRITE, ANONYMOUS);
    memset(ptr, 1, 8 * MIB);
    look();
    CHECK_EQUAL(madvise(ptr, 6 * MIB, MADV_WIPEONFORK), 0);
    CHECK_EQUAL(madvise(ptr, 2 * MIB, MADV_KEEPONFORK), 0);
    in_child(check_wiped, ptr);
    munmap(ptr, 8 * MIB);
    CHECK_MAPPED(0);
}

/* The kernel's own word: the flag "ac" of smaps marks what it has charged to its commit accounting. */
static uint64_t kernel_accounts(const char *begin, const char *end)
{
    static char line[512];
    uint64_t bytes = 0, low = 0, high = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, smaps) != NULL) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            low = from > (uintptr_t)begin ? from : (uintptr_t)begin;
            high = to < (uintptr_t)end ? to : (uintptr_t)end;
        }
        if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " ac") != NULL && high > low)
            bytes += high - low;
    }
    fclose(smaps);
    return bytes;
}

CASE(counts_what_the_kernel_accounts)
{
    unsigned random = 12345;
    char *ptr = map_pages(512, PROT_NONE, ANONYMOUS);
    for (int round = 0; round < 400; round++) {
        random = random * 1103515245 + 12345;
        size_t page = (random >> 8) % 480, count = 1 + (random >> 20) % 32;
        char *at = ptr + page * PAGE;
        switch ((random >> 17) % 7) {
        case 0:
            CHECK(mmap(at, count * PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == at);
            memset(at, 1, count * PAGE); /* what was never touched, the kernel forgets when it becomes unwritable */
            break;
        case 1:
            CHECK(mmap(at, count * PAGE, PROT_NONE, ANONYMOUS | MAP_FIXED, -1, 0) == at);
            break;
        case 2:
            CHECK(mmap(at, count * PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == at);
            break;
        case 3:
            if (msync(at, count * PAGE, MS_ASYNC) != 0)
                break; /* a hole: the kernel would do a part of it and fail */
            CHECK_EQUAL(mprotect(at, count * PAGE, READ_WRITE), 0);
            memset(at, 1, count * PAGE);
            break;
        case 4:
            (void)mprotect(at, count * PAGE, random & 16 ? PROT_NONE : PROT_READ);
            break;
        case 5:
            CHECK_EQUAL(munmap(at, count * PAGE), 0);
            break;
        default: {
            size_t to = (random >> 4) % 480;
            if (to + count <= page || page + count <= to)
                (void)mremap(at, count * PAGE, (1 + random % 32) * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
                             ptr + to * PAGE);
        }
        }
        CHECK_MAPPED(kernel_accounts(ptr, ptr + 512 * PAGE));
    }
    munmap(ptr, 512 * PAGE);
    CHECK_MAPPED(0);
}

int main(int count, char **arguments)
{
    live_begin();
    base = live(SG_DOMAIN_MAPPED);
    return run_case(count, arguments);
}
