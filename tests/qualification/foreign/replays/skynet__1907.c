/* cloudwu/skynet#1907, systemd/systemd#22801, arvidn/libtorrent#7519: programs that write to the last usable byte of a
 * block. */
#include "replay.h"

#include <malloc.h>

static size_t checked;

static void check(void *block, size_t size)
{
    NEED(block && malloc_usable_size(block) >= size);
    size_t usable = malloc_usable_size(block);
    if (usable >= sizeof(uint32_t))
        memcpy((char *)block + usable - sizeof(uint32_t), &(uint32_t){1234}, sizeof(uint32_t));
    memset(block, 5, usable);
    NEED(malloc_usable_size(block) == usable);
    checked++;
}

int main(void)
{
    for (size_t size = 0; size < 5 * MIB; size = size * 9 / 8 + 1) {
        void *block = malloc(size);
        check(block, size);
        block = realloc(block, size + 100);
        check(block, size + 100);
        NEED(size < 16 || ((char *)block)[size - 1] == 5);
        free(block);
        block = calloc(1, size);
        check(block, size);
        free(block);
        block = aligned_alloc(4096, (size + 4095) & ~(size_t)4095);
        check(block, size);
        free(block);
    }
    NEED(malloc_usable_size(NULL) == 0);
    printf("%zu blocks\n", checked);
    return 0;
}
