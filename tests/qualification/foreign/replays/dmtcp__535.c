/* dmtcp/dmtcp#535: a thread is created in the child's fork handler, which allocates. */
#include "replay.h"

static pthread_t helper;

static void *help(void *argument)
{
    for (int i = 0; i < 100; i++)
        free(malloc((size_t)i * 20000));
    return argument;
}

static void in_child(void)
{
    NEED(pthread_create(&helper, NULL, help, NULL) == 0);
}

int main(void)
{
    pthread_t threads[3];
    NEED(pthread_atfork(NULL, NULL, in_child) == 0);
    begin(threads, 3);
    int sum = 0;
    for (int round = 0; round < 30; round++) {
        pid_t child = fork();
        if (child == 0) {
            NEED(pthread_join(helper, NULL) == 0);
            free(malloc(2 * MIB));
            _exit(2);
        }
        sum += WEXITSTATUS(status_of(child));
    }
    end(threads, 3);
    printf("%d\n", sum);
    return 0;
}
