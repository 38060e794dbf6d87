/*
 * refused_again WHAT LOG - has a request refused twice at once, and prints the numbers of the system calls that the
 * library made for the second one, but for readings of the clock: the real library reads it without a call. LOG is what
 * build/fault/libsparkguard.so writes (SG_FAULT_LOG).
 *
 * WHAT: malloc, calloc, realloc, mmap (each of 64 MiB), small (blocks of 1 MiB, then of 4 KiB, until one
 * is refused).
 */
#include "../program.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

enum { LOG_CAPACITY = 4088, HOLDS_NS = 5000000, ROUNDS = 12 };

static const volatile struct {
    uint64_t calls, faults;
    uint16_t number[LOG_CAPACITY];
} * fault_log;
static const char *what;
static void *volatile held;

static int is(const char *name)
{
    return strcmp(what, name) == 0;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int is_refused(void)
{
    if (is("malloc"))
        return malloc(64 * MIB) == NULL;
    if (is("calloc"))
        return calloc(64, MIB) == NULL;
    if (is("realloc"))
        return realloc(held, 64 * MIB) == NULL;
    if (is("mmap"))
        return mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
    return malloc(4096) == NULL;
}

int main(int count, char **arguments)
{
    NEED(count == 3);
    what = arguments[1];
    int file = open(arguments[2], O_RDONLY | O_CLOEXEC);
    held = malloc(4096);
    fault_log = mmap(NULL, sizeof *fault_log, PROT_READ, MAP_SHARED, file, 0);
    NEED(fault_log != MAP_FAILED && held != NULL);
    while (is("small") && malloc(MIB) != NULL) /* few calls: on a busy machine each may be several in the log */
        ;
    for (int i = 0; is("small") && i < 100000 && !is_refused(); i++)
        ;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t begin = now_ns();
        NEED(is_refused());
        uint64_t before = fault_log->calls;
        NEED(is_refused());
        uint64_t after = fault_log->calls;
        NEED(after < LOG_CAPACITY);
        if (now_ns() - begin < HOLDS_NS) { /* else the machine is busy, and the first refusal was over */
            for (; before < after; before++)
                if (fault_log->number[before] != SYS_clock_gettime)
                    printf("%u ", fault_log->number[before]);
            puts("done");
            return 0;
        }
    }
    puts("too slow");
    return 0;
}
