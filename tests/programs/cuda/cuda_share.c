/*
 * cuda_share.c - many that ask for a share of one machine at the same instant, round after round.
 *
 *     cuda_share KIND CALL COUNT SIZE FIT ROUNDS
 *
 * COUNT ask for SIZE bytes at once, of which there is room for FIT. CALL is malloc (never touched: a promise),
 * cuMemAlloc_v2 or cuMemAllocManaged. KIND is who asks:
 *     processes   forked children
 *     namespaces  the same, half of them in a PID namespace of their own; exit 77 where there is none to be had
 *     threads     of one process
 *     killed      children; between rounds and in flight one of them gets SIGKILL, and another takes its place
 *     stopped     children; between rounds and in flight one of them gets SIGSTOP
 * Prints "key value" lines: rounds; fewest, most: how many got it when all asked and nobody was hurt; again_fewest,
 * again_most: how many of the losers got it when a holder had been killed, or of the others when one was stopped, less
 * what there was room for; hurt_fewest, hurt_most: of those unhurt, when one was hurt in flight, and of one that was
 * stopped between the driver's grant and the end of its request, which stands for two shares until it goes on;
 * sleeps: the most voluntary context switches in a request of somebody not stopped, which a busy machine makes no more;
 * others: answers that were neither a grant nor out of memory.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "cuda_sim.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <pthread.h>

#define PLAYERS_MAX 64
#define STUCK_NS INT64_C(60000000000)
#define SKIPPED 77

enum order { IDLE, ASK, GIVE };

struct player {
    unsigned order, answered; /* what is wanted in round `board->go`; the last round answered */
    int has, is_other;
    long sleeps;
};

/* Shared by all. Every word that somebody waits for is a futex. */
static struct board {
    unsigned go, answers;
    struct player player[PLAYERS_MAX];
} * board;

struct range {
    int fewest, most;
};

static const char *call;
static size_t size;
static int count, fit, rounds, is_cuda;
static pid_t pids[PLAYERS_MAX];
static long most_sleeps;
static int others;
static CUcontext context;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "cuda_share: %s\n", what);
    for (int i = 0; i < count; i++)
        if (pids[i] > 0)
            kill(pids[i], SIGKILL);
    exit(1);
}

static void wait_for_change(unsigned *word, unsigned seen)
{
    const struct timespec moment = {0, 50000000};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &moment, NULL, 0);
}

static void change(unsigned *word)
{
    __atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* ---- who asks ---- */

static void *take(int *is_other)
{
    CUdeviceptr address = 0;
    CUresult result;
    *is_other = 0;
    if (!is_cuda) {
        void *ptr = malloc(size);
        *is_other = ptr == NULL && errno != ENOMEM;
        return ptr;
    }
    if (strcmp(call, "cuMemAllocManaged") == 0)
        result = cuMemAllocManaged(&address, size, CU_MEM_ATTACH_GLOBAL);
    else
        result = cuMemAlloc_v2(&address, size);
    *is_other = result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY;
    return result == CUDA_SUCCESS ? (void *)address : NULL;
}

static void give(void *ptr)
{
    if (is_cuda && ptr != NULL)
        cuMemFree_v2((CUdeviceptr)ptr);
    else
        free(ptr);
}

static long sleeps_of_this_thread(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw : LONG_MAX;
}

static void *play(void *number)
{
    struct player *self = &board->player[(size_t)number];
    unsigned seen = self->answered;
    void *held = NULL;
    if (is_cuda && context != NULL)
        cuCtxSetCurrent(context);
    for (;;) {
        unsigned go = __atomic_load_n(&board->go, __ATOMIC_SEQ_CST);
        if (go == seen) {
            wait_for_change(&board->go, seen);
            continue;
        }
        seen = go;
        unsigned order = __atomic_load_n(&self->order, __ATOMIC_SEQ_CST);
        if (order == ASK && held == NULL) {
            long before = sleeps_of_this_thread();
            held = take(&self->is_other);
            self->sleeps = sleeps_of_this_thread() - before;
        } else if (order == GIVE) {
            give(held);
            held = NULL;
        }
        self->has = held != NULL;
        __atomic_store_n(&self->answered, seen, __ATOMIC_SEQ_CST);
        change(&board->answers);
    }
    return NULL;
}

static void make_context(void)
{
    if (is_cuda && (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
                    cuCtxSetCurrent(context) != CUDA_SUCCESS))
        _exit(3);
}

/* Takes part from the next order on. Its parent knows it is there when it answers that. */
static void start_process(int index)
{
    board->player[index].answered = board->go;
    board->player[index].has = 0;
    pids[index] = fork();
    if (pids[index] < 0)
        fail("fork");
    if (pids[index] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        make_context();
        play((void *)(size_t)index);
    }
}

/* Tried by a child, before there are players whom nobody would end. */
static int has_namespaces(void)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(CLONE_NEWPID) != 0);
    return waitpid(pid, &status, 0) == pid && status == 0;
}

static void start_players(const char *kind)
{
    pthread_t thread;
    if (strcmp(kind, "threads") == 0)
        make_context();
    if (strcmp(kind, "namespaces") == 0 && !has_namespaces())
        exit(SKIPPED);
    for (int i = 0; i < count; i++) {
        if (i == count / 2 && strcmp(kind, "namespaces") == 0 && unshare(CLONE_NEWPID) != 0)
            fail("unshare");
        if (strcmp(kind, "threads") != 0)
            start_process(i);
        else if (pthread_create(&thread, NULL, play, (void *)(size_t)i) != 0)
            fail("pthread_create");
    }
}

/* ---- who orders ---- */

static void say(const int *who, unsigned order)
{
    const struct timespec moment = {0, 6000000};
    if (order == ASK)
        nanosleep(&moment, NULL); /* pace: a refusal holds for 5 ms (preload/core/admit/repeat.h) */
    for (int i = 0; i < count; i++)
        __atomic_store_n(&board->player[i].order, who[i] ? order : IDLE, __ATOMIC_SEQ_CST);
    change(&board->go);
}

/* All of them have answered; how many of them have it now. */
static int collect(const int *who)
{
    int64_t begin = now_ns();
    int holders = 0;
    for (int i = 0; i < count;) {
        unsigned answers = __atomic_load_n(&board->answers, __ATOMIC_SEQ_CST);
        const struct player *player = &board->player[i];
        if (!who[i] || __atomic_load_n(&player->answered, __ATOMIC_SEQ_CST) == board->go) {
            i++;
            continue;
        }
        if (now_ns() - begin > STUCK_NS)
            fail("somebody does not answer");
        wait_for_change(&board->answers, answers);
    }
    for (int i = 0; i < count; i++) {
        if (!who[i])
            continue;
        holders += board->player[i].has;
        others += board->player[i].is_other;
        most_sleeps = board->player[i].sleeps > most_sleeps ? board->player[i].sleeps : most_sleeps;
        board->player[i].sleeps = 0;
    }
    return holders;
}

static int order(const int *who, unsigned what)
{
    say(who, what);
    return collect(who);
}

static void widen(struct range *range, int value)
{
    range->fewest = value < range->fewest ? value : range->fewest;
    range->most = value > range->most ? value : range->most;
}

static void select_all(int *who)
{
    for (int i = 0; i < PLAYERS_MAX; i++)
        who[i] = i < count;
}

static int pick(int has)
{
    int index;
    do
        index = rand() % count;
    while (has && !board->player[index].has);
    return index;
}

/* Dead for sure, its memory back, another in its place. */
static void replace(int index)
{
    const char *meminfo = getenv("SGSIM_MEMINFO");
    kill(pids[index], SIGKILL);
    waitpid(pids[index], NULL, 0);
    if (is_cuda && meminfo != NULL)
        sgsim_settle(meminfo);
    start_process(index);
}

static void pause_at_random(void)
{
    const struct timespec moment = {0, rand() % 400000};
    nanosleep(&moment, NULL); /* pace: the others get on by so much */
}

static void round_killed(struct range *again, struct range *hurt)
{
    int who[PLAYERS_MAX];
    for (int i = 0; i < count; i++)
        who[i] = !board->player[i].has;
    int dead = pick(1);
    who[dead] = 0;
    replace(dead);
    widen(again, order(who, ASK) - 1);
    select_all(who);
    order(who, GIVE);

    say(who, ASK);
    pause_at_random();
    dead = pick(0);
    kill(pids[dead], SIGKILL);
    who[dead] = 0;
    widen(hurt, collect(who));
    replace(dead);
}

/* What the simulated driver has given out, whether the request is over or not; 0 where it is not asked. */
static int64_t taken_bytes(void)
{
    const char *meminfo = getenv("SGSIM_MEMINFO");
    return is_cuda && meminfo != NULL ? sgsim_machine_bytes(meminfo, "taken") : 0;
}

static void round_stopped(struct range *again, struct range *hurt)
{
    int who[PLAYERS_MAX], stopped = pick(1);
    kill(pids[stopped], SIGSTOP);
    select_all(who);
    who[stopped] = 0;
    order(who, GIVE);
    widen(again, order(who, ASK) - (fit - 1));
    kill(pids[stopped], SIGCONT);
    who[stopped] = 1;
    order(who, GIVE);

    int64_t taken_before = taken_bytes();
    say(who, ASK);
    pause_at_random();
    stopped = pick(0);
    kill(pids[stopped], SIGSTOP);
    who[stopped] = 0;
    int holders = collect(who), given = (int)((taken_bytes() - taken_before) / (int64_t)size);
    widen(hurt, given > holders ? given : holders);
    kill(pids[stopped], SIGCONT);
    memset(who, 0, sizeof who);
    who[stopped] = 1;
    long before = most_sleeps;
    collect(who);
    most_sleeps = before; /* its own do not count */
}

int main(int argc, char **argv)
{
    int who[PLAYERS_MAX];
    struct range all = {PLAYERS_MAX, 0}, again = {PLAYERS_MAX, -PLAYERS_MAX}, hurt = {PLAYERS_MAX, 0};
    if (argc != 7)
        return 2;
    call = argv[2];
    is_cuda = strcmp(call, "malloc") != 0;
    count = atoi(argv[3]) < PLAYERS_MAX ? atoi(argv[3]) : PLAYERS_MAX;
    size = strtoull(argv[4], NULL, 0);
    fit = atoi(argv[5]);
    rounds = atoi(argv[6]);
    srand(getenv("SEED") ? (unsigned)atoi(getenv("SEED")) : 1);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return 1;
    start_players(argv[1]);
    select_all(who);
    order(who, GIVE); /* all are there, with a context */
    for (int i = 0; i < rounds; i++) {
        widen(&all, order(who, ASK));
        if (strcmp(argv[1], "killed") == 0)
            round_killed(&again, &hurt);
        else if (strcmp(argv[1], "stopped") == 0)
            round_stopped(&again, &hurt);
        order(who, GIVE);
    }
    printf("rounds %d\nfewest %d\nmost %d\nagain_fewest %d\nagain_most %d\nhurt_fewest %d\nhurt_most %d\n", rounds,
           all.fewest, all.most, again.fewest, again.most, hurt.fewest, hurt.most);
    printf("sleeps %ld\nothers %d\n", most_sleeps, others);
    fflush(stdout);
    for (int i = count - 1; i >= 0; i--) /* the first of a namespace last: its end is everybody's there */
        if (pids[i] > 0) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
        }
    return 0;
}
