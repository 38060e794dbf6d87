/* jemalloc/jemalloc#443: a second preload that hooks open and allocates there, before and behind. */
#include "replay.h"

#include <fcntl.h>
#include <stdarg.h>

#ifdef LIBRARY
typedef int opening(const char *, int, ...);
int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    int mode = flags & O_CREAT ? va_arg(more, int) : 0;
    va_end(more);
    char *copy = strdup(path);
    int file = ((opening *)dlsym(RTLD_NEXT, "open"))(copy, flags, mode);
    free(copy);
    return file;
}
#else
int main(int count, char **words)
{
    if (count > 1) {
        pthread_t threads[2];
        begin(threads, 2);
        for (int i = 0; i < 50; i++) {
            int file = open("/proc/self/status", O_RDONLY);
            NEED(file >= 0 && close(file) == 0);
            FILE *stream = fopen("/proc/self/maps", "r");
            NEED(stream && fclose(stream) == 0);
        }
        end(threads, 2);
        printf("%s\n", words[1]);
        return 0;
    }
    const char *before = getenv("LD_PRELOAD");
    for (int is_first = 0; is_first < 2; is_first++) {
        char list[PATH_MAX * 2];
        snprintf(list, sizeof list, is_first ? "%s:%s" : "%2$s:%1$s", own_library(), before ? before : "");
        pid_t child = fork();
        if (child == 0) {
            setenv("LD_PRELOAD", list, 1);
            execl("/proc/self/exe", words[0], is_first ? "first" : "last", (char *)NULL);
        }
        NEED(status_of(child) == 0);
    }
    return 0;
}
#endif
