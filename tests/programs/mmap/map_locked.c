/*
 * Locks all memory: MIB before, MIB after, how often a mapping is made and opened piece by piece. Prints what failed,
 * or "ok", and the KiB that are locked then.
 */
#include "../program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Makes mappings that cannot be merged, each of which the guard has to know by itself. */
static void map_many(int count)
{
    for (int i = 0; i < count; i++) {
        char *memory = mmap(NULL, 3 * 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        NEED(memory != MAP_FAILED && munlock(memory, 3 * 65536) == 0 && munmap(memory, 65536) == 0);
        NEED(mprotect(memory + 65536, 65536, PROT_READ | PROT_WRITE) == 0);
    }
}

static long locked_kib(void)
{
    char line[200];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    NEED(status != NULL);
    while (fgets(line, sizeof line, status) != NULL)
        (void)sscanf(line, "VmLck: %ld", &kib);
    (void)fclose(status);
    return kib;
}

int main(int count, char **arguments)
{
    const char *what = "ok";
    NEED(count == 4);
    size_t before = strtoul(arguments[1], NULL, 10) * MIB;
    char *memory = malloc(before + 1);
    NEED(memory != NULL);
    memset(memory, 1, before);
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0)
        what = "not locked";
    for (int i = 0; i < atoi(arguments[2]); i++)
        if (malloc(MIB) == NULL)
            what = "no block";
    if (mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
        what = "no mapping";
    map_many(atoi(arguments[3]));
    printf("%s\n%ld\n", what, locked_kib());
    return 0;
}
