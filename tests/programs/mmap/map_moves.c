/*
 * map_moves SECONDS - a mapping of 1 GiB, of which nothing is there, moves between two places while another thread is
 * refused what is more than there is, which looks at everything: of the mapping nothing may be missed. Says the least
 * that was promised, in MiB.
 */
#include "heap_case.h"
#include "look.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

static atomic_bool is_over;
static char *begin;

/* Up and down: the kernel gives the place that was left last, or one below. */
static void *move(void *unused)
{
    for (char *at = begin; !atomic_load(&is_over);) {
        void *wanted = mmap(NULL, 1024 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(wanted != MAP_FAILED);
        CHECK(mremap(at, 1024 * MIB, 1024 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, wanted) == wanted);
        at = wanted;
    }
    return unused;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    CHECK(count == 2);
    begin = mmap(NULL, 1024 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(begin != MAP_FAILED);
    live_begin();
    uint64_t least = UINT64_MAX, scans = 0;
    CHECK(pthread_create(&thread, NULL, move, NULL) == 0);
    for (time_t end = time(NULL) + atoi(arguments[1]); time(NULL) < end; scans++) {
        void *volatile most = ask_for_too_much();
        CHECK(most == NULL);
        uint64_t promised = __atomic_load_n(&segment->slot.promised_bytes, __ATOMIC_SEQ_CST);
        least = promised < least ? promised : least;
    }
    atomic_store(&is_over, true);
    CHECK(pthread_join(thread, NULL) == 0);
    printf("%zu\n", (size_t)(least / MIB));
    fprintf(stderr, "%zu scans\n", (size_t)scans);
    return 0;
}
