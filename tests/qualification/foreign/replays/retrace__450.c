/* riboseinc/retrace#450: libraries that are opened and closed, and opened into a name space of their own. */
#include "replay.h"

int main(void)
{
    const char *names[] = {"libm.so.6",   "libresolv.so.2",       "libutil.so.1",
                           "libanl.so.1", "libBrokenLocale.so.1", "libnone.so"};
    int opened = 0;
    for (int round = 0; round < 60; round++) {
        void *library = dlopen(names[round % 6], round % 2 ? RTLD_NOW : RTLD_LAZY | RTLD_GLOBAL);
        NEED(library || dlerror());
        opened += library != NULL;
        free(malloc(MIB * 3));
        if (library)
            NEED(dlclose(library) == 0);
    }
    void *apart = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
    NEED(apart && dlsym(apart, "cos"));
    void *other = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
    NEED(other);
    void *block = ((void *(*)(size_t))dlsym(other, "malloc"))(5 * MIB);
    NEED(block);
    memset(block, 1, 5 * MIB);
    ((void (*)(void *))dlsym(other, "free"))(block);
    printf("%d\n", opened);
    return 0;
}
