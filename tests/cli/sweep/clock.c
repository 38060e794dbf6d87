/*
 * clock.c - the time of a sparkguard-sweep under test, preloaded (tests/cli/sweep/sweeping.py): it waits for news at most 10 ms at a
 * time, and a test moves its clock on, counts its waits and holds it in one through the file SWEEP_CLOCK.
 *
 * What it starts has the kernel's time: both variables are taken out of its environment.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS 10000000

struct shared {
    int64_t ahead_ns; /* written by the test */
    int64_t waits;    /* that have begun */
    int64_t limit;    /* written by the test: as many waits may end */
    int64_t is_held;  /* in a wait beyond them */
};

static struct shared own = {.limit = INT64_MAX};
static volatile struct shared *shared = &own;

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("SWEEP_CLOCK");
    int file = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = file >= 0 ? mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (map != MAP_FAILED)
        shared = map;
    if (file >= 0)
        close(file);
    unsetenv("LD_PRELOAD");
    unsetenv("SWEEP_CLOCK");
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + shared->ahead_ns;
    now->tv_sec = ns / 1000000000;
    now->tv_nsec = ns % 1000000000;
    return result;
}

__attribute__((visibility("default"))) int sigtimedwait(const sigset_t *set, siginfo_t *info,
                                                        const struct timespec *wait)
{
    struct timespec most = {.tv_nsec = WAIT_NS};
    if (wait->tv_sec == 0 && wait->tv_nsec < WAIT_NS)
        most = *wait;
    if (most.tv_nsec > 0)
        shared->waits++;
    while (most.tv_nsec > 0 && shared->waits > shared->limit) {
        shared->is_held = 1;
        syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 1000000}, NULL); /* poll: that the test lets it go on */
    }
    shared->is_held = 0;
    return (int)syscall(SYS_rt_sigtimedwait, set, info, &most, (size_t)8);
}
