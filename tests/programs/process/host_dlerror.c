/* A failing dlsym or dlopen, then allocations of all kinds, then dlerror(): the text must still be the program's own. */
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void *nothing(void *unused)
{
    return unused;
}

static void allocate(void)
{
    pthread_t thread;
    free(malloc(100));
    free(malloc((size_t)40 << 20));
    free(realloc(calloc(10, 10), (size_t)3 << 20));
    free(memalign(64, 1000));
    munmap(mmap(NULL, 1 << 22, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1 << 22);
    if (pthread_create(&thread, NULL, nothing, NULL) == 0)
        pthread_join(thread, NULL);
}

int main(void)
{
    for (int i = 0; i < 3; i++) {
        (void)dlsym(RTLD_DEFAULT, "no_such_symbol");
        allocate();
        const char *error = dlerror();
        if (error == NULL || strstr(error, "no_such_symbol") == NULL)
            return 1;
        (void)dlopen("/no/such/library.so", RTLD_NOW);
        allocate();
        error = dlerror();
        if (error == NULL || strstr(error, "/no/such/library.so") == NULL)
            return 2;
        allocate();
        if (dlerror() != NULL)
            return 3;
        if (dlsym(RTLD_DEFAULT, "printf") == NULL || dlerror() != NULL)
            return 4;
    }
    return 0;
}
