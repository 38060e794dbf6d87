/*
 * host_deny CALL ERRNO PROGRAM [ARGUMENT...] - runs a program to which the system call of this number answers with
 * this error. Exits with 77 where there are no filters.
 */
#include <stdlib.h>
#include <unistd.h>

#include "../../lib/call_filter.h"

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    if (!filter_call((unsigned)atoi(argv[1]), SECCOMP_RET_ERRNO | (unsigned)atoi(argv[2])))
        return 77;
    (void)execv(argv[3], argv + 3);
    return 127;
}
