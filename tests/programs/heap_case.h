/*
 * heap_case.h - for test programs: named cases, checks that say what they saw, and what the guard counts for this very
 * process, read in place from its segment (no call, no heap, nothing moves).
 *
 *     CASE(free_gives_back)
 *     {
 *         uint64_t before = live(SG_DOMAIN_HEAP);
 *         ...
 *         CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
 *     }
 *
 * A program runs the case named by its first argument: exit 0 passed, 1 a check failed, 2 no such case.
 */
#ifndef HEAP_CASE_H
#define HEAP_CASE_H

#include "sparkguard_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)sysconf(_SC_PAGESIZE))
#define UNUSED __attribute__((unused))

struct test_case {
    const char *name;
    void (*run)(void);
    struct test_case *next;
};

static struct test_case *all_cases;

#define CASE(id) \
    static void id(void); \
    static struct test_case case_##id = {#id, id, NULL}; \
    __attribute__((constructor)) static void enter_##id(void) \
    { \
        case_##id.next = all_cases; \
        all_cases = &case_##id; \
    } \
    static void id(void)

/* By write and _exit: a failed check must not be lost because the heap refuses, or in an atexit handler. */
static UNUSED void fail(const char *file, int line, const char *what, uint64_t is, uint64_t should_be)
{
    char text[512];
    int length = snprintf(text, sizeof text, "%s:%d: %s: %llu, not %llu (difference %lld)\n", file, line, what,
                          (unsigned long long)is, (unsigned long long)should_be, (long long)(is - should_be));
    if (write(1, text, (size_t)length) < 0)
        _exit(3);
    _exit(1);
}

#define CHECK(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition, 0, 1))
/* A promise, by the kernel's figure: it contains what the program has mapped writable and never touched, and the
 * kernel's counters of pages may be behind. */
#define CHECK_NEAR(is, should_be) \
    CHECK((uint64_t)(is) + (512 << 10) > (uint64_t)(should_be) && (uint64_t)(is) <= (uint64_t)(should_be) + (6 << 20))

#define CHECK_EQUAL(is, should_be) \
    do { \
        uint64_t is_ = (uint64_t)(is), should_be_ = (uint64_t)(should_be); \
        if (is_ != should_be_) \
            fail(__FILE__, __LINE__, #is, is_, should_be_); \
    } while (0)

static const struct sg_segment *segment;

/* Where our segment is mapped for writing, by the kernel's own list. */
static UNUSED const struct sg_segment *find_segment(void)
{
    static char maps[1 << 20];
    size_t length = 0;
    int fd = open("/proc/self/maps", O_RDONLY);
    for (ssize_t got; (got = read(fd, maps + length, sizeof maps - 1 - length)) > 0;)
        length += (size_t)got;
    close(fd);
    maps[length] = '\0';
    for (char *line = maps, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        if (strstr(line, " rw-s 00000000 ") != NULL && strstr(line, ".segment") != NULL)
            return (const struct sg_segment *)strtoull(line, NULL, 16);
    }
    return NULL;
}

/* Large enough that the library opens its segment. */
static UNUSED void live_begin(void)
{
    void *volatile ptr = malloc(2 * MIB);
    free(ptr);
    segment = find_segment();
    if (segment == NULL)
        fail(__FILE__, __LINE__, "no segment: is the program guarded?", 0, 1);
}

static UNUSED uint64_t live(enum sg_domain domain)
{
    uint64_t granted = __atomic_load_n(&segment->domain[domain].granted_bytes, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; domain == SG_DOMAIN_HEAP && i < segment->record_used; i++)
        granted -= (uint64_t)__atomic_load_n(&segment->record[i].credit_bytes, __ATOMIC_SEQ_CST) +
                   sg_array_credit_bytes(__atomic_load_n(&segment->record[i].array_credit, __ATOMIC_SEQ_CST));
    return granted;
}

static UNUSED uint64_t refused_count(enum sg_domain domain)
{
    return __atomic_load_n(&segment->domain[domain].refused_count, __ATOMIC_SEQ_CST);
}

/* The heap's calls are counted in the threads' records; record 0 is everybody's. */
static UNUSED uint64_t heap_calls(uint64_t *frees)
{
    uint64_t allocations = 0;
    *frees = 0;
    for (uint32_t i = 0; i == 0 || i < segment->record_used; i++) {
        allocations += __atomic_load_n(&segment->record[i].allocations, __ATOMIC_SEQ_CST);
        *frees += __atomic_load_n(&segment->record[i].frees, __ATOMIC_SEQ_CST);
    }
    return allocations;
}

static UNUSED int run_case(int count, char **arguments)
{
    for (struct test_case *it = all_cases; count > 1 && it != NULL; it = it->next)
        if (strcmp(it->name, arguments[1]) == 0) {
            it->run();
            return 0;
        }
    fprintf(stderr, "no such case\n");
    return 2;
}

#endif
