/* Begun/lockfree-malloc#1: what constructors register for the end is kept by calloc, under a lock of the C library. */
#include "replay.h"

static int ran;
static void *kept[3000];

static void at_end(void)
{
    free(kept[ran++]);
    if (ran == 3000)
        puts("3000 handlers"), fflush(stdout);
}

__attribute__((constructor(101))) static void early(void)
{
    for (int i = 0; i < 3000; i++) {
        kept[i] = malloc((size_t)i * 50);
        NEED(atexit(at_end) == 0);
    }
}

/* osrf/osrf_testing_tools_cpp#3: blocks that are freed when all else has ended. */
__attribute__((destructor(101))) static void late(void)
{
    void *block = calloc(3, MIB);
    NEED(block);
    free(block);
    dlsym(RTLD_DEFAULT, "no such name");
    NEED(dlerror());
}

int main(void)
{
    return 0;
}
