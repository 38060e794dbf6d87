/*
 * test_ledger.c - bytes per domain, peaks and credit; and the threads' records that hold the credit.
 */
#include "fixture.h"

#include "base/atomics.h"
#include "hooks/cuda/mark.h"
#include "account/ledger.h"
#include "shared/own_entry.h"
#include "shared/segment.h"
#include "account/thread_record.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct sg_peak *peak_now(void)
{
    return &sg_own->peak[sg_load(&sg_own->peak_index) % 2];
}

static uint64_t sum_of(const struct sg_peak *peak)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < SG_DOMAIN_CAPACITY; i++)
        sum += sg_load_relaxed(&peak->domain_bytes[i]);
    return sum;
}

/* ---- one thread -------------------------------------------------------------------------------------------------- */

CHILD_TEST(charge_and_release)
{
    sg_ledger_charge(SG_DOMAIN_MAPPED, 100);
    sg_ledger_charge(SG_DOMAIN_DEVICE, 50);
    CHECK_EQUAL(sg_ledger_live_bytes(), 150);
    CHECK_EQUAL(sg_own->slot.granted_bytes, 150);
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_MAPPED].granted_bytes, 100);
    CHECK_EQUAL(sg_ledger_live_heap_bytes(), 0);
    sg_ledger_release(SG_DOMAIN_MAPPED, 60);
    CHECK_EQUAL(sg_ledger_live_bytes(), 90);
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_MAPPED].peak_bytes, 100);
    CHECK_EQUAL(sg_own->peak_seen_bytes, 150);
}

CHILD_TEST(a_peak_that_begins_anew_begins_with_what_is_held)
{
    sg_ledger_charge(SG_DOMAIN_MAPPED, 100);
    sg_ledger_release(SG_DOMAIN_MAPPED, 60);
    CHECK_EQUAL(sg_ledger_turn_peak(), 100);
    CHECK_EQUAL(sg_own->phase_peak_bytes, 40);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 50);
    CHECK_EQUAL(sg_own->phase_peak_bytes, 90);
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_MAPPED].recent_peak_bytes, 100);
    sg_ledger_turn_domain_peaks();
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_MAPPED].recent_peak_bytes, 90);
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_MAPPED].peak_bytes, 100);
    CHECK_EQUAL(sg_own->peak_seen_bytes, 100);
    CHECK_EQUAL(peak_now()->total_bytes, 100);
    (void)sg_entry_raise(SG_SUM_GRANTED, 30); /* a charge that another thread has only begun */
    (void)sg_ledger_turn_peak();
    CHECK_EQUAL(sg_own->phase_peak_bytes, 120);
    CHECK_EQUAL(sg_own->peak_seen_bytes, 120);
}

CHILD_TEST(a_release_of_more_than_was_charged_ends_at_zero)
{
    sg_ledger_charge(SG_DOMAIN_HEAP, 100);
    sg_ledger_charge(SG_DOMAIN_DEVICE, 50);
    sg_ledger_release(SG_DOMAIN_HEAP, 1000);
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_HEAP].granted_bytes, 0);
    CHECK_EQUAL(sg_own->slot.granted_bytes, 50); /* other domains are not touched */
    CHECK_EQUAL(sg_ledger_live_bytes(), 50);
    sg_ledger_release(SG_DOMAIN_HEAP, 1);
    CHECK_EQUAL(sg_ledger_live_bytes(), 50);
}

CHILD_TEST(what_is_promised_is_never_more_than_what_is_held)
{
    for (int i = 0; i < 1000; i++) {
        sg_ledger_charge(SG_DOMAIN_HEAP, 600000);
        sg_ledger_promise(600000, true);
        sg_ledger_release(SG_DOMAIN_HEAP, 600000);
    }
    CHECK_EQUAL(sg_ledger_promised_bytes(), 0);
    sg_ledger_charge(SG_DOMAIN_DEVICE, 1 << 20); /* is there when the call returns: no room for a promise */
    sg_ledger_charge(SG_DOMAIN_MAPPED, 300);
    sg_ledger_promise(300, true);
    sg_ledger_charge(SG_DOMAIN_MANAGED, 200);
    sg_ledger_promise(200, false);
    CHECK_EQUAL(sg_ledger_promised_bytes(), 500);
    sg_ledger_release(SG_DOMAIN_MAPPED, 300);
    CHECK_EQUAL(sg_ledger_promised_bytes(), 200);
}

static uint64_t promised_of_scan(uint64_t missing, uint64_t shared)
{
    const struct sg_ledger_scan found = {.missing_bytes = missing, .shared_bytes = shared};
    sg_ledger_end_scan(&found);
    return sg_own->slot.promised_bytes;
}

CHILD_TEST(what_is_promised_beside_a_scan_stays_promised)
{
    sg_ledger_charge(SG_DOMAIN_HEAP, 30 * MIB);
    sg_ledger_promise(10 * MIB, true);
    sg_ledger_begin_scan();
    sg_ledger_promise(4 * MIB, true);
    CHECK_EQUAL(promised_of_scan(2 * MIB, 0), 6 * MIB);
    sg_ledger_begin_scan();
    CHECK_EQUAL(promised_of_scan(30 * MIB, 0), 6 * MIB); /* a scan raises nothing */
    sg_ledger_begin_scan();
    sg_ledger_note_moved(3 * MIB); /* in the index of mappings: it may have been missed */
    CHECK_EQUAL(promised_of_scan(MIB, 0), 4 * MIB + 3 * MIB);
    sg_ledger_begin_scan();
    CHECK_EQUAL(promised_of_scan(MIB, 0), MIB);
}

CHILD_TEST(shared_memory_is_promised_as_a_scan_finds_it)
{
    sg_ledger_charge(SG_DOMAIN_MAPPED, 30 * MIB);
    sg_ledger_promise(10 * MIB, true);
    sg_ledger_promise(8 * MIB, false);
    CHECK_EQUAL(sg_own->slot.promised_bytes, 18 * MIB);
    CHECK_EQUAL(sg_entry_own()->shared_promised_bytes, 8 * MIB);
    uint64_t begin = sg_ledger_begin_observation();
    sg_ledger_observe(begin, 3 * MIB); /* says nothing of shared memory */
    CHECK_EQUAL(sg_own->slot.promised_bytes, 11 * MIB);
    sg_ledger_begin_scan();
    CHECK_EQUAL(promised_of_scan(3 * MIB, 2 * MIB), 5 * MIB);
    sg_ledger_begin_scan();
    sg_ledger_promise(MIB, false);
    CHECK_EQUAL(promised_of_scan(3 * MIB, 4 * MIB), 3 * MIB + 5 * MIB);
    CHECK_EQUAL(sg_entry_own()->slot.promised_bytes, sg_own->slot.promised_bytes);
}

CHILD_TEST(only_what_was_promised_before_an_observation_goes)
{
    sg_ledger_charge(SG_DOMAIN_HEAP, 30 * MIB);
    sg_ledger_promise(10 * MIB, true);
    uint64_t begin = sg_ledger_begin_observation();
    sg_ledger_promise(2 * MIB, true);
    sg_ledger_observe(begin, MIB);
    CHECK_EQUAL(sg_own->slot.promised_bytes, 3 * MIB);
    CHECK_EQUAL(sg_entry_own()->ever_promised_bytes, 12 * MIB);
    sg_ledger_observe(sg_ledger_begin_observation(), 20 * MIB);
    CHECK_EQUAL(sg_own->slot.promised_bytes, 3 * MIB);
}

CHILD_TEST(allocations_and_frees_are_counted)
{
    sg_ledger_count_allocation(SG_DOMAIN_PINNED);
    sg_ledger_count_allocation(SG_DOMAIN_PINNED);
    sg_ledger_count_free(SG_DOMAIN_PINNED);
    sg_ledger_count_fault();
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_PINNED].allocations, 2);
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_PINNED].frees, 1);
    CHECK_EQUAL(sg_own->faults, 1);
}

CHILD_TEST(the_peak_says_what_it_was_made_of)
{
    sg_ledger_charge(SG_DOMAIN_HEAP, 10 * MIB);
    sg_ledger_charge(SG_DOMAIN_DEVICE, 100 * MIB);
    sg_ledger_release(SG_DOMAIN_HEAP, 10 * MIB);
    sg_ledger_charge(SG_DOMAIN_PINNED, 5 * MIB);
    sg_ledger_release(SG_DOMAIN_DEVICE, 100 * MIB);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 20 * MIB);
    const struct sg_peak *peak = peak_now();
    CHECK_EQUAL(peak->total_bytes, 110 * MIB);
    CHECK_EQUAL(peak->domain_bytes[SG_DOMAIN_HEAP], 10 * MIB);
    CHECK_EQUAL(peak->domain_bytes[SG_DOMAIN_DEVICE], 100 * MIB);
    CHECK_EQUAL(peak->domain_bytes[SG_DOMAIN_PINNED], 0);
    CHECK_EQUAL(sum_of(peak), peak->total_bytes);
    CHECK(peak->time_ns > INT64_C(1500000000000000000));
}

/* Others are between the two steps of a release, then of a charge: the parts must make up the total all the same. */
CHILD_TEST(the_parts_of_a_peak_always_make_up_its_total)
{
    sg_ledger_charge(SG_DOMAIN_MAPPED, 100);
    sg_own->domain[SG_DOMAIN_MAPPED].granted_bytes -= 40;
    sg_ledger_charge(SG_DOMAIN_DEVICE, 500);
    CHECK_EQUAL(peak_now()->total_bytes, 600);
    CHECK_EQUAL(sum_of(peak_now()), 600);
    sg_own->domain[SG_DOMAIN_MAPPED].granted_bytes += 90;
    sg_ledger_charge(SG_DOMAIN_DEVICE, 500);
    CHECK_EQUAL(peak_now()->total_bytes, 1100);
    CHECK_EQUAL(sum_of(peak_now()), 1100);
    CHECK_EQUAL(peak_now()->domain_bytes[SG_DOMAIN_MAPPED], 150);
}

CHILD_TEST(device_bytes_per_device_end_at_zero)
{
    sg_ledger_charge_device(1, 100);
    sg_ledger_charge_device(0, 10);
    sg_ledger_charge_device(SG_DEVICE_CAPACITY, 7); /* no place of its own: in the domain's sum only */
    CHECK_EQUAL(sg_own->device[1].live_bytes, 100);
    sg_ledger_charge_device(1, -1000);
    CHECK_EQUAL(sg_own->device[1].live_bytes, 0);
    CHECK_EQUAL(sg_own->device[0].live_bytes, 10);
}

CHILD_TEST(what_is_device_memory_the_others_see)
{
    sg_ledger_charge(SG_DOMAIN_HEAP, 30);
    sg_ledger_charge(SG_DOMAIN_DEVICE, 117);
    CHECK_EQUAL(sg_entry_own()->slot.device_bytes, 117);
    CHECK_EQUAL(sg_entry_own()->slot.granted_bytes, 147);
    sg_ledger_release(SG_DOMAIN_DEVICE, 1000);
    CHECK_EQUAL(sg_entry_own()->slot.device_bytes, 0);
    CHECK_EQUAL(sg_entry_own()->slot.granted_bytes, 30);
}

CHILD_TEST(credit_is_granted_but_not_live)
{
    sg_thread_enter();
    struct sg_record *record = sg_self.record;
    CHECK(record != NULL && record != &sg_own->record[0]);
    sg_ledger_grant_credit(record, 1000);
    CHECK_EQUAL(record->credit_bytes, 1000);
    CHECK_EQUAL(sg_own->slot.granted_bytes, 1000);
    CHECK_EQUAL(sg_ledger_live_bytes(), 0);
    CHECK_EQUAL(sg_owner_add(&record->credit_bytes, -300), 700); /* a block of 300 bytes */
    CHECK_EQUAL(sg_ledger_live_bytes(), 300);
    CHECK_EQUAL(sg_ledger_live_heap_bytes(), 300);
    sg_ledger_return_credit(record, 200);
    CHECK_EQUAL(record->credit_bytes, 200);
    CHECK_EQUAL(sg_own->slot.granted_bytes, 500);
    CHECK_EQUAL(sg_ledger_live_bytes(), 300);
    sg_ledger_return_credit(record, 200);
    CHECK_EQUAL(sg_own->slot.granted_bytes, 500);
}

CHILD_TEST(a_debt_is_paid_when_credit_is_returned)
{
    sg_thread_enter();
    CHECK_EQUAL(sg_owner_add(&sg_self.record->credit_bytes, -300), -300);
    CHECK_EQUAL(sg_ledger_live_bytes(), 300);
    sg_ledger_return_credit(sg_self.record, 0);
    CHECK_EQUAL(sg_self.record->credit_bytes, 0);
    CHECK_EQUAL(sg_own->slot.granted_bytes, 300);
    CHECK_EQUAL(sg_ledger_live_bytes(), 300);
}

CHILD_TEST(more_credit_than_granted_bytes_shows_nothing_live)
{
    sg_thread_enter();
    CHECK_EQUAL(sg_owner_add(&sg_self.record->credit_bytes, 5000), 5000); /* frees of blocks nobody saw allocated */
    CHECK_EQUAL(sg_ledger_live_bytes(), 0);
    CHECK_EQUAL(sg_ledger_own_bytes(), 0);
}

CHILD_TEST(own_bytes_are_what_exceeds_the_inherited)
{
    sg_own->slot.inherited_bytes = 100;
    sg_ledger_charge(SG_DOMAIN_MAPPED, 90);
    CHECK_EQUAL(sg_ledger_own_bytes(), 0);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 30);
    CHECK_EQUAL(sg_ledger_own_bytes(), 20);
}

/* ---- several threads --------------------------------------------------------------------------------------------- */

enum { THREADS = 8, ROUNDS = 20000 };

static uint64_t most_seen[THREADS];
static uint64_t held_at_end[THREADS][SG_DOMAIN_COUNT];

static void *charge_at_random(void *context)
{
    uint64_t number = (uint64_t)(uintptr_t)context, seed = number + 1;
    uint64_t *held = held_at_end[number];
    for (int i = 0; i < ROUNDS; i++) {
        enum sg_domain domain = (enum sg_domain)(next_random(&seed) % SG_DOMAIN_COUNT);
        uint64_t bytes = next_random(&seed) % 100000;
        if (next_random(&seed) % 2 == 0) {
            sg_ledger_charge(domain, bytes);
            held[domain] += bytes;
        } else {
            bytes = bytes < held[domain] ? bytes : held[domain];
            sg_ledger_release(domain, bytes);
            held[domain] -= bytes;
        }
        uint64_t total = sg_load(&sg_own->slot.granted_bytes);
        most_seen[number] = total > most_seen[number] ? total : most_seen[number];
    }
    return NULL;
}

CHILD_TEST(threads_never_see_more_than_the_peak_and_lose_nothing)
{
    pthread_t threads[THREADS];
    uint64_t live = 0, domain_bytes[SG_DOMAIN_COUNT] = {0};
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, charge_at_random, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < THREADS; i++) {
        CHECK(sg_own->peak_seen_bytes >= most_seen[i]);
        CHECK(peak_now()->total_bytes >= most_seen[i]);
        for (int d = 0; d < SG_DOMAIN_COUNT; d++) {
            live += held_at_end[i][d];
            domain_bytes[d] += held_at_end[i][d];
        }
    }
    CHECK_EQUAL(sg_ledger_live_bytes(), live);
    for (int d = 0; d < SG_DOMAIN_COUNT; d++)
        CHECK_EQUAL(sg_own->domain[d].granted_bytes, domain_bytes[d]);
    CHECK(peak_now()->total_bytes >= sg_own->peak_seen_bytes);
    CHECK_EQUAL(sum_of(peak_now()), peak_now()->total_bytes);
}

static uint32_t is_over;

static void *turn_all_the_time(void *highest)
{
    while (sg_load(&is_over) == 0) {
        sg_raise_to(highest, sg_ledger_turn_peak());
        sg_ledger_turn_domain_peaks();
    }
    return NULL;
}

CHILD_TEST(peaks_that_begin_anew_all_the_time_lose_no_charge)
{
    pthread_t threads[THREADS], turner;
    uint64_t highest = 0;
    CHECK(pthread_create(&turner, NULL, turn_all_the_time, &highest) == 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, charge_at_random, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    sg_store(&is_over, 1u);
    CHECK(pthread_join(turner, NULL) == 0);
    sg_raise_to(&highest, sg_own->phase_peak_bytes);
    CHECK(highest == sg_own->peak_seen_bytes && highest == peak_now()->total_bytes);
    for (int i = 0; i < THREADS; i++)
        CHECK(highest >= most_seen[i]);
    for (int d = 0; d < SG_DOMAIN_COUNT; d++)
        CHECK(sg_own->domain[d].granted_bytes <= sg_own->domain[d].recent_peak_bytes &&
              sg_own->domain[d].recent_peak_bytes <= sg_own->domain[d].peak_bytes);
}

/* Blocks paid from credit, as heap.c does. */
static void *pay_from_credit(void *context)
{
    uint64_t seed = (uint64_t)(uintptr_t)context + 1;
    sg_thread_enter();
    struct sg_record *record = sg_self.record;
    for (int i = 0; i < ROUNDS && record != NULL; i++) {
        int64_t bytes = (int64_t)(next_random(&seed) % 30000) - 15000;
        int64_t credit = sg_owner_add(&record->credit_bytes, -bytes);
        if (credit < 0)
            sg_ledger_grant_credit(record, SG_CREDIT_REFILL + (uint64_t)-credit);
        else if (credit > SG_CREDIT_MAX)
            sg_ledger_return_credit(record, SG_CREDIT_REFILL);
        sg_owner_count(bytes > 0 ? &record->allocations : &record->frees);
    }
    return record;
}

CHILD_TEST(live_is_exact_when_quiet_whatever_credit_is_held)
{
    pthread_t threads[THREADS];
    int64_t expected = 0;
    sg_ledger_charge(SG_DOMAIN_HEAP, GIB); /* so that frees find something to take */
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, pay_from_credit, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) {
        void *record = NULL;
        CHECK(pthread_join(threads[i], &record) == 0 && record != NULL);
    }
    for (uintptr_t i = 0; i < THREADS; i++) {
        uint64_t seed = i + 1;
        for (int r = 0; r < ROUNDS; r++)
            expected += (int64_t)(next_random(&seed) % 30000) - 15000;
    }
    CHECK_EQUAL((int64_t)sg_ledger_live_bytes(), (int64_t)GIB + expected);
    uint64_t calls = 0;
    for (uint32_t i = 0; i < sg_own->record_used; i++)
        calls += sg_own->record[i].allocations + sg_own->record[i].frees;
    CHECK_EQUAL(calls, THREADS * ROUNDS);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static void *enter(void *unused)
{
    (void)unused;
    sg_thread_enter();
    if (sg_self.record != NULL)
        sg_ledger_grant_credit(sg_self.record, 5000);
    return sg_self.record;
}

static bool kernel_knows(uint32_t tid)
{
    return syscall(SYS_tkill, tid, 0) == 0;
}

CHILD_TEST(a_thread_that_ends_leaves_its_record_and_its_credit_to_the_next)
{
    void *first = NULL;
    for (int i = 0; i < 200; i++) {
        pthread_t thread;
        void *record = NULL;
        CHECK(pthread_create(&thread, NULL, enter, NULL) == 0 && pthread_join(thread, &record) == 0);
        CHECK(record != NULL);
        while (kernel_knows(((struct sg_record *)record)->tid)) /* a moment longer than pthread_join waits */
            (void)sched_yield();
        first = first == NULL ? record : first;
        CHECK(record == first);
        CHECK_EQUAL(((struct sg_record *)record)->credit_bytes, 5000 * (i + 1));
    }
    CHECK_EQUAL(sg_own->record_used, 2);
    CHECK_EQUAL(sg_ledger_live_bytes(), 0);
    CHECK(first != &sg_own->record[0]);
}

static pthread_barrier_t all_are_in;

static void *enter_together(void *unused)
{
    (void)unused;
    sg_thread_enter();
    (void)pthread_barrier_wait(&all_are_in);
    return sg_self.record;
}

CHILD_TEST(every_thread_has_a_record_of_its_own)
{
    enum { MANY = 50 };
    pthread_t threads[MANY];
    void *record[MANY];
    CHECK(pthread_barrier_init(&all_are_in, NULL, MANY) == 0);
    for (int i = 0; i < MANY; i++)
        CHECK(pthread_create(&threads[i], NULL, enter_together, NULL) == 0);
    for (int i = 0; i < MANY; i++)
        CHECK(pthread_join(threads[i], &record[i]) == 0);
    for (int i = 0; i < MANY; i++)
        for (int other = 0; other < i; other++)
            CHECK(record[i] != NULL && record[i] != record[other]);
    CHECK_EQUAL(sg_own->record_used, MANY + 1);
    CHECK_EQUAL(sg_own->record[0].tid, 0);
}

CHILD_TEST(credit_of_threads_that_have_ended_is_given_back_and_that_of_others_is_not)
{
    enum { MANY = 50 };
    pthread_t threads[MANY];
    void *record;
    sg_thread_enter();
    sg_ledger_grant_credit(sg_self.record, 700);
    CHECK(pthread_barrier_init(&all_are_in, NULL, MANY) == 0);
    for (int i = 0; i < MANY; i++)
        CHECK(pthread_create(&threads[i], NULL, enter_together, NULL) == 0);
    for (int i = 0; i < MANY; i++) {
        CHECK(pthread_join(threads[i], &record) == 0);
        sg_ledger_grant_credit(record, 5000);
    }
    CHECK_EQUAL(sg_own->slot.granted_bytes, 700 + MANY * 5000);
    /* pthread_join may return a moment before the kernel counts the thread no more. */
    for (int i = 0; i < MANY || (sg_own->slot.granted_bytes != 700 && i < 5000); i++) {
        sg_thread_reap(4);
        (void)usleep(i < MANY ? 0 : 1000); /* poll: until it is reaped */
    }
    CHECK_EQUAL(sg_own->slot.granted_bytes, 700);
    CHECK_EQUAL(sg_self.record->credit_bytes, 700);
    CHECK(sg_self.record->tid != 0);
    for (uint32_t i = 0; i < sg_own->record_used; i++)
        CHECK(&sg_own->record[i] == sg_self.record || sg_own->record[i].tid == 0);
}

static struct sg_mark interrupted;
static bool is_gone_in_handler = true;

static void look_at_mark(int signal)
{
    (void)signal;
    is_gone_in_handler = sg_mark_is_gone(&interrupted, SG_FRAME_END());
}

static void *be_interrupted(void *above)
{
    stack_t stack = {.ss_sp = above, .ss_size = (size_t)1 << 20};
    struct sigaction action = {.sa_handler = look_at_mark, .sa_flags = SA_ONSTACK};
    interrupted = SG_MARK_HERE();
    CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
    return NULL;
}

static __attribute__((noinline)) void mark_a_small_frame(struct sg_mark *mark)
{
    *mark = SG_MARK_HERE();
}

static __attribute__((noinline)) bool is_gone_seen_from_a_large_frame(const struct sg_mark *mark)
{
    volatile char unwritten[4096];
    unwritten[0] = sg_mark_is_gone(mark, SG_FRAME_END());
    return unwritten[0] != 0;
}

/* The large frame has the small one's return address in it as it was: nothing is written there. */
CHILD_TEST(mark_of_a_call_that_was_left_is_gone_for_the_next_call_whatever_frame_that_has)
{
    struct sg_mark left;
    mark_a_small_frame(&left);
    CHECK(is_gone_seen_from_a_large_frame(&left));
}

CHILD_TEST(a_handler_on_a_stack_above_the_threads_own_does_not_take_its_call_for_left)
{
    const size_t half = (size_t)1 << 20;
    char *both = mmap(NULL, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(both != MAP_FAILED && pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstack(&attributes, both, half) == 0);
    CHECK(pthread_create(&thread, &attributes, be_interrupted, both + half) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(!is_gone_in_handler);
}

CHILD_TEST(record_of_a_process_that_shares_the_memory_stays_its_own_while_that_lives)
{
    int status;
    pid_t process = fork(); /* stands for one made by clone(CLONE_VM): a number that is in no thread of this process */
    if (process == 0) {
        alarm(60); /* where a check fails */
        pause();
        _exit(0);
    }
    sg_thread_enter();
    struct sg_record *others = &sg_own->record[2];
    others->tid = (uint32_t)process;
    sg_own->record_used = 3;
    sg_ledger_grant_credit(others, 5000);
    sg_thread_reap(4);
    CHECK_EQUAL(others->tid, process);
    CHECK_EQUAL(others->credit_bytes, 5000);
    CHECK(kill(process, SIGKILL) == 0);
    CHECK(waitpid(process, &status, 0) == process);
    sg_thread_reap(4);
    CHECK_EQUAL(others->tid, 0);
    CHECK_EQUAL(others->credit_bytes, 0);
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

enum { SIGNALS = 3000 };

static struct {
    int64_t sum;
    uint64_t count;
    int32_t signals;
    pthread_t target;
} stress;

static void update_in_handler(int number)
{
    (void)number;
    (void)sg_owner_add(&stress.sum, 3);
    sg_owner_count(&stress.count);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 5);
    sg_add_relaxed(&stress.signals, 1);
}

static void *send_signals(void *unused)
{
    while (sg_load(&stress.signals) < SIGNALS)
        if (pthread_kill(stress.target, SIGUSR1) != 0)
            break;
    return unused;
}

/* What a thread alone writes it writes without a lock: there a handler may come between any two instructions. */
CHILD_TEST(no_update_is_lost_to_a_signal_handler)
{
    pthread_t sender;
    uint64_t turns = 0;
    stress.target = pthread_self();
    CHECK(signal(SIGUSR1, update_in_handler) != SIG_ERR);
    CHECK(pthread_create(&sender, NULL, send_signals, NULL) == 0);
    for (; sg_load(&stress.signals) < SIGNALS; turns++) {
        (void)sg_owner_add(&stress.sum, 1000);
        (void)sg_owner_take_is_short(&stress.sum, 1000);
        (void)sg_owner_add_is_beyond(&stress.sum, 1, 0);
        sg_owner_count(&stress.count);
        sg_ledger_charge(SG_DOMAIN_MAPPED, 7);
        sg_ledger_release(SG_DOMAIN_MAPPED, 7);
    }
    CHECK(pthread_join(sender, NULL) == 0);
    CHECK_EQUAL(stress.sum, (int64_t)turns + 3 * stress.signals);
    CHECK_EQUAL(stress.count, turns + (uint64_t)stress.signals);
    CHECK_EQUAL(sg_ledger_live_bytes(), 5 * (uint64_t)stress.signals);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(charge_and_release),
        cmocka_unit_test(a_peak_that_begins_anew_begins_with_what_is_held),
        cmocka_unit_test(peaks_that_begin_anew_all_the_time_lose_no_charge),
        cmocka_unit_test(a_release_of_more_than_was_charged_ends_at_zero),
        cmocka_unit_test(what_is_promised_is_never_more_than_what_is_held),
        cmocka_unit_test(what_is_promised_beside_a_scan_stays_promised),
        cmocka_unit_test(shared_memory_is_promised_as_a_scan_finds_it),
        cmocka_unit_test(only_what_was_promised_before_an_observation_goes),
        cmocka_unit_test(allocations_and_frees_are_counted),
        cmocka_unit_test(the_peak_says_what_it_was_made_of),
        cmocka_unit_test(the_parts_of_a_peak_always_make_up_its_total),
        cmocka_unit_test(device_bytes_per_device_end_at_zero),
        cmocka_unit_test(what_is_device_memory_the_others_see),
        cmocka_unit_test(credit_is_granted_but_not_live),
        cmocka_unit_test(a_debt_is_paid_when_credit_is_returned),
        cmocka_unit_test(more_credit_than_granted_bytes_shows_nothing_live),
        cmocka_unit_test(own_bytes_are_what_exceeds_the_inherited),
        cmocka_unit_test(threads_never_see_more_than_the_peak_and_lose_nothing),
        cmocka_unit_test(live_is_exact_when_quiet_whatever_credit_is_held),
        cmocka_unit_test(no_update_is_lost_to_a_signal_handler),
        cmocka_unit_test(a_thread_that_ends_leaves_its_record_and_its_credit_to_the_next),
        cmocka_unit_test(every_thread_has_a_record_of_its_own),
        cmocka_unit_test(credit_of_threads_that_have_ended_is_given_back_and_that_of_others_is_not),
        cmocka_unit_test(a_handler_on_a_stack_above_the_threads_own_does_not_take_its_call_for_left),
        cmocka_unit_test(mark_of_a_call_that_was_left_is_gone_for_the_next_call_whatever_frame_that_has),
        cmocka_unit_test(record_of_a_process_that_shares_the_memory_stays_its_own_while_that_lives),
    };
    return cmocka_run_group_tests_name("ledger", tests, NULL, NULL);
}
