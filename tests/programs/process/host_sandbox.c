/*
 * host_sandbox.c - enters a sandbox whose filter ends the process at calls that few programs need, then takes and
 * touches memory of every kind: half of 64 MiB of heap, all of 32 MiB of a memfd. Says "quiet" and waits for a line, so
 * that it can be looked at. "host_sandbox blind": the filter answers every openat with EPERM as well.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static int enter_sandbox(int is_blind)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mincore, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fstatfs, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigpending, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, is_blind ? SYS_openat : UINT32_MAX, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
}

int main(int argc, char **argv)
{
    if (enter_sandbox(argc > 1 && strcmp(argv[1], "blind") == 0) != 0)
        return 77;
    int fd = memfd_create("shared", MFD_CLOEXEC);
    char *heap = malloc(64 * MIB);
    if (heap == NULL || fd < 0 || ftruncate(fd, 32 * MIB) != 0)
        return 1;
    char *shared = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        return 1;
    memset(heap, 1, 32 * MIB);
    memset(shared, 1, 32 * MIB);
    char *more = malloc(128 * MIB); /* a refresh */
    if (more == NULL)
        return 1;
    void *volatile refused = malloc((size_t)1 << 45); /* with a line about it */
    puts("quiet");
    (void)fflush(stdout);
    (void)getchar();
    free(more);
    free(refused);
    free(heap);
    return munmap(shared, 32 * MIB) != 0;
}
