/*
 * host_strict PROGRAM [ARGUMENT...] - runs a program under a filter that ends it with SIGSYS for any call that ordinary
 * programs do not make. The filter is the program's own: no_new_privs is set. Exits with 77 where there are no filters.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What the C library, the dynamic loader, Python and a program with threads and files of its own need. */
static const unsigned known[] = {
    SYS_read,
    SYS_write,
    SYS_writev,
    SYS_openat,
    SYS_close,
    SYS_close_range,
    SYS_lseek,
    SYS_pread64,
    SYS_pwrite64,
    SYS_fstat,
    SYS_newfstatat,
    SYS_faccessat,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_getcwd,
    SYS_fcntl,
    SYS_flock,
    SYS_ioctl,
    SYS_ppoll,
    SYS_pipe2,
    SYS_dup,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fsync,
    SYS_fdatasync,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_mkdirat,
    SYS_linkat,
    SYS_renameat2,
    SYS_unlinkat,
    SYS_memfd_create,
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_mlock,
    SYS_munlock,
    SYS_brk,
    SYS_futex,
    SYS_clone,
    SYS_clone3,
    SYS_set_robust_list,
    SYS_set_tid_address,
    SYS_rseq,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_getrandom,
    SYS_sysinfo,
    SYS_uname,
    SYS_prlimit64,
    SYS_prctl,
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_kill,
    SYS_wait4,
    SYS_exit,
    SYS_exit_group,
    SYS_execve,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_restart_syscall,
#ifdef SYS_arch_prctl
    SYS_arch_prctl,
    SYS_access,
    SYS_readlink,
    SYS_open,
    SYS_stat,
#endif
};
enum { KNOWN = sizeof known / sizeof known[0], HEAD = 1, LAST = HEAD + KNOWN };

int main(int argc, char **argv)
{
    struct sock_filter code[LAST + 2];
    struct sock_fprog program = {.len = LAST + 2, .filter = code};
    if (argc < 2)
        return 2;
    code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < KNOWN; i++)
        code[HEAD + i] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, known[i], (unsigned char)(KNOWN - i), 0);
    code[LAST] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    code[LAST + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return 77;
    (void)execv(argv[1], argv + 1);
    return 127;
}
