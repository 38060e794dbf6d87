/* Allocates, maps, grows and frees in three threads, at most 48 MiB at a time, until a timer of argv[1] microseconds
 * kills the process by SIGKILL, wherever it is. argv[2] seeds it. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static unsigned long next(unsigned long *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void *stress(void *seed)
{
    unsigned long state = (unsigned long)seed;
    void *block[16] = {0}, *map[16] = {0};
    for (;;) {
        unsigned long i = next(&state) % 16, size = next(&state) % (768 << 10) + 1;
        if (next(&state) % 3 == 0)
            block[i] = realloc(block[i], size);
        else
            free(block[i]), block[i] = malloc(size);
        if (map[i] != NULL)
            munmap(map[i], 256 << 10);
        map[i] = mmap(NULL, 256 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    long microseconds = count > 2 ? atol(arguments[1]) : 1000;
    unsigned long seed = count > 2 ? strtoul(arguments[2], NULL, 10) : 1;
    struct itimerspec when = {{0, 0}, {0, microseconds * 1000}};
    pthread_t thread[2];
    timer_t timer;
    free(malloc(2 << 20)); /* from here on it is in the report */
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &when, NULL) != 0)
        return 1;
    for (int i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, stress, (void *)(seed * 3 + (unsigned long)i));
    stress((void *)(seed * 3 + 2));
}
