/* ptitSeb/box64#4377, symmetryinvestments/symgc#37, mmtk/mmtk-core#257: runtimes reserve by tebibytes, and use a part
 * of it in three ways. */
#include "replay.h"

static char *reserve(size_t gib, int protection, int flags)
{
    return mmap(NULL, gib << 30, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

int main(void)
{
    for (size_t gib = 1320; gib >= 32; gib /= 2) {
        char *cage = reserve(gib, PROT_NONE, MAP_NORESERVE);
        printf("%zu %d\n", gib, cage != MAP_FAILED);
        if (cage != MAP_FAILED) {
            NEED(mprotect(cage + MIB, 8 * MIB, PROT_READ | PROT_WRITE) == 0);
            memset(cage + MIB, 1, 8 * MIB);
            NEED(madvise(cage + MIB, 4 * MIB, MADV_DONTNEED) == 0 && cage[MIB] == 0 && cage[8 * MIB] == 1);
            NEED(mmap(cage + MIB, 8 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
                 cage + MIB);
            NEED(mmap(cage, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == cage);
            memset(cage, 2, 4 * MIB);
            NEED(munmap(cage, gib << 30) == 0);
        }
    }
    char *heap = reserve(1, PROT_READ | PROT_WRITE, MAP_NORESERVE);
    NEED(heap != MAP_FAILED);
    for (size_t at = 0; at < 64 * MIB; at += 4096)
        heap[at] = 1;
    NEED(munmap(heap, (size_t)1 << 30) == 0);
    puts("reserved");
    return 0;
}
