/*
 * heap_scan realloc|unmap|munmap SIZE - while one thread is in free or realloc, another looks at what the process
 * promises. Then takes SIZE: "ok" or "ENOMEM".
 *
 *     realloc   of 512 MiB, none of them touched, which become 528 MiB, where the heap moves them by mremap
 *     unmap     free of 512 MiB that are all there, where the heap unmaps them
 *     munmap    of a mapping of which all but 1 MiB is there, within the call
 *
 * It still holds 64 MiB that it was promised, and 800 small blocks of 1000 KiB; for the first, instead, it has 512 MiB
 * that the guard has not seen come, as runtimes with a heap of their own have.
 *
 * The instant: a filter of one thread's system calls sends SIGSYS. The handler waits until the other thread was refused
 * more than there is, which looks at everything, and has made the call in its place. Exit: 77 where there are no
 * filters.
 */
#include "../../lib/call_filter.h"
#include "look.h"
#include "heap_case.h"

#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <ucontext.h>

#if defined(__x86_64__)
#define ARGUMENT(registers, i) \
    ((const long long[]){registers->gregs[REG_RDI], registers->gregs[REG_RSI], registers->gregs[REG_RDX], \
                         registers->gregs[REG_R10], registers->gregs[REG_R8]}[i])
#define RESULT(registers) registers->gregs[REG_RAX]
#else
#define ARGUMENT(registers, i) registers->regs[i]
#define RESULT(registers) registers->regs[0]
#endif

enum { SMALL_BLOCKS = 800, SMALL_BYTES = 1000 << 10 };

static sem_t begin, done;
static volatile sig_atomic_t stops;
static long call, argument[5], result;

static void wait_for(sem_t *semaphore)
{
    while (sem_wait(semaphore) != 0)
        ;
}

static void *scan(void *unused)
{
    wait_for(&begin);
    void *volatile most = ask_for_too_much();
    CHECK(most == NULL);
    result = syscall(call, argument[0], argument[1], argument[2], argument[3], argument[4]);
    sem_post(&done);
    return unused;
}

static void on_call(int signal, siginfo_t *info, void *context)
{
    mcontext_t *registers = &((ucontext_t *)context)->uc_mcontext;
    (void)signal;
    result = -ENOSYS;
    if (stops++ == 0) {
        call = info->si_syscall;
        for (int i = 0; i < 5; i++)
            argument[i] = (long)ARGUMENT(registers, i);
        sem_post(&begin);
        wait_for(&done);
    }
    RESULT(registers) = result;
}

static void take_small(void)
{
    static void *volatile small[SMALL_BLOCKS];
    CHECK(mallopt(M_MMAP_THRESHOLD, SMALL_BYTES / 2) == 1);
    for (int i = 0; i < SMALL_BLOCKS; i++)
        CHECK((small[i] = malloc(SMALL_BYTES)) != NULL);
}

static void take_unseen(void)
{
    void *unseen =
        (void *)syscall(SYS_mmap, NULL, 512 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(unseen != MAP_FAILED);
    memset(unseen, 1, 512 * MIB);
}

static void *map(size_t bytes)
{
    void *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(address != MAP_FAILED);
    return address;
}

int main(int count, char **arguments)
{
    const struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO};
    pthread_t thread;
    CHECK(count == 3);
    const char *what = arguments[1];
    bool is_realloc = strcmp(what, "realloc") == 0, is_munmap = strcmp(what, "munmap") == 0;
    CHECK(sigaction(SIGSYS, &action, NULL) == 0 && sem_init(&begin, 0, 0) == 0 && sem_init(&done, 0, 0) == 0);
    void *volatile kept = malloc(64 * MIB);
    void *volatile block = is_munmap ? map(512 * MIB) : malloc(512 * MIB);
    CHECK(kept != NULL && block != NULL);
    if (!is_realloc) {
        memset(block, 1, is_munmap ? 511 * MIB : 512 * MIB);
        take_small();
    } else {
        take_unseen();
    }
    void *volatile first = ask_for_too_much();
    CHECK(first == NULL);
    CHECK(pthread_create(&thread, NULL, scan, NULL) == 0);
    if (!filter_call(is_realloc ? SYS_mremap : SYS_munmap, SECCOMP_RET_TRAP))
        return 77;
    if (is_realloc)
        CHECK((block = realloc(block, 528 * MIB)) != NULL);
    else if (is_munmap)
        CHECK(munmap(block, 512 * MIB) == 0);
    else
        free(block);
    sem_post(&done);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_EQUAL(stops != 0, 1);
    void *volatile more = malloc(strtoull(arguments[2], NULL, 10));
    puts(more != NULL ? "ok" : "ENOMEM");
    return 0;
}
