/* async-profiler/async-profiler#1135: functions of the heap looked up in every way, and blocks that go from one to
 * another. */
#include "replay.h"

typedef void *taking(size_t);
typedef void giving(void *);

int main(void)
{
    void *handles[] = {RTLD_DEFAULT, dlopen(NULL, RTLD_NOW), dlopen("libc.so.6", RTLD_NOW)};
    taking *takes[4] = {malloc};
    giving *gives[4] = {free};
    for (int i = 0; i < 3; i++) {
        takes[i + 1] = (taking *)dlsym(handles[i], "malloc");
        gives[i + 1] = (giving *)dlsym(handles[i], "free");
        NEED(takes[i + 1] && gives[i + 1]);
    }
    NEED(dlvsym(RTLD_DEFAULT, "malloc", "GLIBC_2.2.5") || dlvsym(RTLD_DEFAULT, "malloc", "GLIBC_2.17"));
    int count = 0;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            for (size_t size = 1; size < 3 * MIB; size *= 3, count++) {
                char *block = takes[i](size);
                NEED(block);
                block[size - 1] = 1;
                gives[j](block);
            }
    printf("%d\n", count);
    return 0;
}
