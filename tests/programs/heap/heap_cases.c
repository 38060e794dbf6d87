/*
 * heap_cases CASE - one misuse or corner of the heap each. SPARKGUARD_LIMIT is 32M.
 */
#include "heap_case.h"

#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

static void *volatile sink; /* what the compiler must not reason about */

/* A value that gcc does not know to be too large. */
static size_t huge(size_t size)
{
    volatile size_t hidden = size;
    return hidden;
}

/* A pointer that gcc does not know to be used again after a realloc that fails. */
static void *hidden(void *ptr)
{
    void *volatile copy = ptr;
    return copy;
}

/* The libc's own function, by its table of symbols: a look-up by its handle finds the hook. The table ends where the
 * names begin. */
static void *function_of_libc(const char *name)
{
    const struct link_map *map = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    CHECK(dlinfo(dlopen("libc.so.6", RTLD_LAZY), RTLD_DI_LINKMAP, &map) == 0);
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_SYMTAB)
            symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_STRTAB)
            names = (const char *)entry->d_un.d_ptr;
    for (const ElfW(Sym) *one = symbols; (const char *)one < names; one++)
        if (one->st_value != 0 && strcmp(names + one->st_name, name) == 0)
            return (void *)(map->l_addr + one->st_value);
    return NULL;
}

CASE(refused_realloc_keeps_block)
{
    unsigned char *ptr = malloc(20 * MIB);
    for (size_t i = 0; i < 20 * MIB; i += 4096)
        ptr[i] = (unsigned char)(i >> 12);
    uint64_t before = live(SG_DOMAIN_HEAP);
    errno = 0;
    void *moved = realloc(hidden(ptr), 40 * MIB);
    CHECK(moved == NULL && errno == ENOMEM);
    errno = 0;
    moved = reallocarray(hidden(ptr), 40, MIB);
    CHECK(moved == NULL && errno == ENOMEM);
    for (size_t i = 0; i < 20 * MIB; i += 4096)
        CHECK_EQUAL(ptr[i], (unsigned char)(i >> 12));
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    ptr = realloc(ptr, 24 * MIB);
    CHECK(ptr != NULL);
    free(ptr);
    CHECK_EQUAL(segment->unmatched_frees, 0);
}

CASE(refused_realloc_of_small_block_keeps_it)
{
    char *ptr = malloc(100), *filler = malloc(30 * MIB);
    strcpy(ptr, "still here");
    errno = 0;
    CHECK(realloc(hidden(ptr), 4 * MIB) == NULL && errno == ENOMEM);
    CHECK(strcmp(ptr, "still here") == 0);
    free(ptr);
    free(filler);
}

CASE(overflowing_calloc_and_reallocarray_answer_enomem)
{
    char *ptr = malloc(100);
    strcpy(ptr, "still here");
    uint64_t before = live(SG_DOMAIN_HEAP);
    errno = 0;
    sink = calloc(huge(SIZE_MAX / 2), 4);
    CHECK(sink == NULL && errno == ENOMEM);
    errno = 0;
    sink = calloc(huge((size_t)1 << 33), (size_t)1 << 33);
    CHECK(sink == NULL && errno == ENOMEM);
    errno = 0;
    sink = reallocarray(hidden(ptr), huge(SIZE_MAX), 2);
    CHECK(sink == NULL && errno == ENOMEM);
    CHECK(strcmp(ptr, "still here") == 0);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    CHECK_EQUAL(refused_count(SG_DOMAIN_HEAP), 0); /* not for want of memory */
    free(ptr);
}

CASE(more_than_ptrdiff_max_answers_enomem)
{
    static const size_t sizes[] = {PTRDIFF_MAX, (size_t)PTRDIFF_MAX + 1, SIZE_MAX - 4096, SIZE_MAX};
    uint64_t before = live(SG_DOMAIN_HEAP);
    for (size_t i = 0; i < 4; i++) {
        void *out = &before, *ptr = malloc(10);
        errno = 0;
        sink = malloc(huge(sizes[i]));
        CHECK(sink == NULL && errno == ENOMEM);
        errno = 0;
        sink = calloc(1, huge(sizes[i]));
        CHECK(sink == NULL && errno == ENOMEM);
        errno = 0;
        sink = realloc(hidden(ptr), huge(sizes[i]));
        CHECK(sink == NULL && errno == ENOMEM);
        errno = 0;
        sink = memalign(64, huge(sizes[i]));
        CHECK(sink == NULL && errno == ENOMEM);
        errno = 0;
        sink = valloc(huge(sizes[i]));
        CHECK(sink == NULL && errno == ENOMEM);
        errno = 0;
        sink = pvalloc(huge(sizes[i]));
        CHECK(sink == NULL && errno == ENOMEM);
        CHECK_EQUAL(posix_memalign(&out, 64, huge(sizes[i])), ENOMEM);
        CHECK(out == &before);
        free(ptr);
    }
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
}

CASE(bad_alignment_answers_einval)
{
    void *mark = NULL, *out = &mark;
    uint64_t before = live(SG_DOMAIN_HEAP);
    errno = 77;
    CHECK_EQUAL(posix_memalign(&out, huge(3), 100), EINVAL);
    CHECK_EQUAL(posix_memalign(&out, huge(4), 100), EINVAL);
    CHECK_EQUAL(posix_memalign(&out, huge(0), 100), EINVAL);
    CHECK_EQUAL(posix_memalign(&out, huge(24), 5 * MIB), EINVAL);
    CHECK(errno == 77 && out == &mark);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    CHECK_EQUAL(refused_count(SG_DOMAIN_HEAP), 0);
}

/* The allocator's own failure, not a refusal. */
CASE(failed_posix_memalign_leaves_errno_as_the_allocator_does)
{
    static const size_t alignments[] = {0, 3, 4, 24, 64}, sizes[] = {100, PTRDIFF_MAX, SIZE_MAX};
    int (*real)(void **, size_t, size_t) = (int (*)(void **, size_t, size_t))function_of_libc("posix_memalign");
    CHECK(real != NULL && real != posix_memalign);
    for (size_t i = 0; i < 15; i++) {
        size_t alignment = huge(alignments[i / 3]), size = huge(sizes[i % 3]);
        void *out = NULL;
        errno = 77;
        int expected = real(&out, alignment, size), expected_errno = errno;
        free(out);
        errno = 77;
        CHECK_EQUAL(posix_memalign(&out, alignment, size), expected);
        CHECK_EQUAL(errno, expected_errno);
        if (expected == 0)
            free(out);
    }
    CHECK_EQUAL(refused_count(SG_DOMAIN_HEAP), 0);
}

/* How often this process has read anything, by the kernel's count. */
static uint64_t reads(void)
{
    char text[1024] = "";
    int fd = open("/proc/self/io", O_RDONLY);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    const char *line = length > 0 ? strstr(text, "syscr: ") : NULL;
    if (fd >= 0)
        close(fd);
    return line != NULL ? strtoull(line + 7, NULL, 10) : 0;
}

/* More bytes than addresses: no look at the machine can tell anything new. */
CASE(what_no_machine_can_grant_is_refused_without_a_snapshot)
{
    uint64_t before = reads();
    for (int i = 0; i < 1000; i++) {
        errno = 0;
        CHECK((sink = malloc(huge(PTRDIFF_MAX))) == NULL && errno == ENOMEM);
        CHECK((sink = calloc(huge((size_t)1 << 53), 1)) == NULL && errno == ENOMEM);
        CHECK((sink = realloc(NULL, huge((size_t)1 << 60))) == NULL && errno == ENOMEM);
    }
    CHECK(reads() - before < 10);
}

CASE(alignment_is_kept)
{
    for (size_t alignment = 16; alignment <= 2 * MIB; alignment *= 2)
        for (size_t size = 10; size < 8 * MIB; size *= 80) {
            void *a = aligned_alloc(alignment, size), *m = memalign(alignment, size), *p = NULL;
            CHECK_EQUAL(posix_memalign(&p, alignment, size), 0);
            CHECK(((uintptr_t)a | (uintptr_t)m | (uintptr_t)p) % alignment == 0);
            free(a);
            free(m);
            free(p);
        }
    void *v = valloc(10);
    CHECK((uintptr_t)v % PAGE == 0);
    free(v);
}

/* Admitted, and then the kernel has not got it. */
CASE(failure_of_the_allocator_changes_nothing)
{
    struct rlimit limit;
    unsigned char *ptr = malloc(2 * MIB), *small = malloc(100);
    ptr[0] = small[0] = 42;
    uint64_t before = live(SG_DOMAIN_HEAP);
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    limit.rlim_cur = 4 * MIB;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    errno = 0;
    sink = realloc(hidden(ptr), 20 * MIB);
    CHECK(sink == NULL && errno == ENOMEM && ptr[0] == 42);
    sink = realloc(hidden(small), 20 * MIB);
    CHECK(sink == NULL && small[0] == 42);
    sink = malloc(20 * MIB);
    CHECK(sink == NULL);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    CHECK_EQUAL(refused_count(SG_DOMAIN_HEAP), 0);
    before -= malloc_usable_size(ptr) + malloc_usable_size(small);
    free(ptr);
    free(small);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    CHECK_EQUAL(segment->unmatched_frees, 0);
}

CASE(realloc_to_zero_frees)
{
    uint64_t frees, frees_before, before = live(SG_DOMAIN_HEAP);
    (void)heap_calls(&frees_before);
    for (size_t size = 10; size < 20 * MIB; size *= 20) {
        void *ptr = malloc(size);
        CHECK(realloc(ptr, huge(0)) == NULL); /* glibc's way */
        CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    }
    (void)heap_calls(&frees);
    CHECK_EQUAL(frees - frees_before, 5);
    CHECK_EQUAL(segment->unmatched_frees, 0);
}

/* glibc adds a page to a block with a mapping of its own that is asked for exactly what it has. */
CASE(realloc_to_what_the_block_has_takes_nothing)
{
    for (size_t size = 100; size < 20 * MIB; size *= 7) {
        unsigned char *ptr = malloc(size);
        ptr[0] = 42;
        size_t usable = malloc_usable_size(ptr);
        uint64_t before = live(SG_DOMAIN_HEAP);
        for (size_t less = 0; less < 16 && less < usable; less++) {
            ptr = realloc(ptr, usable - less);
            CHECK(ptr != NULL && ptr[0] == 42);
            CHECK(malloc_usable_size(ptr) >= usable - less && malloc_usable_size(ptr) <= usable);
        }
        CHECK(live(SG_DOMAIN_HEAP) <= before);
        free(ptr);
    }
}

CASE(realloc_of_a_block_from_another_entry_point_is_unmatched)
{
    void *(*entry)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "__libc_malloc");
    CHECK(entry != NULL);
    uint64_t before = live(SG_DOMAIN_HEAP);
    void *ptr = realloc(entry(300000), 400000);
    CHECK_EQUAL(segment->unmatched_frees, 1);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, malloc_usable_size(ptr));
    free(ptr);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    ptr = realloc(entry(3 * MIB), huge(0));
    CHECK_EQUAL(segment->unmatched_frees, 2);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
}

CASE(free_of_a_block_from_another_entry_point_is_unmatched)
{
    void *(*entry)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "__libc_malloc");
    CHECK(entry != NULL);
    uint64_t before = live(SG_DOMAIN_HEAP);
    free(entry(300000));
    CHECK_EQUAL(segment->unmatched_frees, 1);
    free(entry(3 * MIB));
    CHECK_EQUAL(segment->unmatched_frees, 2);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
}

CASE(block_that_went_through_another_entry_point_is_unmatched_once_its_address_is_anothers)
{
    void (*entry)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "__libc_free");
    CHECK(entry != NULL);
    uint64_t before = live(SG_DOMAIN_HEAP);
    for (uint64_t times = 1; times <= 2; times++) {
        void *ptr = malloc(300000), *gone = hidden(ptr);
        entry(ptr);
        CHECK_EQUAL(segment->unmatched_frees, times - 1);
        ptr = malloc(300000);
        CHECK(ptr == gone);
        CHECK_EQUAL(segment->unmatched_frees, times);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, malloc_usable_size(ptr));
        free(ptr);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    }
}

CASE(realloc_of_null_allocates)
{
    uint64_t before = live(SG_DOMAIN_HEAP);
    void *ptr = realloc(NULL, 0), *other = realloc(NULL, 3 * MIB);
    CHECK(ptr != NULL && other != NULL);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, malloc_usable_size(ptr) + malloc_usable_size(other));
    free(ptr);
    free(other);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
}

CASE(free_of_null_does_nothing)
{
    uint64_t frees, frees_before, before = live(SG_DOMAIN_HEAP);
    (void)heap_calls(&frees_before);
    free(sink);
    CHECK_EQUAL(malloc_usable_size(sink), 0);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    (void)heap_calls(&frees);
    CHECK_EQUAL(frees, frees_before);
}

CASE(errno_is_left_alone)
{
    for (size_t size = 10; size < 16 * MIB; size *= 7) {
        errno = 77;
        void *ptr = malloc(size);
        CHECK_EQUAL(errno, 77);
        ptr = realloc(ptr, size + size / 2);
        CHECK_EQUAL(errno, 77);
        free(ptr);
        CHECK_EQUAL(errno, 77);
        ptr = calloc(1, size);
        free(ptr);
        CHECK_EQUAL(errno, 77);
    }
}

/* Run with an allocator behind that has these functions. */
CASE(blocks_freed_with_their_size_are_counted)
{
    void (*free_with)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    void (*free_aligned_with)(void *, size_t, size_t) =
        (void (*)(void *, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
    CHECK(free_with != NULL && free_aligned_with != NULL);
    uint64_t before = live(SG_DOMAIN_HEAP), frees, frees_before, calls = heap_calls(&frees_before), blocks = 0;
    for (size_t size = 10; size < 16 * MIB; size *= 3) {
        errno = 77;
        free_with(malloc(size), size);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
        void *ptr = aligned_alloc(64, size / 64 * 64 + 64);
        free_aligned_with(ptr, 64, size / 64 * 64 + 64);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
        CHECK_EQUAL(errno, 77);
        blocks += 2;
    }
    free_with(sink, 0);
    free_aligned_with(sink, 64, 0);
    CHECK_EQUAL(heap_calls(&frees) - calls, blocks);
    CHECK_EQUAL(frees - frees_before, blocks);
    CHECK_EQUAL(segment->unmatched_frees, 0);
}

CASE(usable_size_is_the_allocators)
{
    size_t (*real)(void *) = (size_t(*)(void *))function_of_libc("malloc_usable_size");
    CHECK(real != NULL && real != malloc_usable_size);
    for (size_t size = 1; size < 16 * MIB; size *= 3) {
        void *ptr = malloc(size);
        CHECK_EQUAL(malloc_usable_size(ptr), real(ptr));
        free(ptr);
    }
}

CASE(calloc_gives_zeros)
{
    for (size_t size = 100; size < 8 * MIB; size *= 5) {
        unsigned char *ptr = malloc(size);
        memset(ptr, 0xff, size);
        free(ptr);
        ptr = calloc(size / 10, 10);
        for (size_t i = 0; i < size / 10 * 10; i++)
            CHECK(ptr[i] == 0);
        free(ptr);
    }
}

/* ---- the fastest ways, and what is not usual for them ---- */

CASE(small_blocks_in_mappings_of_their_own_are_counted)
{
    enum { BLOCKS = 400 };
    static void *block[BLOCKS];
    unsigned mapped = 0;
    uint64_t sum = 0, before = live(SG_DOMAIN_HEAP), frees, frees_before, calls_before = heap_calls(&frees_before);
    CHECK(mallopt(M_MMAP_THRESHOLD, 4096) == 1);
    for (size_t i = 0; i < BLOCKS; i++) {
        block[i] = i % 3 == 0   ? malloc(5000 + i)
                   : i % 3 == 1 ? calloc(1, 9000 + i)
                                : realloc(malloc(100 + i), 7000 + i);
        mapped += (((uint64_t *)block[i])[-1] & 2) != 0; /* what is left of the heap is used up first */
        sum += malloc_usable_size(block[i]);
    }
    CHECK(mapped > BLOCKS / 2);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, sum);
    for (size_t i = 0; i < BLOCKS; i++) {
        block[i] = realloc(block[i], i % 2 == 0 ? 12000 : 64);
        CHECK(block[i] != NULL);
        sum = i == 0 ? malloc_usable_size(block[0]) : sum + malloc_usable_size(block[i]);
    }
    CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, sum);
    for (size_t i = 0; i < BLOCKS; i++)
        free(block[i]);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    CHECK_EQUAL(heap_calls(&frees) - calls_before, BLOCKS);
    CHECK_EQUAL(frees - frees_before, BLOCKS);
    CHECK_EQUAL(segment->unmatched_frees, 0);
}

CASE(sizes_around_the_tracked_are_counted)
{
    uint64_t before = live(SG_DOMAIN_HEAP);
    for (size_t size = 65536 - 200; size < 65536 + 200; size++) {
        void *ptr = size % 2 == 0 ? malloc(size) : calloc(size, 1);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, malloc_usable_size(ptr));
        ptr = realloc(ptr, 131072 - size);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, malloc_usable_size(ptr));
        free(ptr);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    }
    CHECK_EQUAL(segment->unmatched_frees, 0);
}

/* Small ones are taken before they are paid: one that is refused goes back. */
CASE(refused_small_block_goes_back)
{
    enum { BLOCKS = 4000 };
    static void *block[BLOCKS];
    uint64_t sum = 0, before = live(SG_DOMAIN_HEAP), frees, calls = heap_calls(&frees);
    size_t taken = 0;
    while (taken < BLOCKS && (block[taken] = taken % 2 == 0 ? malloc(60000) : calloc(60, 1000)) != NULL)
        sum += malloc_usable_size(block[taken++]);
    CHECK(taken < BLOCKS && errno == ENOMEM && refused_count(SG_DOMAIN_HEAP) == 1);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, sum);
    CHECK_EQUAL(heap_calls(&frees) - calls, taken);
    struct mallinfo2 in_use = mallinfo2();
    CHECK(malloc(60000) == NULL && calloc(60, 1000) == NULL);
    CHECK_EQUAL(mallinfo2().uordblks, in_use.uordblks);
    while (taken > 0)
        free(block[--taken]);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
}

/* ---- what people see: run by tests that read stderr ---- */

CASE(refuse_a_thousand_times_at_once)
{
    for (int i = 0; i < 1000; i++)
        CHECK((sink = malloc(64 * MIB)) == NULL);
    CHECK_EQUAL(refused_count(SG_DOMAIN_HEAP), 1000);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Prints how long it took by the clock: more on a busy machine. */
CASE(refuse_for_more_than_a_second)
{
    double begin = seconds(), first_end = 0;
    for (double now = begin; first_end == 0 || now - first_end < 1.2;) {
        now = seconds();
        CHECK((sink = malloc(64 * MIB)) == NULL);
        first_end = first_end != 0 ? first_end : seconds();
    }
    printf("%.6f\n", seconds() - begin);
}

/* With LARGE above all of them: the limit may be passed by 32 MiB, then small ones are refused, too. */
CASE(refuse_small_ones_only)
{
    unsigned taken = 0;
    while (taken < 1000 && (sink = malloc(512 * 1024)) != NULL)
        taken++;
    CHECK(taken >= 64 && taken <= 140);
    CHECK(errno == ENOMEM);
    CHECK(refused_count(SG_DOMAIN_HEAP) > 0);
}

CASE(refuse_twenty_mebibytes_more)
{
    void *held = malloc(20 * MIB);
    CHECK((sink = calloc(5 * MIB, 4)) == NULL);
    free(held);
}

/* ---- threads ---- */

enum { HANDED = 2000 };
static void *handed[HANDED];

static void *allocate_all(void *unused)
{
    for (size_t i = 0; i < HANDED; i++)
        handed[i] = malloc(i % 50 == 0 ? 70000 : 1 + i * 7 % 3000);
    return unused;
}

static void *free_all(void *unused)
{
    for (size_t i = 0; i < HANDED; i++)
        free(handed[i]);
    return unused;
}

static void in_thread(void *(*run)(void *))
{
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, run, NULL), 0);
    pthread_join(thread, NULL);
}

CASE(blocks_freed_by_another_thread_are_counted)
{
    uint64_t before, sum = 0;
    in_thread(allocate_all); /* the libc's own block for a thread's stack and TLS stays for the next */
    in_thread(free_all);
    before = live(SG_DOMAIN_HEAP);
    in_thread(allocate_all);
    for (size_t i = 0; i < HANDED; i++)
        sum += malloc_usable_size(handed[i]);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, sum);
    in_thread(free_all);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
}

CASE(records_of_dead_threads_are_adopted)
{
    in_thread(allocate_all);
    in_thread(free_all);
    uint64_t before = live(SG_DOMAIN_HEAP);
    for (int i = 0; i < 300; i++)
        in_thread(i % 2 == 0 ? allocate_all : free_all);
    CHECK(segment->record_used <= SG_RECORD_FIRST); /* it did not grow by the number of threads */
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
}

static void *be_cancelled(void *unused)
{
    pthread_cancel(pthread_self());
    for (int i = 0; i < 3; i++)
        free(malloc(8 * MIB));
    pthread_testcancel();
    return unused;
}

/* Run with an allocator behind that has a cancellation point. */
CASE(cancelled_threads_leave_nothing_in_flight)
{
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        void *result = NULL;
        CHECK_EQUAL(pthread_create(&thread, NULL, be_cancelled, NULL), 0);
        CHECK_EQUAL(pthread_join(thread, &result), 0);
        CHECK(result == PTHREAD_CANCELED);
        CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    }
    CHECK_EQUAL(refused_count(SG_DOMAIN_HEAP), 0);
}

static void *be_cancelled_after_a_refusal(void *unused)
{
    CHECK(malloc((size_t)4096 * MIB) == NULL);
    pthread_cancel(pthread_self());
    pthread_testcancel();
    return unused;
}

/* A refused request must give cancellation back as it found it. */
CASE(thread_is_cancelled_after_a_refusal)
{
    pthread_t thread;
    void *result = NULL;
    CHECK_EQUAL(pthread_create(&thread, NULL, be_cancelled_after_a_refusal, NULL), 0);
    CHECK_EQUAL(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK_EQUAL(refused_count(SG_DOMAIN_HEAP), 1);
}

static pthread_barrier_t barrier;

static void *hold_one(void *out)
{
    *(void **)out = malloc(1000);
    pthread_barrier_wait(&barrier);
    return NULL;
}

/* More than the segment has room for when it is new. */
CASE(two_hundred_threads_at_once_are_counted)
{
    enum { THREADS = 200 };
    static void *block[THREADS];
    pthread_t thread[THREADS];
    uint64_t sum = 0, before = 0;
    for (int round = 0; round < 2; round++) { /* in the second one all that the libc keeps per thread is there */
        before = live(SG_DOMAIN_HEAP);
        CHECK_EQUAL(pthread_barrier_init(&barrier, NULL, THREADS), 0);
        sum = 0;
        for (int i = 0; i < THREADS; i++)
            CHECK_EQUAL(pthread_create(&thread[i], NULL, hold_one, &block[i]), 0);
        for (int i = 0; i < THREADS; i++)
            pthread_join(thread[i], NULL);
        for (int i = 0; i < THREADS; i++)
            sum += malloc_usable_size(block[i]);
        if (round == 1)
            CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, sum);
        for (int i = 0; i < THREADS; i++)
            free(block[i]);
    }
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    CHECK(segment->record_used > 64);
}

/* ---- when all is over ---- */

static pthread_key_t key;
static void *from_destructor[4];
static int destructor_rounds;

static void destroy(void *value)
{
    free(value);
    from_destructor[destructor_rounds] = malloc(3000 + (size_t)destructor_rounds);
    if (++destructor_rounds < 4)
        pthread_setspecific(key, malloc(destructor_rounds % 2 == 0 ? 80000 : 5000));
}

static void *set_key(void *unused)
{
    pthread_setspecific(key, malloc(5000));
    return unused;
}

CASE(blocks_of_thread_destructors_are_counted)
{
    in_thread(allocate_all);
    in_thread(free_all);
    uint64_t before = live(SG_DOMAIN_HEAP), sum = 0;
    CHECK_EQUAL(pthread_key_create(&key, destroy), 0);
    in_thread(set_key);
    CHECK_EQUAL(destructor_rounds, 4);
    for (int i = 0; i < 4; i++)
        sum += malloc_usable_size(from_destructor[i]);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, sum);
    for (uint32_t i = 1; i < segment->record_used; i++) /* a record that was given back is paid from no more */
        CHECK(segment->record[i].tid != 0 || segment->record[i].credit_bytes == 0);
    for (int i = 0; i < 4; i++)
        free(from_destructor[i]);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
}

static uint64_t live_at_exit;
static void *block_at_exit;

static void check_at_exit(void)
{
    void *other = malloc(2 * MIB);
    CHECK(other != NULL);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP) - live_at_exit, malloc_usable_size(other));
    free(other);
    live_at_exit -= malloc_usable_size(block_at_exit);
    free(block_at_exit);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), live_at_exit);
    CHECK((sink = malloc(64 * MIB)) == NULL); /* still guarded */
    if (write(1, "checked\n", 8) != 8)
        _exit(1);
}

CASE(pvalloc_gives_whole_pages)
{
    void *ptr = pvalloc(PAGE + 1);
    CHECK((uintptr_t)ptr % PAGE == 0 && malloc_usable_size(ptr) >= 2 * PAGE);
    free(ptr);
}

CASE(blocks_in_exit_handlers_are_counted)
{
    CHECK_EQUAL(atexit(check_at_exit), 0);
    block_at_exit = malloc(100000);
    live_at_exit = live(SG_DOMAIN_HEAP);
}

int main(int count, char **arguments)
{
    live_begin();
    return run_case(count, arguments);
}
