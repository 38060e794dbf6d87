/*
 * abuse_signals CASE AMOUNT [unseen] - signal handlers that use the heap and mappings, and what becomes of the counts.
 *
 * POSIX lets no handler allocate that interrupted the heap itself; with an allocator behind the guard that does not
 * mind (tests/qualification/signal_safe_heap.c) every instruction of ours may be interrupted, and each byte must still
 * be found.
 */
#include "heap_case.h"

#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/auxv.h>
#include <sys/time.h>
#include <time.h>

enum { PLACES = 64 };

struct handler {
    uint64_t random;
    unsigned count; /* how often it ran */
    void *block[PLACES], *map[PLACES];
};

static unsigned amount;
static bool is_seen = true; /* the heap, by the guard */
static struct handler handlers[2] = {{.random = 1}, {.random = 2}};

static unsigned draw(uint64_t *random, unsigned most)
{
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(*random >> 33) % most;
}

static void *map(size_t pages)
{
    void *mapped = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    return mapped;
}

static void put(void **place, void *ptr)
{
    free(*place);
    *place = ptr;
}

/* SIGALRM's may be interrupted by SIGPROF's. */
static void handle(int number)
{
    struct handler *self = &handlers[number == SIGPROF];
    int saved_errno = errno;
    self->count++;
    for (unsigned i = 0; i < 3; i++) {
        void **place = &self->block[draw(&self->random, PLACES)];
        unsigned size = 1 + draw(&self->random, draw(&self->random, 8) == 0 ? 100000 : 3000);
        void *grown = draw(&self->random, 4) == 0 ? realloc(*place, size) : NULL;
        if (grown != NULL)
            *place = grown;
        else
            put(place, draw(&self->random, 2) ? malloc(size) : calloc(1, size));
    }
    void **mapped = &self->map[draw(&self->random, PLACES)];
    if (*mapped != NULL)
        CHECK_EQUAL(munmap(*mapped, PAGE), 0);
    *mapped = *mapped == NULL ? map(1) : NULL;
    errno = saved_errno;
}

static size_t draw_size(uint64_t *random)
{
    switch (draw(random, 40)) {
    case 0:
        return MIB + draw(random, 1 << 20);
    case 1:
    case 2:
        return 60000 + draw(random, 100000);
    default:
        return draw(random, 3000);
    }
}

static void stress(void **block, uint64_t *random)
{
    void **place = &block[draw(random, PLACES)];
    void *ptr = *place;
    switch (draw(random, 4)) {
    case 0:
        CHECK((ptr = realloc(ptr, 1 + draw_size(random))) != NULL);
        *place = ptr;
        break;
    case 1:
        put(place, calloc(draw_size(random), 1));
        break;
    case 2:
        CHECK_EQUAL(munmap(map(3), 3 * PAGE), 0);
        break;
    default:
        put(place, malloc(draw_size(random)));
    }
}

static size_t usable(void **block)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < PLACES; i++)
        bytes += block[i] != NULL ? malloc_usable_size(block[i]) : 0;
    return bytes;
}

/* How often the handlers ran; what they hold is added. */
static unsigned sum_handlers(uint64_t *usable_bytes, uint64_t *maps)
{
    unsigned count = 0;
    for (unsigned i = 0; i < 2; i++) {
        count += handlers[i].count;
        *usable_bytes += usable(handlers[i].block);
        for (unsigned j = 0; j < PLACES; j++)
            *maps += handlers[i].map[j] != NULL;
    }
    return count;
}

/* Live is just that, and nothing is left of what was under way. */
static void check_live(uint64_t heap_bytes, uint64_t mapped_bytes)
{
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), heap_bytes);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), mapped_bytes);
    CHECK_EQUAL(segment->unmatched_frees, 0);
    CHECK_EQUAL(segment->faults, 0);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
}

static void set_handler(int number, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    CHECK_EQUAL(sigaction(number, &action, NULL), 0);
}

static void arm(timer_t timer, long nanoseconds)
{
    const struct itimerspec soon = {{0, 0}, {0, nanoseconds}};
    CHECK_EQUAL(timer_settime(timer, 0, &soon, NULL), 0);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    CHECK_EQUAL(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* How long five steps take that took so long since then, but at least so long: under an emulator a signal that is due
 * sooner comes before the first of them. */
static unsigned few_steps_ns(uint64_t since_ns, unsigned steps, unsigned least_ns)
{
    uint64_t ns = (now_ns() - since_ns) * 5 / steps;
    return ns < least_ns ? least_ns : ns > 100000000 ? 100000000 : (unsigned)ns;
}

enum { TRIAL_STEPS = 200 };

/* Each is armed once for a few steps: however slow the machine, the steps go on. */
CASE(handlers_in_every_instruction)
{
    static void *block[PLACES];
    static const int number[2] = {SIGALRM, SIGPROF};
    uint64_t random = 3, maps = 0;
    timer_t timer[2];
    live_begin();
    free(malloc(100)); /* with the first small block the guard learns which heap is behind it */
    for (int i = 0; i < 2; i++) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number[i]};
        CHECK_EQUAL(timer_create(CLOCK_MONOTONIC, &event, &timer[i]), 0);
        set_handler(number[i], handle, SA_RESTART);
    }
    uint64_t heap = live(SG_DOMAIN_HEAP), mapped = live(SG_DOMAIN_MAPPED), began_ns = now_ns();
    for (unsigned i = 0; i < TRIAL_STEPS; i++)
        stress(block, &random);
    unsigned soon_ns = few_steps_ns(began_ns, TRIAL_STEPS, 10000);
    for (unsigned i = 0; i < amount; i++) {
        arm(timer[draw(&random, 2)], 1 + draw(&random, soon_ns));
        for (unsigned j = draw(&random, 10); j > 0; j--)
            stress(block, &random);
    }
    arm(timer[0], 0);
    arm(timer[1], 0);
    uint64_t usable_bytes = usable(block);
    unsigned count = sum_handlers(&usable_bytes, &maps);
    check_live(heap + usable_bytes, mapped + maps * PAGE);
    printf("%u\n", count);
}

/* ---- any heap ---- */

static atomic_int is_over;

static void *use_heap(void *number)
{
    static void *blocks[2][PLACES];
    uint64_t random = (uintptr_t)number + 5;
    void **block = blocks[(uintptr_t)number];
    while (!atomic_load(&is_over))
        stress(block, &random);
    for (unsigned i = 0; i < PLACES; i++)
        put(&block[i], NULL);
    return NULL;
}

static void begin_threads(pthread_t thread[2])
{
    for (uintptr_t i = 0; i < 2; i++)
        CHECK_EQUAL(pthread_create(&thread[i], NULL, use_heap, (void *)i), 0);
}

static void end_threads(pthread_t thread[2])
{
    atomic_store(&is_over, 1);
    for (int i = 0; i < 2; i++)
        CHECK_EQUAL(pthread_join(thread[i], NULL), 0);
}

static void stress_mappings(uint64_t *random)
{
    size_t pages = 2 + draw(random, 600), more = pages + draw(random, 600);
    char *mapped = map(pages);
    CHECK_EQUAL(mprotect(mapped, PAGE, PROT_NONE), 0);
    CHECK_EQUAL(madvise(mapped + PAGE, PAGE, MADV_DONTNEED), 0);
    CHECK_EQUAL(munmap(mapped, PAGE), 0);
    char *moved = mremap(mapped + PAGE, (pages - 1) * PAGE, more * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    CHECK_EQUAL(munmap(moved, more * PAGE), 0);
}

/* What a program may do over every heap: its handlers allocate, but interrupt no heap, neither by each other. They
 * interrupt mappings, where the guard must use nothing that they cannot have. Other threads use the heap meanwhile. */
CASE(handlers_beside_mappings)
{
    uint64_t random = 6, heap = 0, mapped = 0, usable_bytes = 0, maps = 0;
    struct sigaction action = {.sa_handler = handle};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    pthread_t thread[2];
    timer_t timer;
    sigset_t handled;
    if (is_seen)
        live_begin();
    free(malloc(100));
    sigemptyset(&handled);
    sigaddset(&handled, SIGALRM);
    action.sa_mask = handled;
    CHECK_EQUAL(sigaction(SIGALRM, &action, NULL), 0);
    CHECK_EQUAL(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    CHECK_EQUAL(pthread_sigmask(SIG_BLOCK, &handled, NULL), 0);
    begin_threads(thread); /* glibc keeps something for them */
    end_threads(thread);
    if (is_seen) {
        heap = live(SG_DOMAIN_HEAP);
        mapped = live(SG_DOMAIN_MAPPED);
    }
    atomic_store(&is_over, 0);
    begin_threads(thread);
    uint64_t began_ns = now_ns();
    for (unsigned i = 0; i < TRIAL_STEPS; i++)
        stress_mappings(&random);
    unsigned soon_ns = few_steps_ns(began_ns, 5 * TRIAL_STEPS, 20000); /* of one: it is some calls */
    CHECK_EQUAL(pthread_sigmask(SIG_UNBLOCK, &handled, NULL), 0);
    for (unsigned i = 0; i < amount; i++) {
        arm(timer, 1 + draw(&random, soon_ns));
        stress_mappings(&random);
    }
    arm(timer, 0);
    end_threads(thread);
    unsigned count = sum_handlers(&usable_bytes, &maps);
    if (is_seen)
        check_live(heap + usable_bytes, mapped + maps * PAGE);
    printf("%u\n", count);
}

/* ---- longjmp out of a handler ---- */

static sigjmp_buf back;
static volatile sig_atomic_t may_jump;

static void jump(int number)
{
    if (may_jump)
        siglongjmp(back, number);
}

/* The handler interrupts arithmetic, as POSIX demands of one that does not return. */
CASE(handlers_that_jump_away)
{
    volatile unsigned jumps = 0;
    volatile uint64_t sum = 0;
    void *volatile kept = NULL;
    live_begin();
    set_handler(SIGALRM, jump, 0);
    uint64_t heap = live(SG_DOMAIN_HEAP), mapped = live(SG_DOMAIN_MAPPED);
    for (unsigned i = 0; i < amount; i++) {
        free(kept);
        kept = malloc(1 + i % 5000);
        if (sigsetjmp(back, 1) != 0) {
            may_jump = 0;
            jumps++;
            CHECK_EQUAL(munmap(map(2), 2 * PAGE), 0);
            continue;
        }
        may_jump = 1;
        const struct itimerval soon = {{0, 0}, {0, 20}};
        setitimer(ITIMER_REAL, &soon, NULL);
        for (;;)
            sum += i;
    }
    CHECK_EQUAL(jumps, amount);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP) - heap, malloc_usable_size(kept));
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), mapped);
}

/* Begins endless work `amount` times; a handler jumps out of it each time, at some instant within 100 us. */
static void jump_out_of(void (*work)(uint64_t *random), uint64_t seed)
{
    static uint64_t random, now; /* what work draws is lost with a jump */
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    timer_t timer;
    random = seed;
    CHECK_EQUAL(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    set_handler(SIGALRM, jump, 0);
    for (volatile unsigned i = 0; i < amount; i++) {
        if (sigsetjmp(back, 1) == 0) {
            long soon = 1 + draw(&random, 100000);
            now = random;
            may_jump = 1;
            arm(timer, soon);
            work(&now);
        }
        may_jump = 0;
    }
}

static void take_and_free(uint64_t *random)
{
    for (;;)
        free(malloc(60000 + draw(random, 60000))); /* whose they are after a jump, nobody knows */
}

/* Out of the heap itself: what was half done is lost, but what the thread takes later counts. */
CASE(handlers_that_jump_out_of_the_heap)
{
    live_begin();
    free(malloc(100));
    jump_out_of(take_and_free, 4);
    for (size_t size = 10; size < 4 * MIB; size *= 3) {
        uint64_t before = live(SG_DOMAIN_HEAP);
        void *ptr = malloc(size);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, malloc_usable_size(ptr));
        free(ptr);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    }
    uint64_t before = live(SG_DOMAIN_MAPPED);
    void *mapped = map(3);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED) - before, 3 * PAGE);
    CHECK_EQUAL(munmap(mapped, 3 * PAGE), 0);
}

#define PLACE_BYTES ((size_t)4 * MIB)
static char *place;

static void map_and_protect(uint64_t *random)
{
    (void)random;
    for (size_t bytes = PAGE;; bytes = bytes < PLACE_BYTES ? 2 * bytes : PAGE) {
        (void)mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        (void)mprotect(place, bytes, PROT_NONE);
        (void)mmap(place, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        (void)mprotect(place, bytes, PROT_READ | PROT_WRITE);
    }
}

/* Out of mappings: whatever instant the signal comes at, nothing stays in flight. */
CASE(handlers_that_jump_out_of_mappings)
{
    live_begin();
    uint64_t mapped = live(SG_DOMAIN_MAPPED);
    place = mmap(NULL, PLACE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    jump_out_of(map_and_protect, 5);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    CHECK_EQUAL(munmap(place, PLACE_BYTES), 0);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), mapped);
}

static void overflow_again(int number)
{
    (void)number;
    void *volatile large = malloc(3 * MIB), *volatile mapped = map(512);
    free(large);
    CHECK_EQUAL(munmap(mapped, 512 * PAGE), 0);
    CHECK(malloc((size_t)1 << 44) == NULL); /* the way of a refusal, with its message */
    if (may_jump)
        siglongjmp(back, 1);
}

/* As a runtime does it that turns a null pointer or an overflown stack into an exception. */
CASE(fault_handlers_that_jump_away)
{
    volatile unsigned jumps = 0;
    live_begin();
    set_handler(SIGSEGV, overflow_again, SA_NODEFER);
    uint64_t heap = live(SG_DOMAIN_HEAP), mapped = live(SG_DOMAIN_MAPPED);
    may_jump = 1;
    while (jumps < amount) {
        if (sigsetjmp(back, 1) == 0)
            *(volatile char *)(uintptr_t)8 = 1;
        else
            jumps++;
    }
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), heap);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), mapped);
}

/* ---- a small alternate stack ---- */

/* 8 KiB beside what the kernel itself puts there: SIGSTKSZ, as programs have it compiled in. The segment, too, is
 * opened on it. */
CASE(handlers_on_a_small_stack)
{
    size_t least = (size_t)getauxval(AT_MINSIGSTKSZ),
           known = (size_t)MINSIGSTKSZ; /* glibc before 2.34 has a constant */
    size_t size = (least > known ? least : known) + 8192, room = (size + 2 * PAGE - 1) / PAGE * PAGE;
    char *page = map(room / PAGE);
    CHECK_EQUAL(mprotect(page, PAGE, PROT_NONE), 0); /* one byte too many ends the program */
    const stack_t stack = {.ss_sp = page + PAGE, .ss_size = room - PAGE};
    CHECK_EQUAL(sigaltstack(&stack, NULL), 0);
    set_handler(SIGUSR2, overflow_again, SA_ONSTACK);
    for (unsigned i = 0; i < amount; i++)
        CHECK_EQUAL(raise(SIGUSR2), 0);
    live_begin();
    CHECK_EQUAL(refused_count(SG_DOMAIN_HEAP), amount);
    CHECK_EQUAL(segment->unmatched_frees, 0);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
}

int main(int count, char **arguments)
{
    amount = count > 2 ? (unsigned)atoi(arguments[2]) : 1;
    is_seen = count < 4;
    return run_case(count, arguments);
}
