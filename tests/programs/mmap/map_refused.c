/*
 * map_refused CALL - under SPARKGUARD_LIMIT=32M: MAP_FAILED and ENOMEM, no mapping is changed by the kernel's own list,
 * nothing is counted, and a smaller request succeeds. What the call would have replaced does not count against it.
 */
#include "heap_case.h"

#include <signal.h>

enum { READ_WRITE = PROT_READ | PROT_WRITE, ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS };

static char buffer[1 << 16]; /* what reading takes is there before */

/* Without the time line, which the guard begins with a refusal. */
static size_t read_maps(char *text, size_t room)
{
    static char line[4096 + 128];
    size_t length = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file != NULL);
    setvbuf(file, buffer, _IOFBF, sizeof buffer);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strstr(line, ".timeline") != NULL)
            continue;
        CHECK(length + strlen(line) < room);
        strcpy(text + length, line);
        length += strlen(line);
    }
    fclose(file);
    return length;
}

static char *held;

/* Each call asks for `bytes` more than there is; 0 if it was done. */
static int make(const char *call, size_t bytes)
{
    if (strcmp(call, "mmap") == 0)
        return mmap(NULL, bytes, READ_WRITE, ANONYMOUS, -1, 0) != MAP_FAILED ? 0 : errno;
    if (strcmp(call, "mmap64") == 0)
        return mmap64(NULL, bytes, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED ? 0 : errno;
    if (strcmp(call, "mmap_fixed") == 0)
        return mmap(held, 20 * MIB + bytes, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED ? 0 : errno;
    if (strcmp(call, "mremap") == 0)
        return mremap(held, 20 * MIB, 20 * MIB + bytes, MREMAP_MAYMOVE) != MAP_FAILED ? 0 : errno;
    if (strcmp(call, "mremap_dontunmap") == 0)
        return mremap(held, bytes, bytes, MREMAP_MAYMOVE | 4, NULL) != MAP_FAILED ? 0 : errno;
    if (strcmp(call, "mprotect") == 0)
        return mprotect(held + 20 * MIB, bytes, READ_WRITE) == 0 ? 0 : errno;
    if (strcmp(call, "pkey_mprotect") == 0)
        return pkey_mprotect(held + 20 * MIB, bytes, READ_WRITE, -1) == 0 ? 0 : errno;
    abort();
}

static void check_nothing_is_blocked(void)
{
    sigset_t none, now; /* of whose bytes the libc clears a part */
    memset(&none, 0, sizeof none);
    memset(&now, 0, sizeof now);
    CHECK_EQUAL(sigprocmask(SIG_BLOCK, NULL, &now), 0);
    CHECK(memcmp(&now, &none, sizeof now) == 0);
}

int main(int count, char **arguments)
{
    static char before[1 << 18], after[1 << 18];
    if (count != 2)
        return 2;
    live_begin();
    held = mmap(NULL, 60 * MIB, PROT_NONE, ANONYMOUS, -1, 0);
    CHECK_EQUAL(mprotect(held, 20 * MIB, READ_WRITE), 0);
    held[5] = 42;
    uint64_t mapped = live(SG_DOMAIN_MAPPED);
    size_t length = read_maps(before, sizeof before);
    CHECK_EQUAL(make(arguments[1], 16 * MIB), ENOMEM);
    check_nothing_is_blocked();
    CHECK_EQUAL(read_maps(after, sizeof after), length);
    CHECK(memcmp(before, after, length) == 0);
    CHECK(held[5] == 42);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), mapped);
    CHECK_EQUAL(refused_count(SG_DOMAIN_MAPPED), 1);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    CHECK_EQUAL(make(arguments[1], 6 * MIB), 0);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED) - mapped, 6 * MIB);
    check_nothing_is_blocked();
    return 0;
}
