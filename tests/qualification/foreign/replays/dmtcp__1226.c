/* dmtcp/dmtcp#1226: mremap with MREMAP_FIXED beside other flags. */
#include "replay.h"

int main(void)
{
    size_t size = 4 * MIB;
    char *from = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *to = mmap(NULL, 4 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(from != MAP_FAILED && to != MAP_FAILED);
    memset(from, 'a', size);
    NEED(mremap(from, size, 2 * size, MREMAP_MAYMOVE | MREMAP_FIXED, to + size) == to + size);
    NEED(to[size] == 'a' && to[2 * size - 1] == 'a' && to[2 * size] == 0);
    to[3 * size - 1] = 'b';
    NEED(mremap(to + size, 2 * size, 2 * size, MREMAP_FIXED, to) == MAP_FAILED && errno == EINVAL);
    NEED(mremap(to + size, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to + size / 2) == MAP_FAILED && errno == EINVAL);
    NEED(mremap(to + size, size / 2, size / 2, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to && to[0] == 'a');
    NEED(mremap(to + 2 * size, size, size / 4, 0) == to + 2 * size);
    NEED(munmap(to, 4 * size) == 0);
    puts("moved");
    return 0;
}
