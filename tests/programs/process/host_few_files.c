/* Sets RLIMIT_NOFILE to 3 and goes on allocating, before (argv[1] "early") or after it was first noticed. Then lifts
 * the limit again and waits for its standard input to end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static size_t take(int blocks)
{
    size_t taken = 0;
    for (int i = 0; i < blocks; i++) {
        char *block = malloc((size_t)4 << 20);
        if (block != NULL)
            taken += (memset(block, 1, (size_t)4 << 20), (size_t)4 << 20);
    }
    return taken;
}

int main(int count, char **arguments)
{
    struct rlimit old, few;
    size_t taken = count > 1 && strcmp(arguments[1], "early") == 0 ? 0 : take(4);
    getrlimit(RLIMIT_NOFILE, &old);
    few = old;
    few.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &few);
    taken += take(8);
    setrlimit(RLIMIT_NOFILE, &old);
    dprintf(1, "%zu\n", taken);
    return 0;
}
