/* main leaves by pthread_exit; the process ends, with status 0, when the other thread does. */
#include <pthread.h>
#include <stdlib.h>

static pthread_t first;

static void *work(void *unused)
{
    (void)unused;
    pthread_join(first, NULL);
    void *volatile block = malloc((size_t)64 << 20);
    (void)block;
    return NULL;
}

int main(void)
{
    pthread_t thread;
    first = pthread_self();
    pthread_create(&thread, NULL, work, NULL);
    pthread_exit(NULL);
}
