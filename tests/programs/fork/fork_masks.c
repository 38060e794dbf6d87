/*
 * fork_masks - two threads fork, one with SIGUSR1 blocked: counts forks after which a mask was not the thread's own, in
 * the parent or the child.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 400 };

static int wrong;

static int is_own_mask(int blocks)
{
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    return sigismember(&now, SIGUSR1) == blocks && !sigismember(&now, SIGTERM);
}

static void *fork_often(void *blocks_user1)
{
    int blocks = blocks_user1 != NULL, status;
    sigset_t own;
    sigemptyset(&own);
    if (blocks)
        sigaddset(&own, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &own, NULL);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(!is_own_mask(blocks));
        waitpid(child, &status, 0);
        if (status != 0 || !is_own_mask(blocks))
            __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
        pthread_sigmask(SIG_SETMASK, &own, NULL);
    }
    return NULL;
}

int main(void)
{
    pthread_t other;
    pthread_create(&other, NULL, fork_often, &wrong);
    fork_often(NULL);
    pthread_join(other, NULL);
    printf("%d wrong masks\n", wrong);
    return 0;
}
