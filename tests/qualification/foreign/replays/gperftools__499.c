/* gperftools/gperftools#499: threads that fork while others allocate; a child waited for ever for a lock of the
 * heap. */
#include "replay.h"

static void *forks(void *argument)
{
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < 200; i++)
                free(malloc(100 + 3000 * (size_t)i));
            _exit(7);
        }
        NEED(WEXITSTATUS(status_of(child)) == 7);
    }
    return argument;
}

int main(void)
{
    pthread_t working[3], forking[4];
    begin(working, 3);
    for (int i = 0; i < 4; i++)
        NEED(pthread_create(&forking[i], NULL, forks, NULL) == 0);
    for (int i = 0; i < 4; i++)
        NEED(pthread_join(forking[i], NULL) == 0);
    end(working, 3);
    puts("80 children");
    return 0;
}
