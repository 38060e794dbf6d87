/*
 * canary MIB SECONDS - what someone who is logged in would feel: every 50 ms it writes to each page of its own memory,
 * and prints when that was due and how late it was done, both in nanoseconds of CLOCK_MONOTONIC.
 *
 * A round that was missed is done at once and counts with its own lateness: a silence of ten seconds is two hundred
 * late rounds, not one.
 */
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PERIOD_NS INT64_C(50000000)
#define PAGE 4096

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    size_t bytes = (size_t)atoll(arguments[1]) << 20;
    int64_t due = now_ns(), end = due + atoll(arguments[2]) * 1000000000;
    /* It is about memory: neither busy processors nor the OOM killer may end the measurement. Without privilege it
     * goes on as it is. A real-time class, because nice values count within a session only where those are grouped
     * (sched_autogroup). */
    (void)sched_setscheduler(0, SCHED_RR, &(struct sched_param){.sched_priority = 1});
    FILE *score = fopen("/proc/self/oom_score_adj", "w");
    if (score != NULL) {
        fputs("-1000", score);
        fclose(score);
    }
    char *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED)
        return 1;
    memset(own, 0x5a, bytes); /* pages of zeros would not be written to swap */
    for (due = now_ns() + PERIOD_NS; due < end; due += PERIOD_NS) {
        const struct timespec until = {due / 1000000000, due % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) /* pace: a round every 50 ms */
            ;
        for (size_t at = 0; at < bytes; at += PAGE)
            ((volatile char *)own)[at]++;
        if (dprintf(1, "%lld %lld\n", (long long)due, (long long)(now_ns() - due)) < 0)
            return 1;
    }
    return 0;
}
