/* 300 forks while four threads allocate, map, and end and begin threads; every child allocates too and must end. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int is_over;

static void *nothing(void *unused)
{
    free(malloc(1000));
    return unused;
}

static void *stress(void *number)
{
    for (unsigned i = 0; !is_over; i++) {
        void *volatile small = malloc(100 + i % 5000), *volatile large = malloc((size_t)(i % 3 + 1) << 20);
        void *map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        pthread_t thread;
        if (i % 16 == 0 && pthread_create(&thread, NULL, nothing, NULL) == 0)
            pthread_join(thread, NULL);
        munmap(map, 1 << 20);
        free(large);
        free(small);
    }
    return number;
}

int main(void)
{
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, stress, NULL);
    for (int i = 0; i < 300; i++) {
        pid_t child = fork();
        if (child == 0) {
            char *block = malloc((size_t)2 << 20), *small = malloc(64);
            memset(small, 1, 64);
            munmap(mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1 << 20);
            free(block);
            _exit(block == NULL);
        }
        int status = -1;
        if (waitpid(child, &status, 0) != child || status != 0)
            return 1;
    }
    is_over = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    return 0;
}
