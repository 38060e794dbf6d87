/*
 * map_stays SIZE - an munmap fails, as it does with ENOMEM at max_map_count: the mapping and its promise stay. Then
 * takes SIZE.
 */
#include "../../lib/call_filter.h"
#include "heap_case.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

int main(int count, char **arguments)
{
    CHECK(count == 2);
    char *map = mmap(NULL, 512 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED);
    if (!filter_call(SYS_munmap, SECCOMP_RET_ERRNO | ENOMEM))
        return 77;
    CHECK(munmap(map, 512 * MIB) == -1 && errno == ENOMEM);
    void *volatile more = malloc(strtoull(arguments[1], NULL, 10));
    puts(more != NULL ? "ok" : "ENOMEM");
    return 0;
}
