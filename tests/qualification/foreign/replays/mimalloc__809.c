/* microsoft/mimalloc#809, OpenMathLib/OpenBLAS#1720: a library with a destructor of threads is unloaded before they
 * end. */
#include "replay.h"

#ifdef LIBRARY
static pthread_key_t key;
__attribute__((constructor)) static void make(void)
{
    NEED(pthread_key_create(&key, free) == 0);
}
__attribute__((destructor)) static void unmake(void)
{
    free(pthread_getspecific(key));
    pthread_key_delete(key);
}
void use(size_t bytes)
{
    free(pthread_getspecific(key));
    pthread_setspecific(key, malloc(bytes));
}
#else
static void *open_and_close(void *argument)
{
    for (int round = 0; round < 20; round++) {
        void *library = dlopen(own_library(), RTLD_NOW);
        NEED(library);
        ((void (*)(size_t))dlsym(library, "use"))(1000 * (size_t)(1 + round % 5 * 100));
        NEED(dlclose(library) == 0);
    }
    return argument;
}

int main(void)
{
    pthread_t threads[4];
    own_library();
    for (int i = 0; i < 4; i++)
        NEED(pthread_create(&threads[i], NULL, open_and_close, NULL) == 0);
    for (int i = 0; i < 4; i++)
        NEED(pthread_join(threads[i], NULL) == 0);
    puts("unloaded");
    return 0;
}
#endif
