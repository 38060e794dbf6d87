/*
 * heap_grow STEP BLOCKS MIB [touch] - BLOCKS blocks grow by STEP bytes in turn, until a growth is refused or they
 * have MIB mebibytes together. Says what the process has then, and had before the first block, by /proc/self/status.
 */
#include "heap_case.h"

static size_t said_by_kernel(const char *field)
{
    char text[4096] = "";
    int fd = open("/proc/self/status", O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    const char *line = strstr(text, field);
    CHECK(line != NULL);
    return strtoull(line + strlen(field), NULL, 10) << 10;
}

static void say(const char *when)
{
    char text[200];
    int length = snprintf(text, sizeof text, "resident_bytes%s %zu\ndata_bytes%s %zu\n", when, said_by_kernel("VmRSS:"),
                          when, said_by_kernel("VmData:"));
    CHECK(write(1, text, (size_t)length) == length);
}

int main(int count, char **arguments)
{
    enum { BLOCKS_MAX = 1000, FIRST = 140000 };
    static unsigned char *block[BLOCKS_MAX];
    if (count < 4)
        return 2;
    size_t step = strtoull(arguments[1], NULL, 10), blocks = strtoull(arguments[2], NULL, 10);
    size_t most = strtoull(arguments[3], NULL, 10) * MIB;
    CHECK(blocks > 0 && blocks <= BLOCKS_MAX);
    say("_at_first");
    for (size_t i = 0; i < blocks; i++)
        CHECK((block[i] = calloc(1, FIRST)) != NULL);
    for (size_t size = FIRST + step; size * blocks <= most; size += step)
        for (size_t i = 0; i < blocks; i++) {
            unsigned char *moved = realloc(block[i], size);
            if (moved == NULL) {
                say("");
                return 0;
            }
            block[i] = moved;
            if (count > 4)
                memset(moved + size - step, 1, step);
        }
    say("");
    return 0;
}
