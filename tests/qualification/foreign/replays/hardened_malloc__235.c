/* GrapheneOS/hardened_malloc#235, oven-sh/bun#41900: a limit of address space; a heap that reserves much did not
 * start. */
#include "replay.h"

#include <sys/resource.h>

int main(int count, char **words)
{
    if (count > 1) {
        void *small = malloc(20 * MIB), *large = malloc(9000 * MIB);
        printf("%s %d %d\n", words[1], small != NULL, large != NULL);
        return 0;
    }
    for (size_t limit = 128; limit <= 8192; limit *= 4) {
        char text[20];
        snprintf(text, sizeof text, "%zu", limit);
        pid_t child = fork();
        if (child == 0) {
            NEED(setrlimit(RLIMIT_AS, &(struct rlimit){limit * MIB, limit * MIB}) == 0);
            execl("/proc/self/exe", words[0], text, (char *)NULL);
        }
        NEED(status_of(child) == 0);
    }
    return 0;
}
