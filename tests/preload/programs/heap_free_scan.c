/*
 * heap_free_scan SIZE - frees a block while another thread looks at what the process promises, at the one instant where the guard
 * looks how much of the block is there. Then takes SIZE: "ok" or "ENOMEM". It still holds 64 MiB that it was promised, and has 256 MiB
 * that the guard has not seen come, as runtimes with a heap of their own have.
 *
 * The instant: a filter of the first thread's system calls sends SIGSYS at the guard's look at /proc/self/pagemap, and the handler waits
 * until the other thread was refused more than there is, which looks at everything. Exit: 77 where there are no filters.
 */
#include "heap_case.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

static sem_t begin, done;
static volatile sig_atomic_t looks;

static void *look(void *unused)
{
    while (sem_wait(&begin) != 0)
        ;
    void *volatile most = malloc((size_t)1 << 45);
    CHECK(most == NULL);
    sem_post(&done);
    return unused;
}

static void answer_enotty(void *context)
{
    mcontext_t *registers = &((ucontext_t *)context)->uc_mcontext;
#if defined(__x86_64__)
    registers->gregs[REG_RAX] = -ENOTTY;
#else
    registers->regs[0] = (unsigned long long)-ENOTTY;
#endif
}

static void on_call(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    if (looks++ == 0) {
        sem_post(&begin);
        while (sem_wait(&done) != 0)
            ;
    }
    answer_enotty(context); /* as a kernel does that does not know PAGEMAP_SCAN */
}

static int filter_this_thread(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
}

int main(int count, char **arguments)
{
    const struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO};
    pthread_t thread;
    CHECK(count == 2);
    CHECK(sigaction(SIGSYS, &action, NULL) == 0 && sem_init(&begin, 0, 0) == 0 && sem_init(&done, 0, 0) == 0);
    void *volatile kept = malloc(64 * MIB), *volatile freed = malloc(512 * MIB);
    CHECK(kept != NULL && freed != NULL);
    void *unseen =
        (void *)syscall(SYS_mmap, NULL, 256 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(unseen != MAP_FAILED);
    memset(unseen, 1, 256 * MIB);
    CHECK(pthread_create(&thread, NULL, look, NULL) == 0);
    if (filter_this_thread() != 0)
        return 77;
    free(freed);
    CHECK_EQUAL(looks != 0, 1);
    void *volatile more = malloc(strtoull(arguments[1], NULL, 10));
    puts(more != NULL ? "ok" : "ENOMEM");
    CHECK(pthread_join(thread, NULL) == 0);
    free(more);
    free(kept);
    return 0;
}
