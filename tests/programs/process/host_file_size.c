/*
 * Takes blocks under a limit on the size of files, and writes to no file: LIMIT ("-": none of its own) BYTES COUNT.
 * Prints how many blocks it got.
 */
#include "../program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

int main(int count, char **arguments)
{
    int got = 0;
    NEED(count == 4);
    rlim_t bytes = strtoul(arguments[1], NULL, 10);
    if (*arguments[1] != '-')
        NEED(setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, bytes}) == 0);
    for (int i = 0; i < atoi(arguments[3]); i++) {
        char *block = malloc(strtoul(arguments[2], NULL, 10));
        if (block != NULL) {
            memset(block, 1, 1);
            got++;
        }
    }
    printf("%d\n", got);
    return 0;
}
