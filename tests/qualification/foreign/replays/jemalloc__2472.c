/* jemalloc/jemalloc#2472: an auditor of the dynamic linker beside a preloaded heap; the program did not start. */
#include "replay.h"

#ifdef LIBRARY
#include <link.h>
unsigned la_version(unsigned version)
{
    free(malloc(5000));
    return version;
}
unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie)
{
    (void)map, (void)space, (void)cookie;
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
#else
int main(int count, char **words)
{
    if (count > 1) {
        pthread_t threads[2];
        begin(threads, 2);
        end(threads, 2);
        NEED(dlopen("libresolv.so.2", RTLD_NOW));
        puts("audited");
        return 0;
    }
    setenv("LD_AUDIT", own_library(), 1);
    execl("/proc/self/exe", words[0], "again", (char *)NULL);
    return 1;
}
#endif
