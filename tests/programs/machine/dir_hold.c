/* Holds argv[1] MiB in argv[2] threads (default: the first one only), says "ready", waits for standard input to end.
 * At each "s" that comes there it calls an exec that fails. With argv[3] it first holds so many MiB by itself, says
 * "waiting" and waits for a byte. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_barrier_t all_hold, may_end;

static void *hold(void *bytes)
{
    void *volatile block = malloc((size_t)bytes);
    pthread_barrier_wait(&all_hold);
    pthread_barrier_wait(&may_end);
    free(block);
    return NULL;
}

int main(int count, char **arguments)
{
    size_t bytes = (size_t)(count > 1 ? atol(arguments[1]) : 20) << 20;
    long threads = count > 2 ? atol(arguments[2]) : 0;
    void *volatile block = threads == 0 ? malloc(bytes) : NULL;
    char byte;
    if (count > 3) {
        void *volatile held = malloc((size_t)atol(arguments[3]) << 20);
        dprintf(1, "waiting\n");
        if (held == NULL || read(0, &byte, 1) != 1)
            return 3;
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    pthread_barrier_init(&all_hold, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&may_end, NULL, (unsigned)threads + 1);
    for (long i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, hold, (void *)(bytes / (size_t)threads)) != 0)
            return 1;
        pthread_detach(thread);
    }
    pthread_barrier_wait(&all_hold);
    dprintf(1, "ready\n");
    ssize_t more = read(0, &byte, 1);
    for (; more == 1 && byte == 's'; more = read(0, &byte, 1))
        execv("/nowhere/nothing", arguments);
    pthread_barrier_wait(&may_end);
    return block == NULL && threads == 0 ? 2 : more > 0;
}
