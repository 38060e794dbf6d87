/*
 * heap_bad HOW - gives a block back that is none. A heap that checks says so and ends the process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments)
{
    static char space[256] __attribute__((aligned(16)));
    if (count != 2)
        return 2;
    char *volatile small = malloc(100), *volatile large = malloc(200000), *volatile bad = NULL;
    memset(small, 0, 100);
    memset(large, 0, 200000);
    if (strcmp(arguments[1], "free_twice") == 0)
        free(bad = small);
    else if (strcmp(arguments[1], "free_large_twice") == 0)
        free(bad = large);
    else if (strcmp(arguments[1], "free_inside") == 0)
        bad = small + 16;
    else if (strcmp(arguments[1], "free_static") == 0)
        bad = space + 16;
    else if (strcmp(arguments[1], "realloc_static") == 0)
        small = realloc(space + 16, 5000);
    free(bad);
    puts("went on");
    return 0;
}
