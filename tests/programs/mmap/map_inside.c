/*
 * map_inside CASE - what becomes of a mapping when this thread is called away, or another one forks or scans, while
 * mmap, mprotect, mremap or munmap is inside the real call: the preload of test_map.py, which is the next one, tells
 * us.
 */
#include "../../lib/call_filter.h"
#include "look.h"
#include "heap_case.h"

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define READ_WRITE (PROT_READ | PROT_WRITE)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

enum when { BEFORE, AFTER };

static uint64_t base;                             /* mapped at the beginning of the case */
static void (**inside)(enum when, const char *);  /* the preload's: called inside each real call, with its name */
static __thread enum when wanted_when;            /* this thread's next real call of that name does `action`, once */
static __thread const char *volatile wanted_call; /* NULL: none */
static void (*action)(void);

static void is_inside(enum when when, const char *call)
{
    if (wanted_call == NULL || when != wanted_when || strcmp(call, wanted_call) != 0)
        return;
    wanted_call = NULL;
    action();
}

static void at(enum when when, const char *call, void (*what)(void))
{
    action = what;
    wanted_when = when;
    wanted_call = call;
}

#define CHECK_MAPPED(bytes) CHECK_EQUAL(live(SG_DOMAIN_MAPPED) - base, bytes)

/* What the guard refuses, it has looked at everything for. */
static void scan(void)
{
    void *volatile most = ask_for_too_much();
    CHECK(most == NULL);
}

/* The child of a process with a second thread has that thread's stack, of which the kernel says that it is missing. */
#define STACK (8 * MIB)

static void check_nothing_left(void)
{
    CHECK_MAPPED(0);
    scan();
    CHECK(segment->slot.promised_bytes <= STACK + 6 * MIB);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
}

static char *map(size_t bytes, int prot)
{
    char *ptr = mmap(NULL, bytes, prot, ANONYMOUS, -1, 0);
    CHECK(ptr != MAP_FAILED);
    return ptr;
}

/* Where there is room for `bytes` and for nothing that grows, once what is there goes: else the next thread's stack
 * would take it. */
static char *place(size_t bytes)
{
    return map(bytes, PROT_NONE);
}

/* Every second MiB of it counts. Of 128 MiB that is more than munmap remembers at once. */
static char *comb(size_t bytes)
{
    char *ptr = map(bytes, PROT_NONE);
    for (size_t i = 0; i < bytes; i += 2 * MIB)
        CHECK_EQUAL(mprotect(ptr + i, MIB, READ_WRITE), 0);
    return ptr;
}

/* ---- a scan meanwhile ---- */

/* What is promised, as of a scan inside munmap, before the kernel is asked. */
static uint64_t promised_while_it_goes(char *ptr, size_t bytes)
{
    at(BEFORE, "munmap", scan);
    CHECK_EQUAL(munmap(ptr, bytes), 0);
    CHECK(wanted_call == NULL);
    return segment->slot.promised_bytes;
}

CASE(pages_that_go_are_not_taken_for_small_blocks)
{
    enum { COUNT = 1024, BYTES = 60 * 1024 };
    static char *block[COUNT];
    if (PAGE > BYTES) {
        dprintf(1, "the heap writes to each page of small blocks");
        _exit(77);
    }
    for (unsigned i = 0; i < COUNT; i++)
        CHECK((block[i] = malloc(BYTES)) != NULL);
    char *ptr = map(64 * MIB, READ_WRITE);
    memset(ptr, 1, 64 * MIB);
    scan();
    uint64_t before = segment->slot.promised_bytes;
    CHECK(before > 48 * MIB);
    CHECK(promised_while_it_goes(ptr, 64 * MIB) + MIB >= before);
    for (unsigned i = 0; i < COUNT; i++)
        free(block[i]);
}

CASE(address_space_that_goes_promises_nothing)
{
    char *held = malloc(64 * MIB); /* no more is promised than is held */
    CHECK(held != NULL);
    memset(held, 1, 64 * MIB);
    scan();
    uint64_t before = segment->slot.promised_bytes;
    CHECK(promised_while_it_goes(map(64 * MIB, PROT_NONE), 64 * MIB) <= before + MIB);
    free(held);
}

/* ---- a handler that jumps ---- */

static sigjmp_buf back;
static volatile sig_atomic_t may_jump;

static void jump(int number)
{
    siglongjmp(back, number);
}

static void signal_self(void)
{
    CHECK_EQUAL(raise(SIGUSR1), 0);
}

static __attribute__((noinline)) void jump_out_of_call(enum when when, const char *call, char *ptr, size_t old_bytes,
                                                       char *to, size_t new_bytes)
{
    if (sigsetjmp(back, 1) != 0)
        return;
    at(when, call, signal_self);
    if (new_bytes != 0)
        (void)mremap(ptr, old_bytes, new_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    else
        (void)munmap(ptr, old_bytes);
    CHECK(!"comes back");
}

static void jump_out_of_mremap(enum when when, size_t old_bytes, size_t new_bytes)
{
    char *ptr = map(old_bytes, READ_WRITE), *to = place(new_bytes);
    jump_out_of_call(when, "mremap", ptr, old_bytes, to, new_bytes);
    CHECK_MAPPED(new_bytes);
    scan();
    CHECK_NEAR(segment->slot.promised_bytes, new_bytes);
    CHECK_EQUAL(munmap(to, new_bytes), 0);
    check_nothing_left();
}

CASE(handler_that_jumps_out_of_mremap_leaves_nothing_half_done)
{
    signal(SIGUSR1, jump);
    for (enum when when = BEFORE; when <= AFTER; when++) {
        jump_out_of_mremap(when, 64 * MIB, 64 * MIB);
        jump_out_of_mremap(when, 64 * MIB, 32 * MIB);
        jump_out_of_mremap(when, 64 * MIB, 96 * MIB);
    }
}

static void jump_out_of_munmap(enum when when, size_t bytes)
{
    char *ptr = comb(bytes);
    CHECK_MAPPED(bytes / 2);
    jump_out_of_call(when, "munmap", ptr, bytes, NULL, 0);
    CHECK(msync(ptr, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
    check_nothing_left();
}

CASE(handler_that_jumps_out_of_munmap_leaves_nothing_half_done)
{
    signal(SIGUSR1, jump);
    for (enum when when = BEFORE; when <= AFTER; when++) {
        jump_out_of_munmap(when, 8 * MIB);
        jump_out_of_munmap(when, 128 * MIB);
    }
}

static __attribute__((noinline)) void jump_out_of_taking(enum when when, const char *call, char *ptr, size_t bytes)
{
    if (sigsetjmp(back, 1) != 0)
        return;
    at(when, call, signal_self);
    if (strcmp(call, "mmap") == 0)
        (void)mmap(ptr, bytes, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0);
    else
        (void)mprotect(ptr, bytes, READ_WRITE);
    CHECK(!"comes back");
}

/* What is taken is there, and promised, and nothing is in flight. */
static void jump_out_of_all_that_take(size_t bytes)
{
    const char *const calls[] = {"mmap", "mprotect"};
    for (int i = 0; i < 4; i++) {
        char *ptr = map(bytes, PROT_NONE);
        jump_out_of_taking(i / 2 == 0 ? BEFORE : AFTER, calls[i % 2], ptr, bytes);
        CHECK_MAPPED(bytes);
        CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
        scan();
        CHECK_NEAR(segment->slot.promised_bytes, bytes);
        CHECK_EQUAL(munmap(ptr, bytes), 0);
        check_nothing_left();
    }
}

CASE(handler_that_jumps_out_of_what_takes_mappings_leaves_nothing_in_flight)
{
    signal(SIGUSR1, jump);
    jump_out_of_all_that_take(64 * MIB);
    jump_out_of_all_that_take(MIB - PAGE);
}

static __attribute__((noinline)) void jump_out_of_replacing(enum when when, char *ptr, size_t bytes, int prot)
{
    if (sigsetjmp(back, 1) != 0)
        return;
    at(when, "mmap", signal_self);
    (void)mmap(ptr, bytes, prot, ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(!"comes back");
}

/* Which asks for nothing. What was there is gone, and what comes anew is promised. */
CASE(handler_that_jumps_out_of_mmap_over_what_is_there_leaves_nothing_half_done)
{
    const size_t bytes = 64 * MIB, small = MIB - PAGE;
    signal(SIGUSR1, jump);
    for (enum when when = BEFORE; when <= AFTER; when++) {
        char *ptr = map(bytes, READ_WRITE);
        memset(ptr, 1, bytes);
        scan();
        jump_out_of_replacing(when, ptr, bytes, PROT_NONE);
        CHECK_MAPPED(0);
        CHECK_EQUAL(mprotect(ptr, bytes, READ_WRITE), 0);
        CHECK_MAPPED(bytes);
        scan();
        CHECK_NEAR(segment->slot.promised_bytes, bytes);
        memset(ptr, 1, bytes);
        scan();
        for (size_t i = 0; i < 8; i++)
            jump_out_of_replacing(when, ptr + i * small, small, READ_WRITE);
        scan();
        CHECK_NEAR(segment->slot.promised_bytes, 8 * small);
        CHECK_EQUAL(munmap(ptr, bytes), 0);
        check_nothing_left();
    }
}

static volatile sig_atomic_t has_come;
static volatile bool came_inside; /* volatile: the libc declares that mmap calls nothing of ours */

static void come(int number)
{
    (void)number;
    has_come = 1;
}

static void see_whether_it_comes(void)
{
    signal_self();
    came_inside = has_come != 0;
}

/* It may take minutes, in which the kernel lets go of it for a signal that is fatal, but not for one that is
 * blocked. */
CASE(what_populates_a_mapping_is_not_deaf)
{
    const int populating[] = {MAP_POPULATE, MAP_LOCKED};
    signal(SIGUSR1, come);
    for (int i = 0; i < 2; i++) {
        has_come = came_inside = false;
        at(BEFORE, "mmap", see_whether_it_comes);
        char *ptr = mmap(NULL, 64 * MIB, READ_WRITE, ANONYMOUS | populating[i], -1, 0);
        CHECK(came_inside);
        if (ptr == MAP_FAILED && populating[i] == MAP_LOCKED)
            continue; /* RLIMIT_MEMLOCK */
        CHECK_MAPPED(64 * MIB);
        CHECK_EQUAL(munmap(ptr, 64 * MIB), 0);
    }
    check_nothing_left();
}

/* SIGSYS, for the write(2) of the message that 64 MiB would have been refused: the test observes, with a limit of
 * 32. */
static void jump_out_of_write(int number)
{
    (void)number;
    if (may_jump) {
        may_jump = 0;
        siglongjmp(back, 1);
    }
}

CASE(handler_that_jumps_out_of_what_is_observed_leaves_nothing_in_flight)
{
    signal(SIGSYS, jump_out_of_write);
    if (!filter_call(SYS_write, SECCOMP_RET_TRAP))
        _exit(77);
    may_jump = 1;
    if (sigsetjmp(back, 1) == 0)
        (void)map(64 * MIB, READ_WRITE);
    CHECK_EQUAL(may_jump, 0);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
}

/* ---- a fork beside it ---- */

static struct {
    enum when when;
    const char *call;
    char *from, *to; /* to NULL: where the kernel likes */
    size_t old_bytes, new_bytes;
    char *moved;
    bool is_taken; /* somebody maps half as much at the old place before the fork */
} order;
static sem_t is_there, has_forked;

static void wait_for_fork(void)
{
    if (order.is_taken)
        CHECK(mmap(order.from, order.old_bytes / 2, READ_WRITE, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == order.from);
    CHECK(sem_post(&is_there) == 0 && sem_wait(&has_forked) == 0);
}

static void *carry_out(void *unused)
{
    at(order.when, order.call, wait_for_fork);
    if (strcmp(order.call, "munmap") == 0)
        CHECK_EQUAL(munmap(order.from, order.old_bytes), 0);
    else
        order.moved = mremap(order.from, order.old_bytes, order.new_bytes,
                             MREMAP_MAYMOVE | (order.to != NULL ? MREMAP_FIXED : 0), order.to);
    return unused;
}

/* What the child has at the old place. */
static size_t left_bytes(void)
{
    if (order.when == BEFORE)
        return order.old_bytes;
    if (order.is_taken)
        return order.old_bytes / 2;
    return order.to == NULL && order.new_bytes < order.old_bytes ? order.new_bytes : 0;
}

/* In the child `counted` bytes count, and none when it has unmapped them; in the parent, `counted_after` when the call
 * is over. */
static void fork_inside(uint64_t counted, uint64_t counted_after)
{
    pthread_t thread;
    int status = 1;
    CHECK(pthread_create(&thread, NULL, carry_out, NULL) == 0 && sem_wait(&is_there) == 0);
    pid_t child = fork();
    if (child == 0) {
        live_begin();
        CHECK_MAPPED(counted);
        CHECK_EQUAL(segment->inherited_domain_bytes[SG_DOMAIN_MAPPED] - base, counted);
        CHECK(left_bytes() == 0 || munmap(order.from, left_bytes()) == 0);
        CHECK(order.when == BEFORE || order.to == NULL || munmap(order.to, order.new_bytes) == 0);
        check_nothing_left();
        _exit(0);
    }
    CHECK(sem_post(&has_forked) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_MAPPED(counted_after);
    if (order.is_taken)
        CHECK_EQUAL(munmap(order.from, left_bytes()), 0);
    if (order.moved != NULL)
        CHECK_EQUAL(munmap(order.moved, order.new_bytes), 0);
    check_nothing_left();
}

static void fork_inside_mremap(enum when when, size_t old_bytes, size_t new_bytes, uint64_t counted)
{
    order.call = "mremap";
    order.when = when;
    order.from = map(old_bytes, READ_WRITE);
    order.to = place(new_bytes);
    order.old_bytes = old_bytes;
    order.new_bytes = new_bytes;
    fork_inside(counted, new_bytes);
}

CASE(child_forked_inside_mremap_has_the_mapping_where_it_is)
{
    for (size_t new_bytes = 32 * MIB; new_bytes <= 96 * MIB; new_bytes += 32 * MIB) {
        fork_inside_mremap(BEFORE, 64 * MIB, new_bytes, 64 * MIB);
        fork_inside_mremap(AFTER, 64 * MIB, new_bytes, new_bytes < 64 * MIB ? new_bytes : 64 * MIB);
    }
}

/* Its tail goes, the rest stays where it is. */
CASE(child_forked_inside_mremap_that_shrinks_has_what_is_left)
{
    for (enum when when = BEFORE; when <= AFTER; when++) {
        char *ptr = map(64 * MIB, READ_WRITE);
        order = (__typeof__(order)){when, "mremap", ptr, NULL, 64 * MIB, 32 * MIB, NULL, false};
        fork_inside(when == BEFORE ? 64 * MIB : 32 * MIB, 32 * MIB);
    }
}

CASE(child_forked_inside_mremap_counts_nothing_that_is_nowhere_known)
{
    for (int is_taken = 0; is_taken <= 1; is_taken++) {
        char *ptr = map(64 * MIB + PAGE, READ_WRITE), *wall = ptr + 64 * MIB;
        order = (__typeof__(order)){AFTER, "mremap", ptr, NULL, 64 * MIB, 96 * MIB, NULL, is_taken != 0};
        CHECK_EQUAL(munmap(wall, PAGE), 0);
        CHECK(mmap(wall, PAGE, PROT_NONE, ANONYMOUS | MAP_FIXED, -1, 0) == wall);
        fork_inside(is_taken ? 32 * MIB : 0, (is_taken ? 32 : 0) * MIB + 96 * MIB);
        CHECK(order.moved != order.from);
    }
}

CASE(child_forked_inside_munmap_has_what_is_mapped)
{
    for (enum when when = BEFORE; when <= AFTER; when++) {
        order = (__typeof__(order)){when, "munmap", comb(128 * MIB), NULL, 128 * MIB, 0, NULL, false};
        fork_inside(when == BEFORE ? 64 * MIB : 0, 0);
    }
}

CASE(child_forked_inside_mremap_detaches_the_segment_that_it_has)
{
    int id = shmget(IPC_PRIVATE, 8 * MIB, IPC_CREAT | 0600);
    char *first = shmat(id, NULL, 0);
    CHECK(id >= 0 && first != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
    CHECK_MAPPED(8 * MIB);
    for (enum when when = BEFORE; when <= AFTER; when++) {
        pthread_t thread;
        int status = 1;
        order = (__typeof__(order)){when, "mremap", first, place(8 * MIB), 8 * MIB, 8 * MIB, NULL, false};
        CHECK(pthread_create(&thread, NULL, carry_out, NULL) == 0 && sem_wait(&is_there) == 0);
        pid_t child = fork();
        if (child == 0) {
            live_begin();
            CHECK_MAPPED(8 * MIB);
            CHECK_EQUAL(shmdt(when == BEFORE ? order.from : order.to), 0);
            check_nothing_left();
            _exit(0);
        }
        CHECK(sem_post(&has_forked) == 0 && pthread_join(thread, NULL) == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        first = order.moved;
    }
}

int main(int count, char **arguments)
{
    inside = (void (**)(enum when, const char *))dlsym(RTLD_DEFAULT, "next_inside");
    CHECK(inside != NULL);
    *inside = is_inside;
    CHECK(sem_init(&is_there, 0, 0) == 0 && sem_init(&has_forked, 0, 0) == 0);
    live_begin();
    base = live(SG_DOMAIN_MAPPED);
    return run_case(count, arguments);
}
