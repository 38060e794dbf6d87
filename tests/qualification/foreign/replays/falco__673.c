/* falcosecurity/libs#673: a ring buffer that is mapped twice over its placeholder, while other threads map. */
#include "replay.h"

static void *map(void *argument)
{
    while (!has_to_end) {
        void *one = mmap(NULL, 3 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        NEED(one != MAP_FAILED && munmap(one, 3 * MIB) == 0);
    }
    return argument;
}

int main(void)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        NEED(pthread_create(&threads[i], NULL, map, NULL) == 0);
    for (int round = 0; round < 200; round++) {
        int file = memfd_create("ring", MFD_CLOEXEC);
        NEED(file >= 0 && ftruncate(file, 2 * MIB) == 0);
        char *ring = mmap(NULL, 4 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        NEED(mmap(ring, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == ring);
        NEED(mmap(ring + 2 * MIB, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == ring + 2 * MIB);
        ring[2 * MIB + 5] = (char)round;
        NEED(ring[5] == (char)round && close(file) == 0 && munmap(ring, 4 * MIB) == 0);
    }
    end(threads, 3);
    puts("200 rings");
    return 0;
}
