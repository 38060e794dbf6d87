/*
 * commit_steps COMMIT TOUCH STEPS ASKS [HOW] - a managed heap: reserves what STEPS pieces of COMMIT MiB take,
 * commits one after the other by mmap(MAP_FIXED), or by HOW: "mprotect", "fresh" (a mapping of its own). Of each it
 * touches TOUCH MiB, and takes as much off MemAvailable in $SPARKGUARD_SYSTEM_ROOT/proc/meminfo. It asks for a piece
 * until it is granted, but at most ASKS times, each time at another look of the guard's; then it ends. Before the
 * second one it waits until the guard's watchdog runs, if it is not off.
 *
 *     steps N       that were granted
 *     promised N    bytes, at the end
 */
#include "heap_case.h"
#include "look.h"

#include <time.h>

static size_t available_bytes;

static void write_meminfo(void)
{
    char path[4096], fresh[4200];
    snprintf(path, sizeof path, "%s/proc/meminfo", getenv("SPARKGUARD_SYSTEM_ROOT"));
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "w");
    CHECK(file != NULL);
    fprintf(file, "MemTotal: %zu kB\nMemFree: %zu kB\nMemAvailable: %zu kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
            (size_t)16 << 20, available_bytes >> 10, available_bytes >> 10);
    fclose(file);
    CHECK_EQUAL(rename(fresh, path), 0);
}

static void wait_for_another_look(void)
{
    const struct timespec pause = {0, 10000000};
    nanosleep(&pause, NULL); /* pace: a look at the machine serves for 5 ms */
}

static void wait_until_watched(void)
{
    const char *watchdog = getenv("SPARKGUARD_WATCHDOG");
    while ((watchdog == NULL || strcmp(watchdog, "off") != 0) &&
           (__atomic_load_n(&segment->slot.flags, __ATOMIC_SEQ_CST) & SG_SLOT_WATCHED) == 0)
        wait_for_another_look();
}

static char *commit(char *place, size_t bytes, const char *how)
{
    if (strcmp(how, "mprotect") == 0)
        return mprotect(place, bytes, PROT_READ | PROT_WRITE) == 0 ? place : MAP_FAILED;
    int fixed = strcmp(how, "fresh") == 0 ? 0 : MAP_FIXED;
    return mmap(fixed ? place : NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
}

int main(int count, char **arguments)
{
    if (count < 5)
        return 2;
    size_t bytes = strtoul(arguments[1], NULL, 10) * MIB, touched = strtoul(arguments[2], NULL, 10) * MIB;
    unsigned long steps = strtoul(arguments[3], NULL, 10), done = 0;
    long asks = strtol(arguments[4], NULL, 10);
    const char *how = count > 5 ? arguments[5] : "fixed";
    int noreserve = strcmp(how, "mprotect") == 0 ? 0 : MAP_NORESERVE;
    available_bytes = strtoul(getenv("AVAILABLE_MIB"), NULL, 10) * MIB;
    write_meminfo();
    live_begin();
    char *place = mmap(NULL, bytes * steps, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | noreserve, -1, 0);
    CHECK(place != MAP_FAILED);
    for (; done < steps; done++) {
        char *piece = MAP_FAILED;
        if (done == 1)
            wait_until_watched();
        for (long i = 0; i < asks && (piece = commit(place + done * bytes, bytes, how)) == MAP_FAILED; i++)
            wait_for_another_look();
        if (piece == MAP_FAILED)
            break;
        memset(piece, 1, touched);
        available_bytes -= touched;
        write_meminfo();
    }
    void *volatile most = ask_for_too_much(); /* what is refused, everything was looked at for */
    CHECK(most == NULL);
    printf("steps %lu\npromised %llu\n", done,
           (unsigned long long)__atomic_load_n(&segment->slot.promised_bytes, __ATOMIC_SEQ_CST));
    return 0;
}
