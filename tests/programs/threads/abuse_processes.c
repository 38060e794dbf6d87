/*
 * abuse_processes CASE AMOUNT - children made in every way, programs replaced and ended, while all threads allocate.
 */
#include "heap_case.h"

#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { STRESS_THREADS = 4 };

extern char **environ;
static unsigned amount;
static char **own_arguments;
static atomic_int is_over;

static void churn(unsigned i)
{
    void *volatile small = malloc(100 + i % 5000), *volatile large = malloc(((size_t)(i % 3) << 20) + 60000);
    void *map = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(map, MIB);
    free(large);
    free(small);
}

static void *stress(void *unused)
{
    for (unsigned i = 0; !atomic_load(&is_over); i++)
        churn(i);
    return unused;
}

static void begin_stress(pthread_t thread[STRESS_THREADS])
{
    live_begin();
    for (int i = 0; i < STRESS_THREADS; i++)
        CHECK_EQUAL(pthread_create(&thread[i], NULL, stress, NULL), 0);
}

static void end_stress(pthread_t thread[STRESS_THREADS])
{
    atomic_store(&is_over, 1);
    for (int i = 0; i < STRESS_THREADS; i++)
        CHECK_EQUAL(pthread_join(thread[i], NULL), 0);
}

static void expect(pid_t child, int code)
{
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_EQUAL(WIFEXITED(status) ? WEXITSTATUS(status) : -1, code);
}

/* ---- children ---- */

static char *const ends[] = {"sh", "-c", "exit 7", NULL};

static void child_works(void)
{
    for (unsigned i = 0; i < 5; i++)
        churn(i);
    _exit(7);
}

enum { CHILD_STACK = 65536 };

static int map_and_end(void *unused)
{
    (void)unused;
    for (unsigned i = 0; i < 50; i++)
        munmap(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), MIB);
    syscall(SYS_exit_group, 7);
    return 0;
}

static void make_child(unsigned kind)
{
    pid_t child = -1;
    switch (kind) {
    case 0:
        if ((child = fork()) == 0)
            child_works();
        break;
    case 1: /* passes all handlers of fork: what another thread had locked stays locked, the heap's of glibc, too */
        if ((child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL)) == 0) {
            munmap(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), MIB);
            syscall(SYS_exit_group, 7);
        }
        break;
    case 2:
        if ((child = vfork()) == 0) {
            execve("/bin/sh", ends, environ);
            _exit(1);
        }
        break;
    case 3:
        CHECK_EQUAL(posix_spawn(&child, "/bin/sh", NULL, NULL, ends, environ), 0);
        break;
    case 4: { /* has our memory, and this thread's, who is at work meanwhile */
        char *stack = malloc(CHILD_STACK);
        child = clone(map_and_end, stack + CHILD_STACK, CLONE_VM | SIGCHLD, NULL);
        for (unsigned i = 0; i < 5; i++)
            churn(i);
        expect(child, 7);
        free(stack);
        return;
    }
    default:
        CHECK_EQUAL(WEXITSTATUS(system("exit 7")), 7);
        return;
    }
    expect(child, 7);
}

static void *make_children(void *number)
{
    for (unsigned i = 0; i < amount; i++)
        make_child((unsigned)((uintptr_t)number + i) % 6);
    return NULL;
}

CASE(children_of_all_kinds_under_stress)
{
    pthread_t thread[STRESS_THREADS], maker[3];
    begin_stress(thread);
    for (uintptr_t i = 0; i < 3; i++)
        CHECK_EQUAL(pthread_create(&maker[i], NULL, make_children, (void *)i), 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(pthread_join(maker[i], NULL), 0);
    end_stress(thread);
    CHECK_EQUAL(segment->unmatched_frees, 0);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    CHECK(live(SG_DOMAIN_MAPPED) < 4 * MIB && live(SG_DOMAIN_HEAP) < 4 * MIB);
}

/* ---- exec and exit while others allocate ---- */

static void *replace(void *unused)
{
    char left[16];
    snprintf(left, sizeof left, "%u", amount - 1);
    char *const next[] = {own_arguments[0], own_arguments[1], left, NULL};
    execv("/proc/self/exe", next);
    return unused;
}

/* The last image holds enough to leave a record. */
CASE(exec_by_a_thread_under_stress)
{
    pthread_t thread[STRESS_THREADS], replacer;
    void *volatile kept = amount == 0 ? malloc(20 * MIB) : NULL;
    CHECK(amount > 0 || kept != NULL);
    begin_stress(thread);
    if (amount > 0) {
        CHECK_EQUAL(pthread_create(&replacer, NULL, replace, NULL), 0);
        pthread_join(replacer, NULL);
        fail(__FILE__, __LINE__, "exec came back", 0, 1);
    }
    end_stress(thread);
}

static void at_end(void)
{
    for (unsigned i = 0; i < 100; i++)
        churn(i);
}

static __attribute__((destructor)) void destroy(void)
{
    at_end();
}

static void *leave(void *unused)
{
    exit(9);
    return unused;
}

/* A child each, that holds enough to leave a record: exit by a thread, handlers and destructors that allocate, stress
 * that nobody ends. */
CASE(exit_under_stress)
{
    for (unsigned i = 0; i < amount; i++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread[STRESS_THREADS], leaver;
            void *volatile kept = malloc(20 * MIB);
            CHECK(kept != NULL);
            atexit(at_end);
            begin_stress(thread);
            if (i % 4 == 3)
                _exit(9);
            if (i % 4 == 2)
                quick_exit(9);
            CHECK_EQUAL(pthread_create(&leaver, NULL, leave, NULL), 0);
            for (;;)
                pause();
        }
        expect(child, 9);
    }
}

/* ---- many processes ---- */

static void be_one_of_many(int ready, int go)
{
    char byte;
    live_begin();
    uint64_t heap = live(SG_DOMAIN_HEAP), mapped = live(SG_DOMAIN_MAPPED);
    char *block = malloc(2 * MIB);
    CHECK(block != NULL && write(ready, "", 1) == 1);
    CHECK_EQUAL(read(go, &byte, 1), 0);
    for (unsigned i = 0; i < 20; i++)
        churn(i);
    free(block);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), heap);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), mapped);
    CHECK_EQUAL(segment->unmatched_frees, 0);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    exit(0);
}

/* Each holds 2 MiB until all are there. Says how many came and waits for a line; all ask at once then, and end. */
CASE(many_processes_at_once)
{
    int ready[2], go[2];
    char byte;
    pid_t *child = calloc(amount, sizeof *child);
    CHECK(pipe(ready) == 0 && pipe(go) == 0);
    for (unsigned i = 0; i < amount; i++) {
        if ((child[i] = fork()) == 0) {
            close(go[1]);
            be_one_of_many(ready[1], go[0]);
        }
        CHECK(child[i] > 0);
    }
    for (unsigned i = 0; i < amount; i++)
        CHECK_EQUAL(read(ready[0], &byte, 1), 1);
    printf("%u\n", amount);
    fflush(stdout);
    (void)getchar();
    close(go[1]);
    for (unsigned i = 0; i < amount; i++)
        expect(child[i], 0);
}

/* Is stopped and continued from outside. */
CASE(work_until_told)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    pthread_t thread[STRESS_THREADS];
    begin_stress(thread);
    puts("ready");
    fflush(stdout);
    while (poll(&input, 1, 1) == 0)
        churn(1);
    end_stress(thread);
    CHECK_EQUAL(segment->unmatched_frees, 0);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
}

int main(int count, char **arguments)
{
    own_arguments = arguments;
    amount = count > 2 ? (unsigned)atoi(arguments[2]) : 1;
    return run_case(count, arguments);
}
