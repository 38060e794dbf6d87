/* jemalloc/jemalloc#1237, #937: "cannot allocate memory in static TLS block" for a library that is opened late. */
#include "replay.h"

#ifdef LIBRARY
__thread char own[1024] __attribute__((tls_model("initial-exec")));
char *own_of_thread(void)
{
    return own;
}
#else
static void *write_own(void *function)
{
    char *own = ((char *(*)(void))function)();
    memset(own, 7, 1024);
    free(malloc(100));
    return own;
}

int main(void)
{
    void *library = dlopen(own_library(), RTLD_NOW), *there;
    pthread_t thread;
    if (!library)
        puts(dlerror());
    NEED(library);
    void *function = dlsym(library, "own_of_thread");
    NEED(pthread_create(&thread, NULL, write_own, function) == 0 && pthread_join(thread, &there) == 0);
    printf("%d\n", there != write_own(function));
    return 0;
}
#endif
