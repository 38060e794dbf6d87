/*
 * fork_maps COUNT PAUSE_US FORKS - two threads map and unmap COUNT times, and pause, while a third one forks: prints
 * how many children do not know what their parent had mapped.
 */
#include "sparkguard.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEPT_BYTES ((size_t)64 << 20)

static atomic_int is_over;
static useconds_t pause_us;
static int maps;

static void *map(size_t bytes)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void *churn(void *unused)
{
    while (!is_over) {
        for (int i = 0; i < maps; i++)
            munmap(map((size_t)1 << 20), (size_t)1 << 20);
        if (pause_us != 0)
            usleep(pause_us); /* pace: a fork finds the time to pass */
    }
    return unused;
}

static int knows_little(void)
{
    struct sparkguard_stats stats = {.size = sizeof stats};
    return sparkguard_call_stats(&stats) != 0 || stats.mapped.live_bytes < KEPT_BYTES;
}

int main(int count, char **arguments)
{
    pthread_t thread[2];
    int forks = count == 4 ? atoi(arguments[3]) : 0, torn = 0, status = 0;
    maps = count == 4 ? atoi(arguments[1]) : 1;
    pause_us = count == 4 ? (useconds_t)atoi(arguments[2]) : 0;
    if (map(KEPT_BYTES) == MAP_FAILED || knows_little())
        return 1;
    for (int i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, churn, NULL);
    for (int i = 0; i < forks; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(knows_little() ? 3 : 0);
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
            (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3))
            return 2;
        torn += WEXITSTATUS(status) == 3;
    }
    is_over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    printf("%d\n", torn);
    return 0;
}
