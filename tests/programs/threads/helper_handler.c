/*
 * helper_handler - a signal handler takes blocks all the time, also while the library begins its threads: says what the
 * handlers took, and by how much the process's live heap grew.
 */
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>

#include "sparkguard.h"

enum { MOST = 200000 };

static void *kept[MOST];
static volatile sig_atomic_t count;

static void take(int number)
{
    (void)number;
    if (count < MOST)
        kept[count++] = malloc(5000);
}

int main(void)
{
    struct sparkguard_stats before, after;
    const struct itimerval often = {{0, 15}, {0, 15}}, never = {{0, 0}, {0, 0}};
    size_t taken = 0;
    free(malloc(100));
    signal(SIGALRM, take);
    if (sparkguard_stats(&before) != 0)
        return 1;
    setitimer(ITIMER_REAL, &often, NULL);
    void *map = mmap(NULL, 300 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    setitimer(ITIMER_REAL, &never, NULL);
    munmap(map, 300 << 20);
    if (sparkguard_stats(&after) != 0)
        return 1;
    for (int i = 0; i < count; i++)
        taken += malloc_usable_size(kept[i]);
    printf("%zu %lld\n", taken, (long long)(after.heap.live_bytes - before.heap.live_bytes));
    return 0;
}
