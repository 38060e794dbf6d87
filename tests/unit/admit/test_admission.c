/*
 * test_admission.c - the decision, exact to the byte over a fake /proc; and what becomes of a refusal.
 */
#include "fixture.h"
#include "admit/job_settings.h"

#include "shared/own_entry.h"

#include "../lib/call_filter.h"
#include "admit/admission.h"
#include "admit/check.h"
#include "base/atomics.h"
#include "account/tracker.h"
#include "account/ledger.h"
#include "base/options.h"
#include "admit/headroom.h"
#include "admit/refusal.h"
#include "shared/peers.h"
#include "shared/segment.h"
#include "account/thread_record.h"
#include "shared/decision_lock.h"

#include <inttypes.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>

/* ---- a machine of 64 GiB that keeps 1 GiB, floor 256 MiB --------------------------------------------------------- */

#define RESERVE GIB
#define FLOOR (256 * MIB)

static void put_available(uint64_t available)
{
    CHECK_EQUAL(available % KIB, 0);
    put_file("proc/meminfo", "MemTotal: %" PRIu64 " kB\nMemAvailable: %" PRIu64 " kB\n", 64 * GIB / KIB,
             available / KIB);
}

/* Lines for people go to the file "stderr" in the test's folder. */
static void begin(uint64_t available)
{
    fixture_say = fcntl(2, F_DUPFD_CLOEXEC, 100);
    int fd = open(in_folder("stderr"), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && dup2(fd, 2) == 2);
    strcpy(sg_options.system_root, fixture_folder);
    CHECK_EQUAL(sg_parse_size("1G", &sg_options.reserve), 0);
    put_available(available);
}

static const char *said(void)
{
    static char text[8192];
    ssize_t length = pread(2, text, sizeof text - 1, 0);
    CHECK(length >= 0);
    text[length] = '\0';
    return text;
}

static struct sg_request request_of(enum sg_domain domain, uint64_t bytes)
{
    return (struct sg_request){.domain = domain, .size_bytes = bytes, .growth_bytes = bytes, .wording.call = "call"};
}

/* Asks and, if it was admitted, lets the real call fail. */
static bool would_get(enum sg_domain domain, uint64_t bytes)
{
    struct sg_request request = request_of(domain, bytes);
    bool is_admitted = sg_admission_ask(&request);
    if (is_admitted)
        sg_admission_settle(&request, 0);
    return is_admitted;
}

/* What a snapshot showed serves small requests for 5 ms. */
static void let_the_look_age(void)
{
    uint64_t end = clock_ns() + 6000000;
    while (clock_ns() < end)
        ;
}

static const struct sg_refusal *last_refusal(void)
{
    CHECK(sg_own->refusal_count > 0);
    return &sg_own->refusal[(sg_own->refusal_count - 1) % SG_REFUSAL_CAPACITY];
}

/* ---- large requests ---------------------------------------------------------------------------------------------- */

/* As one thread's decision would find it that has looked already, whatever the others do. */
static bool would_fit_by_the_last_snapshot(enum sg_domain domain, uint64_t bytes)
{
    struct sg_request request = request_of(domain, bytes);
    struct sg_answer answer;
    return sg_check_constraints(&request, SG_HEADROOM_ALL, 0, &answer);
}

CHILD_TEST(what_lands_behind_a_look_is_gone_by_that_look)
{
    static const struct {
        enum sg_domain domain;
        uint64_t kept_bytes, left_bytes;
    } landing[] = {{SG_DOMAIN_DEVICE, 4 * GIB, 5 * GIB},
                   {SG_DOMAIN_PINNED, 4 * GIB, 5 * GIB},
                   {SG_DOMAIN_DEVICE, 0, 9 * GIB},        /* failed: there is as much as before */
                   {SG_DOMAIN_MAPPED, 4 * GIB, 5 * GIB}}; /* promised: not gone, but nobody else's */
    begin(10 * GIB);
    for (size_t i = 0; i < sizeof landing / sizeof landing[0]; i++) {
        struct sg_request request = request_of(landing[i].domain, 4 * GIB);
        CHECK(sg_admission_ask(&request));
        sg_headroom_refresh(0, false);
        CHECK(would_fit_by_the_last_snapshot(SG_DOMAIN_MAPPED, 5 * GIB));
        CHECK(!would_fit_by_the_last_snapshot(SG_DOMAIN_MAPPED, 5 * GIB + 1));
        if (landing[i].domain == SG_DOMAIN_MAPPED)
            sg_ledger_charge(SG_DOMAIN_MAPPED, landing[i].kept_bytes);
        sg_admission_settle(&request, landing[i].kept_bytes); /* the snapshot was before the driver's own taking */
        CHECK(would_fit_by_the_last_snapshot(SG_DOMAIN_MAPPED, landing[i].left_bytes));
        CHECK(!would_fit_by_the_last_snapshot(SG_DOMAIN_MAPPED, landing[i].left_bytes + 1));
        sg_headroom_refresh(0, false); /* from here on the machine's figure is believed */
        if (landing[i].domain != SG_DOMAIN_MAPPED)
            CHECK(would_fit_by_the_last_snapshot(SG_DOMAIN_MAPPED, 9 * GIB));
    }
}

CHILD_TEST(what_fits_exactly_is_admitted_and_a_byte_more_refused)
{
    begin(10 * GIB);
    CHECK(!would_get(SG_DOMAIN_HEAP, 9 * GIB + 1));
    CHECK(would_get(SG_DOMAIN_HEAP, 9 * GIB));
    CHECK(!would_get(SG_DOMAIN_DEVICE, 9 * GIB + 1));
    CHECK(would_get(SG_DOMAIN_DEVICE, 9 * GIB));
    CHECK_EQUAL(last_refusal()->reason, SG_REASON_RESERVE);
    CHECK_EQUAL(last_refusal()->usable_bytes, 10 * GIB);
    CHECK_EQUAL(last_refusal()->size_bytes, 9 * GIB + 1);
    CHECK_EQUAL(sg_own->slot.in_flight_bytes, 0);
}

CHILD_TEST(below_the_reserve_nothing_large_is_admitted)
{
    begin(RESERVE - MIB);
    CHECK(!would_get(SG_DOMAIN_HEAP, 1));
    put_available(0);
    CHECK(!would_get(SG_DOMAIN_DEVICE, 1));
}

CHILD_TEST(absurd_sizes_are_refused)
{
    begin(10 * GIB);
    CHECK(!would_get(SG_DOMAIN_DEVICE, UINT64_MAX));
    CHECK(!would_get(SG_DOMAIN_DEVICE, UINT64_C(1) << 63));
    CHECK_EQUAL(sg_parse_size("5G", &sg_options.limit), 0);
    CHECK(!would_get(SG_DOMAIN_DEVICE, UINT64_MAX));
    CHECK(!would_get(SG_DOMAIN_DEVICE, UINT64_MAX - GIB));
    CHECK(would_get(SG_DOMAIN_DEVICE, GIB));
}

CHILD_TEST(what_is_in_flight_is_gone_for_others)
{
    begin(10 * GIB);
    struct sg_request first = request_of(SG_DOMAIN_DEVICE, 4 * GIB);
    CHECK(sg_admission_ask(&first));
    CHECK_EQUAL(first.granted_bytes, 4 * GIB);
    CHECK_EQUAL(sg_own->slot.in_flight_bytes, 4 * GIB);
    struct sg_request second = request_of(SG_DOMAIN_HEAP, 5 * GIB);
    CHECK(sg_admission_ask(&second));
    CHECK_EQUAL(sg_own->slot.in_flight_bytes, 9 * GIB);
    CHECK(!would_get(SG_DOMAIN_HEAP, 9 * GIB + 1)); /* would not fit without them either: no use waiting */
    sg_admission_settle(&first, 0);
    CHECK_EQUAL(sg_own->slot.in_flight_bytes, 5 * GIB);
    CHECK(would_get(SG_DOMAIN_HEAP, 4 * GIB));
    sg_admission_settle(&second, 0);
    CHECK(would_get(SG_DOMAIN_HEAP, 9 * GIB));
}

/* A heap block that nobody has touched, as heap.c enters it. */
static void *enter_block(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK_EQUAL(sg_block_table_insert(&sg_tracker_blocks, (uintptr_t)memory, sg_block(bytes, SG_DOMAIN_HEAP, 0), NULL),
                0);
    sg_ledger_charge(SG_DOMAIN_HEAP, bytes);
    return memory;
}

static void leave_block(void *memory, uint64_t bytes)
{
    CHECK(sg_block_table_remove(&sg_tracker_blocks, (uintptr_t)memory) != 0);
    sg_ledger_release(SG_DOMAIN_HEAP, bytes);
    CHECK(munmap(memory, bytes) == 0);
}

CHILD_TEST(what_is_promised_is_gone_until_it_is_given_back)
{
    begin(RESERVE + 512 * MIB);
    struct sg_request request = request_of(SG_DOMAIN_HEAP, 200 * MIB);
    CHECK(sg_admission_ask(&request));
    void *memory = enter_block(200 * MIB);
    sg_admission_settle(&request, 200 * MIB);
    CHECK_EQUAL(sg_own->slot.promised_bytes, 200 * MIB);
    CHECK_EQUAL(sg_own->slot.live_bytes, 200 * MIB);
    CHECK(!would_get(SG_DOMAIN_DEVICE, 312 * MIB + 1));
    CHECK_EQUAL(last_refusal()->usable_bytes, RESERVE + 312 * MIB);
    CHECK(would_get(SG_DOMAIN_DEVICE, 312 * MIB));
    leave_block(memory, 200 * MIB);
    CHECK(would_get(SG_DOMAIN_DEVICE, 512 * MIB)); /* a scan before the refusal finds it gone */
}

CHILD_TEST(only_memory_that_comes_later_is_promised)
{
    begin(10 * GIB);
    for (int domain = 0; domain < SG_DOMAIN_COUNT; domain++) {
        struct sg_request request = request_of((enum sg_domain)domain, GIB);
        CHECK(sg_admission_ask(&request));
        sg_own->slot.promised_bytes = 0;
        sg_admission_settle(&request, GIB);
        bool is_lazy = domain == SG_DOMAIN_HEAP || domain == SG_DOMAIN_MAPPED || domain == SG_DOMAIN_MANAGED;
        CHECK_EQUAL(sg_own->slot.promised_bytes, is_lazy ? GIB : 0);
        CHECK_EQUAL(sg_own->slot.in_flight_bytes, 0);
    }
}

/* ---- two at once ------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 200 };
static pthread_barrier_t barrier;
static uint32_t round_winners;

static void *ask_for_60_mib(void *unused)
{
    (void)unused;
    for (int round = 0; round < ROUNDS; round++) {
        (void)pthread_barrier_wait(&barrier);
        struct sg_request request = request_of(SG_DOMAIN_HEAP, 60 * MIB);
        void *memory = NULL;
        if (sg_admission_ask(&request)) {
            memory = enter_block(60 * MIB);
            sg_admission_settle(&request, 60 * MIB);
            sg_fetch_add(&round_winners, 1u);
        }
        (void)pthread_barrier_wait(&barrier); /* the main thread counts */
        (void)pthread_barrier_wait(&barrier);
        if (memory != NULL)
            leave_block(memory, 60 * MIB);
    }
    return NULL;
}

CHILD_TEST(of_two_that_ask_at_once_exactly_one_gets_what_fits_once)
{
    pthread_t threads[2];
    begin(RESERVE + 100 * MIB);
    CHECK(pthread_barrier_init(&barrier, NULL, 3) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, ask_for_60_mib, NULL) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        sg_store(&round_winners, 0u);
        (void)pthread_barrier_wait(&barrier);
        (void)pthread_barrier_wait(&barrier);
        CHECK_EQUAL(sg_load(&round_winners), 1);
        (void)pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_EQUAL(sg_own->refusal_count, ROUNDS);
}

struct asker {
    pthread_t thread;
    struct sg_request request;
    int tid;
    uint32_t is_done;
    bool is_admitted;
};

static void *ask(void *context)
{
    struct asker *asker = context;
    sg_store(&asker->tid, (int)gettid());
    asker->is_admitted = sg_admission_ask(&asker->request);
    sg_store(&asker->is_done, 1u);
    return NULL;
}

/* Lets a thread ask and returns when it sleeps, or has its answer. */
static void ask_in_thread(struct asker *asker)
{
    CHECK(pthread_create(&asker->thread, NULL, ask, asker) == 0);
    int tid = 0;
    while ((tid = sg_load(&asker->tid)) == 0 || (!sg_load(&asker->is_done) && thread_state(tid) != 'S'))
        (void)usleep(100); /* poll: until it sleeps or is done */
}

static bool answer_of(struct asker *asker)
{
    CHECK(pthread_join(asker->thread, NULL) == 0);
    return asker->is_admitted;
}

CHILD_TEST(who_is_refused_by_requests_in_flight_only_waits_for_them)
{
    begin(10 * GIB);
    struct sg_request first = request_of(SG_DOMAIN_DEVICE, 6 * GIB);
    struct asker second = {.request = request_of(SG_DOMAIN_DEVICE, 7 * GIB)};
    CHECK(sg_admission_ask(&first));
    ask_in_thread(&second);
    CHECK(!sg_load(&second.is_done));
    sg_admission_settle(&first, 0);
    CHECK(answer_of(&second));
    CHECK_EQUAL(sg_own->refusal_count, 0);
}

CHILD_TEST(who_waits_is_refused_when_the_others_keep_it)
{
    begin(RESERVE + 100 * MIB);
    struct sg_request first = request_of(SG_DOMAIN_HEAP, 60 * MIB);
    struct asker second = {.request = request_of(SG_DOMAIN_HEAP, 60 * MIB)};
    CHECK(sg_admission_ask(&first));
    ask_in_thread(&second);
    (void)enter_block(60 * MIB);
    sg_admission_settle(&first, 60 * MIB);
    CHECK(!answer_of(&second));
    CHECK(last_refusal()->usable_bytes <=
          RESERVE + 40 * MIB); /* less, if it looked when the block was there and in flight */
}

/* How often a request sleeps at most that waits for so long: for 1, 2, 4, 8, 16 and 32 ms, and then for 50
 * (admit/wait.c). A few sleeps are of other kinds. */
#define STEPS_OF_MS(milliseconds) (6 + ((milliseconds)-63) / 50 + 1 + 10)

static uint64_t sleeps(void)
{
    struct rusage usage;
    CHECK(getrusage(RUSAGE_THREAD, &usage) == 0);
    return (uint64_t)usage.ru_nvcsw;
}

CHILD_TEST(waiting_for_requests_in_flight_ends_after_three_seconds)
{
    begin(10 * GIB);
    struct sg_request first = request_of(SG_DOMAIN_DEVICE, 6 * GIB);
    CHECK(sg_admission_ask(&first));
    uint64_t start = clock_ns(), slept = sleeps();
    CHECK(!would_get(SG_DOMAIN_DEVICE, 7 * GIB));
    CHECK(clock_ns() - start >= 2900000000);
    CHECK(sleeps() - slept <= STEPS_OF_MS(3000)); /* a busy machine makes them no more */
}

CHILD_TEST(the_wait_option_waits_for_room)
{
    begin(2 * GIB);
    sg_options.wait_ns = UINT64_C(60000000000);
    struct asker asker = {.request = request_of(SG_DOMAIN_DEVICE, 7 * GIB)};
    ask_in_thread(&asker);
    CHECK(!sg_load(&asker.is_done));
    put_available(10 * GIB);
    CHECK(answer_of(&asker));
}

CHILD_TEST(the_wait_option_ends)
{
    begin(2 * GIB);
    sg_options.wait_ns = 120000000;
    uint64_t start = clock_ns(), slept = sleeps();
    CHECK(!would_get(SG_DOMAIN_DEVICE, 7 * GIB));
    CHECK(clock_ns() - start >= 120000000);
    CHECK(sleeps() - slept <= STEPS_OF_MS(120));
}

/* ---- a cached snapshot ------------------------------------------------------------------------------------------- */

static bool ask_small(uint64_t bytes)
{
    const struct sg_request request = {.domain = SG_DOMAIN_MAPPED, .growth_bytes = bytes};
    bool is_admitted = sg_admission_ask_small(SG_DOMAIN_MAPPED, bytes, "mmap");
    if (is_admitted)
        sg_admission_settle_small(&request, bytes);
    return is_admitted;
}

CHILD_TEST(a_cached_snapshot_serves_small_requests_and_an_old_one_none)
{
    begin(10 * GIB);
    for (int attempt = 0; attempt < 1000; attempt++) {
        put_available(10 * GIB);
        let_the_look_age();
        uint64_t before_look = clock_ns();
        CHECK(ask_small(4096));
        CHECK_EQUAL(sg_own->machine.available_bytes, 10 * GIB);
        put_available(5 * GIB);
        CHECK(ask_small(4096));
        if (clock_ns() - before_look >= 5000000)
            continue; /* it was old by now: try again */
        CHECK_EQUAL(sg_own->machine.available_bytes, 10 * GIB);
        let_the_look_age();
        CHECK(ask_small(4096));
        CHECK_EQUAL(sg_own->machine.available_bytes, 5 * GIB);
        return;
    }
    SKIP("this machine is too slow for a snapshot of 5 ms");
}

CHILD_TEST(a_look_is_never_spent_twice)
{
    begin(RESERVE + 64 * MIB);
    CHECK(ask_small(4096));
    int64_t slack = sg_headroom_slack(SG_HEADROOM_RESERVE);
    uint64_t taken = 0;
    while (sg_headroom_may_take(SG_HEADROOM_RESERVE, MIB) && sg_headroom_take(SG_HEADROOM_RESERVE, MIB))
        taken += MIB;
    CHECK((int64_t)taken <= slack);
    CHECK_EQUAL(sg_headroom_slack(SG_HEADROOM_RESERVE), slack - (int64_t)taken);
}

CHILD_TEST(a_request_large_beside_the_slack_takes_a_new_snapshot)
{
    begin(RESERVE + 64 * MIB);
    CHECK(ask_small(4096));
    put_available(10 * GIB);
    CHECK(would_get(SG_DOMAIN_HEAP, 60 * MIB));
    CHECK_EQUAL(sg_own->machine.available_bytes, 10 * GIB);
}

/* ---- grades ------------------------------------------------------------------------------------------------------ */

CHILD_TEST(between_reserve_and_floor_small_requests_pass)
{
    begin(FLOOR + 500 * MIB);
    sg_ledger_charge(SG_DOMAIN_MAPPED, GIB); /* no shell */
    CHECK(!would_get(SG_DOMAIN_MAPPED, 2 * MIB));
    for (int i = 0; i < 100; i++) {
        CHECK(ask_small(MIB));
        sg_ledger_charge(SG_DOMAIN_MAPPED, MIB);
    }
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_MAPPED].refused_count, 1);
}

CHILD_TEST(below_the_floor_small_requests_pass_for_32_mib)
{
    begin(FLOOR - MIB);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 64 * MIB);
    int passed = 0;
    while (passed < 100 && ask_small(MIB)) {
        sg_ledger_charge(SG_DOMAIN_MAPPED, MIB);
        passed++;
    }
    CHECK_EQUAL(passed, 32);
    CHECK_EQUAL(last_refusal()->reason, SG_REASON_FLOOR);
    CHECK(!would_get(SG_DOMAIN_MAPPED, 2 * MIB));
    sg_ledger_release(SG_DOMAIN_MAPPED, 2 * MIB); /* net: what is given back may be taken again */
    CHECK(ask_small(2 * MIB));
    CHECK_TEXT(strstr(said(), "refused mmap") == NULL ? "" : said(), ""); /* nobody is told of small ones */
}

CHILD_TEST(the_grace_begins_anew_when_the_floor_was_left)
{
    begin(FLOOR - MIB);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 64 * MIB);
    CHECK(ask_small(32 * MIB));
    sg_ledger_charge(SG_DOMAIN_MAPPED, 32 * MIB);
    CHECK(!ask_small(MIB));
    put_available(10 * GIB);
    let_the_look_age();
    sg_own->slot.promised_bytes = 0;
    CHECK(ask_small(MIB));
    put_available(FLOOR - MIB);
    let_the_look_age();
    CHECK(ask_small(MIB));
}

/* Another thread's request is in flight for longer than anybody waits for it. */
CHILD_TEST(a_small_request_that_waited_in_vain_is_refused_with_its_reason)
{
    begin(FLOOR + 512 * MIB);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 64 * MIB);
    sg_entry_flight_add(SG_SOURCE_BOUNDED, 600 * MIB);
    CHECK(ask_small(32 * MIB));
    sg_ledger_charge(SG_DOMAIN_MAPPED, 32 * MIB);
    CHECK(!ask_small(MIB));
    CHECK_EQUAL(last_refusal()->reason, SG_REASON_FLOOR);
}

CHILD_TEST(a_shell_may_always_take_small_pieces)
{
    begin(0);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 10 * MIB);
    for (int i = 0; i < 53; i++) {
        CHECK(ask_small(MIB));
        sg_ledger_charge(SG_DOMAIN_MAPPED, MIB);
    }
    CHECK_EQUAL(sg_own->slot.granted_bytes, 63 * MIB);
    CHECK(!would_get(SG_DOMAIN_MAPPED, MIB));
}

/* ---- LIMIT ------------------------------------------------------------------------------------------------------- */

CHILD_TEST(the_limit_is_exact_for_large_requests)
{
    begin(10 * GIB);
    CHECK_EQUAL(sg_parse_size("100M", &sg_options.limit), 0);
    CHECK(would_get(SG_DOMAIN_DEVICE, 100 * MIB));
    CHECK(!would_get(SG_DOMAIN_DEVICE, 100 * MIB + 1));
    CHECK_EQUAL(last_refusal()->reason, SG_REASON_LIMIT);
    CHECK_EQUAL(last_refusal()->usable_bytes, 100 * MIB);
    CHECK_EQUAL(sg_own->slot.limit_bytes, 100 * MIB);
    sg_ledger_charge(SG_DOMAIN_PINNED, 60 * MIB);
    CHECK(would_get(SG_DOMAIN_HEAP, 40 * MIB));
    CHECK(!would_get(SG_DOMAIN_HEAP, 40 * MIB + 1));
}

CHILD_TEST(the_limit_takes_what_a_request_grows_by)
{
    begin(10 * GIB);
    CHECK_EQUAL(sg_parse_size("100M", &sg_options.limit), 0);
    sg_ledger_charge(SG_DOMAIN_HEAP, 80 * MIB);
    struct sg_request grow = request_of(SG_DOMAIN_HEAP, 100 * MIB);
    grow.growth_bytes = 20 * MIB;
    CHECK(sg_admission_ask(&grow));
}

CHILD_TEST(what_was_inherited_is_not_held_against_the_limit)
{
    begin(10 * GIB);
    CHECK_EQUAL(sg_parse_size("100M", &sg_options.limit), 0);
    sg_ledger_charge(SG_DOMAIN_HEAP, 500 * MIB);
    sg_own->slot.inherited_bytes = 500 * MIB;
    CHECK(would_get(SG_DOMAIN_DEVICE, 100 * MIB));
    CHECK(!would_get(SG_DOMAIN_DEVICE, 100 * MIB + 1));
}

CHILD_TEST(a_limit_in_percent_is_of_what_may_be_used_at_all)
{
    begin(60 * GIB);
    CHECK_EQUAL(sg_parse_size("50%", &sg_options.limit), 0);
    CHECK(!would_get(SG_DOMAIN_DEVICE, 63 * GIB / 2 + 1));
    CHECK_EQUAL(sg_own->slot.limit_bytes, 63 * GIB / 2); /* of MemTotal less the reserve */
    CHECK(would_get(SG_DOMAIN_DEVICE, 63 * GIB / 2));
}

CHILD_TEST(small_requests_may_pass_the_limit_by_32_mib)
{
    begin(10 * GIB);
    CHECK_EQUAL(sg_parse_size("100M", &sg_options.limit), 0);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 100 * MIB);
    int passed = 0;
    while (passed < 100 && ask_small(MIB)) {
        sg_ledger_charge(SG_DOMAIN_MAPPED, MIB);
        passed++;
    }
    CHECK_EQUAL(passed, 32);
    CHECK_EQUAL(last_refusal()->reason, SG_REASON_LIMIT);
}

/* A snapshot serves requests for 5 ms. The rounds are so many that some of them end sooner, on a busy machine too. */
CHILD_TEST(a_limit_or_reserve_that_is_set_counts_at_the_next_request)
{
    begin(10 * GIB);
    for (int round = 0; round < 100; round++) {
        set_for_job(0, 0);
        CHECK(would_get(SG_DOMAIN_MAPPED, 100 * MIB));
        set_for_job(round % 2 == 0 ? 50 * MIB : 0, round % 2 == 0 ? 0 : 10 * GIB);
        CHECK(!would_get(SG_DOMAIN_MAPPED, 100 * MIB));
    }
}

CHILD_TEST(a_request_in_flight_counts_against_the_limit)
{
    begin(10 * GIB);
    CHECK_EQUAL(sg_parse_size("100M", &sg_options.limit), 0);
    struct sg_request first = request_of(SG_DOMAIN_DEVICE, 60 * MIB);
    struct asker second = {.request = request_of(SG_DOMAIN_DEVICE, 50 * MIB)};
    CHECK(sg_admission_ask(&first));
    ask_in_thread(&second);
    sg_ledger_charge(SG_DOMAIN_DEVICE, 60 * MIB);
    sg_admission_settle(&first, 60 * MIB);
    CHECK(!answer_of(&second));
    CHECK_EQUAL(last_refusal()->reason, SG_REASON_LIMIT);
}

/* ---- what bounds which domain ------------------------------------------------------------------------------------ */

static void put_cgroup(uint64_t limit, uint64_t used)
{
    put_file("proc/self/cgroup", "0::/job\n");
    put_file("sys/fs/cgroup/job/memory.max", "%" PRIu64 "\n", limit);
    put_file("sys/fs/cgroup/job/memory.current", "%" PRIu64 "\n", used);
}

CHILD_TEST(what_the_machine_has_is_no_limit_of_a_cgroup)
{
    begin(60 * GIB);
    CHECK(would_get(SG_DOMAIN_DEVICE, GIB));
    CHECK_EQUAL(sg_own->machine.total_bytes, 64 * GIB);
    CHECK(sg_own->machine.cgroup_limit_bytes == SG_UNKNOWN);
}

CHILD_TEST(a_cgroup_bounds_host_memory_but_not_device_memory)
{
    begin(60 * GIB);
    put_cgroup(8 * GIB, 2 * GIB); /* keeps 1 GiB of its own */
    for (int domain = 0; domain < SG_DOMAIN_COUNT; domain++) {
        bool is_bounded = domain != SG_DOMAIN_DEVICE;
        CHECK(would_get((enum sg_domain)domain, 5 * GIB));
        CHECK_EQUAL(would_get((enum sg_domain)domain, 5 * GIB + 1), !is_bounded);
    }
    CHECK_EQUAL(last_refusal()->usable_bytes, 6 * GIB);
    CHECK(strstr(said(), "in a cgroup of 8.0 GiB") != NULL);
    CHECK_EQUAL(sg_own->machine.cgroup_limit_bytes, 8 * GIB);
    CHECK_EQUAL(sg_own->machine.usable_bytes, 6 * GIB);
    CHECK_EQUAL(sg_own->machine.total_bytes, 64 * GIB);
}

CHILD_TEST(usable_is_what_the_tightest_constraint_leaves)
{
    begin(5 * GIB);
    put_cgroup(32 * GIB, 0);
    CHECK(would_get(SG_DOMAIN_HEAP, GIB));
    CHECK_EQUAL(sg_own->machine.usable_bytes, 5 * GIB);
    CHECK_EQUAL(sg_own->machine.floor_bytes, FLOOR);
    CHECK(would_get(SG_DOMAIN_HEAP, 4 * GIB));
    CHECK(!would_get(SG_DOMAIN_HEAP, 4 * GIB + 1));
}

CHILD_TEST(cma_is_there_for_the_host_but_not_for_cuda)
{
    begin(0);
    put_file("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 10485760 kB\nCmaFree: 1048576 kB\n");
    CHECK(would_get(SG_DOMAIN_HEAP, 9 * GIB));
    CHECK(!would_get(SG_DOMAIN_DEVICE, 8 * GIB + 1));
    CHECK(would_get(SG_DOMAIN_DEVICE, 8 * GIB));
    CHECK(!would_get(SG_DOMAIN_PINNED, 8 * GIB + 1));
    put_file("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 2097152 kB\nCmaFree: 1048576 kB\n");
    let_the_look_age();
    CHECK(would_get(SG_DOMAIN_HEAP, 200 * MIB)); /* refreshes */
    CHECK(!would_get(SG_DOMAIN_DEVICE, MIB));    /* nor out of the slack of a cached snapshot */
}

/* A request of a card of 100 GiB whose driver has just said what is free. */
static struct sg_request card_request(uint64_t bytes, uint64_t free_bytes)
{
    struct sg_request request = request_of(SG_DOMAIN_DEVICE, bytes);
    request.card.identity = 4711;
    request.card.total_bytes = 100 * GIB;
    request.card.free_bytes = free_bytes;
    request.card.epoch = sg_peers_epoch();
    return request;
}

static bool card_would_give(uint64_t bytes, uint64_t free_bytes)
{
    struct sg_request request = card_request(bytes, free_bytes);
    bool is_admitted = sg_admission_ask(&request);
    CHECK(!request.attempt.must_look_again);
    if (is_admitted)
        sg_admission_settle(&request, 0);
    return is_admitted;
}

CHILD_TEST(a_discrete_card_is_judged_by_its_own_figures)
{
    begin(0);                                  /* the machine has nothing: of no interest */
    CHECK(card_would_give(8 * GIB, 10 * GIB)); /* 2 % stay */
    CHECK(!card_would_give(8 * GIB + 1, 10 * GIB));
    CHECK_EQUAL(last_refusal()->reason, SG_REASON_DEVICE);
    CHECK_EQUAL(last_refusal()->usable_bytes, 10 * GIB);
    CHECK_EQUAL(sg_parse_size("1G", &sg_options.device_reserve), 0);
    CHECK(card_would_give(8 * GIB + 1, 10 * GIB));
    CHECK(!card_would_give(1, GIB));
    CHECK(!card_would_give(1, 0));
}

CHILD_TEST(an_outdated_word_of_the_driver_is_asked_for_again)
{
    begin(10 * GIB);
    struct sg_request first = card_request(GIB, 10 * GIB), second = card_request(GIB, 10 * GIB);
    CHECK(sg_admission_ask(&first));
    sg_admission_settle(&first, GIB); /* what the driver said before that does not know of it */
    CHECK(!sg_admission_ask(&second));
    CHECK(second.attempt.must_look_again);
    CHECK_EQUAL(sg_own->refusal_count, 0);
    second.card.epoch = sg_peers_epoch();
    CHECK(sg_admission_ask(&second) && !second.attempt.must_look_again);
}

CHILD_TEST(who_waits_for_a_card_asks_the_driver_again)
{
    begin(10 * GIB);
    struct sg_request first = card_request(5 * GIB, 10 * GIB);
    CHECK(sg_admission_ask(&first));
    struct asker second = {.request = card_request(5 * GIB, 10 * GIB)};
    ask_in_thread(&second);
    sg_admission_settle(&first, 0);
    CHECK(!answer_of(&second));
    CHECK(second.request.attempt.must_look_again);
    CHECK_EQUAL(sg_own->refusal_count, 0);
    CHECK_EQUAL(sg_own->slot.in_flight_bytes, 0);
}

CHILD_TEST(device_memory_that_meminfo_never_shows_stays_subtracted)
{
    begin(10 * GIB);
    sg_options.unified = SG_UNIFIED_ON;
    sg_headroom_set_unified(0, true);
    CHECK_EQUAL(sg_headroom_unified(), 1);
    sg_ledger_charge(SG_DOMAIN_DEVICE, 4 * GIB);
    CHECK(!would_get(SG_DOMAIN_HEAP, 5 * GIB + 1));
    CHECK(would_get(SG_DOMAIN_HEAP, 5 * GIB));
}

/* ---- observe, and no snapshot
 * ---------------------------------------------------------------------------------------- */

CHILD_TEST(a_refusal_of_up_to_large_is_recorded_and_not_said)
{
    begin(RESERVE);
    CHECK(!would_get(SG_DOMAIN_DEVICE, sg_options.large_bytes - 1));
    CHECK_EQUAL(last_refusal()->size_bytes, sg_options.large_bytes - 1);
    CHECK(strcmp(said(), "") == 0);
    CHECK(!would_get(SG_DOMAIN_DEVICE, sg_options.large_bytes));
    CHECK_EQUAL(sg_own->refusal_count, 2);
    CHECK(strstr(said(), "refused call of 2.0 MiB") != NULL);
}

CHILD_TEST(observe_refuses_nothing_and_records_it)
{
    begin(2 * GIB);
    sg_options.mode_observe = 1;
    struct sg_request request = request_of(SG_DOMAIN_DEVICE, 5 * GIB);
    CHECK(sg_admission_ask(&request));
    CHECK_EQUAL(request.granted_bytes, 5 * GIB);
    CHECK_EQUAL(sg_own->slot.in_flight_bytes, 5 * GIB);
    sg_admission_settle(&request, 5 * GIB);
    CHECK_EQUAL(sg_own->slot.in_flight_bytes, 0);
    CHECK_EQUAL(last_refusal()->observed, 1);
    CHECK(strstr(said(), "would have refused call of 5.0 GiB") != NULL);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 64 * MIB);
    put_available(0);
    let_the_look_age();
    CHECK(ask_small(33 * MIB));
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_MAPPED].refused_count, 1);
}

CHILD_TEST(observing_what_only_had_to_wait_is_no_refusal)
{
    begin(10 * GIB);
    sg_options.mode_observe = 1;
    struct sg_request first = request_of(SG_DOMAIN_DEVICE, 6 * GIB), second = request_of(SG_DOMAIN_DEVICE, 7 * GIB);
    CHECK(sg_admission_ask(&first));
    CHECK(sg_admission_ask(&second));
    CHECK_EQUAL(sg_own->refusal_count, 0);
    CHECK_EQUAL(strlen(said()), 0);
    sg_admission_settle(&first, 0);
    sg_admission_settle(&second, 0);
    CHECK_EQUAL(sg_own->slot.in_flight_bytes, 0);
}

/* Makes sysinfo(2) fail, as a container's filter may. */
static bool deny_sysinfo(void)
{
    struct sysinfo info;
    return filter_call(SYS_sysinfo, SECCOMP_RET_ERRNO | EPERM) && sysinfo(&info) != 0;
}

CHILD_TEST(without_a_look_everything_passes_and_the_report_says_so)
{
    begin(2 * GIB);
    strcpy(sg_options.dir, in_folder("dir"));
    sg_segment_attach();
    CHECK(unlink(in_folder("proc/meminfo")) == 0);
    if (!deny_sysinfo())
        SKIP("no seccomp here (qemu-user)");
    CHECK(would_get(SG_DOMAIN_DEVICE, 100 * GIB));
    CHECK((sg_own->slot.flags & SG_SLOT_GUARDING) == 0);
    CHECK_EQUAL(sg_own->event_count, 1);
    CHECK(strncmp(sg_own->event[0].what, "not guarding", 12) == 0);
    CHECK(ask_small(MIB));
    CHECK_EQUAL(sg_own->event_count, 1);
    put_available(2 * GIB);
    CHECK(!would_get(SG_DOMAIN_DEVICE, 100 * GIB));
    CHECK((sg_own->slot.flags & SG_SLOT_GUARDING) != 0);
    CHECK_EQUAL(sg_own->event_count, 2);
}

/* Small mappings are judged before there is a segment. */
CHILD_TEST(guarding_from_the_first_look_on_is_no_event)
{
    begin(2 * GIB);
    strcpy(sg_options.dir, in_folder("dir"));
    for (int process = 0; process < 2; process++) {
        CHECK(ask_small(64 * KIB));
        CHECK((sg_own->slot.flags & SG_SLOT_GUARDING) != 0);
        sg_segment_attach();
        let_the_look_age();
        CHECK(ask_small(64 * KIB));
        CHECK_EQUAL(sg_own->event_count, 0);
        CHECK(sg_segment_atfork_child());
        sg_admission_atfork_child();
    }
}

CHILD_TEST(who_was_blind_before_there_is_a_segment_tells_so_once)
{
    begin(2 * GIB);
    CHECK(unlink(in_folder("proc/meminfo")) == 0);
    if (!deny_sysinfo())
        SKIP("no seccomp here (qemu-user)");
    CHECK(ask_small(64 * KIB));
    strcpy(sg_options.dir, in_folder("dir"));
    sg_segment_attach();
    CHECK(would_get(SG_DOMAIN_DEVICE, 100 * GIB));
    CHECK((sg_own->slot.flags & SG_SLOT_GUARDING) == 0);
    CHECK_EQUAL(sg_own->event_count, 1);
    CHECK(strncmp(sg_own->event[0].what, "not guarding", 12) == 0);
}

/* ---- credit ------------------------------------------------------------------------------------------------------ */

CHILD_TEST(a_thread_pays_from_credit_without_a_look)
{
    begin(10 * GIB);
    CHECK(sg_admission_take_credit(1000, "malloc"));
    CHECK_EQUAL(sg_self.record->credit_bytes, SG_CREDIT_MAX);
    CHECK_EQUAL(sg_own->machine.time_ns, 0);
    (void)sg_owner_add(&sg_self.record->credit_bytes, -SG_CREDIT_MAX); /* used up */
    CHECK(sg_admission_take_credit(1000, "malloc"));
    CHECK_EQUAL(sg_self.record->credit_bytes, 1000 + SG_CREDIT_REFILL);
    CHECK(sg_own->machine.time_ns != 0);
    CHECK_EQUAL(sg_ledger_live_bytes(), SG_CREDIT_MAX);
}

CHILD_TEST(a_debt_is_refilled_too)
{
    begin(10 * GIB);
    CHECK(sg_admission_take_credit(1, "malloc"));
    (void)sg_owner_add(&sg_self.record->credit_bytes, -SG_CREDIT_MAX - 5000);
    CHECK(sg_admission_take_credit(1000, "malloc"));
    CHECK_EQUAL(sg_self.record->credit_bytes, 1000 + SG_CREDIT_REFILL);
}

CHILD_TEST(near_the_end_of_the_grace_a_thread_gets_what_it_needs_and_no_more)
{
    begin(0);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 64 * MIB);
    CHECK(sg_admission_take_credit(1, "malloc"));
    (void)sg_owner_add(&sg_self.record->credit_bytes, -SG_CREDIT_MAX);
    struct sg_request large = {.domain = SG_DOMAIN_MAPPED, .size_bytes = GIB, .growth_bytes = GIB};
    uint64_t taken = 0;
    sg_admission_fly(&large, GIB);
    while (taken < 100 * MIB && sg_admission_take_credit(64 * KIB, "malloc")) {
        (void)sg_owner_add(&sg_self.record->credit_bytes, -(int64_t)(64 * KIB));
        taken += 64 * KIB;
    }
    CHECK_EQUAL(taken, 32 * MIB);
    CHECK_EQUAL(sg_entry_own_flight(true), GIB); /* another request's bytes stay in flight */
    CHECK_EQUAL(sg_self.record->credit_bytes, 0);
    CHECK(sg_own->domain[SG_DOMAIN_HEAP].refused_count >= 1);
}

CHILD_TEST(a_call_of_cuda_that_is_left_leaves_nothing_in_flight)
{
    begin(8 * GIB);
    struct sg_request of_cuda[] = {
        {.domain = SG_DOMAIN_DEVICE, .size_bytes = GIB, .growth_bytes = GIB, .wording.call = "call"},
        {.domain = SG_DOMAIN_MAPPED, .size_bytes = GIB, .wording.call = "call", .registers = true},
    };
    for (unsigned i = 0; i < sizeof of_cuda / sizeof of_cuda[0]; i++) {
        CHECK(sg_admission_ask(&of_cuda[i]));
        CHECK_EQUAL(sg_entry_own_flight(false), GIB);
        sg_admission_abandon();
        CHECK_EQUAL(sg_entry_own_flight(false), 0);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static int count_lines(const char *text)
{
    int lines = 0;
    for (; *text != '\0'; text++)
        lines += *text == '\n';
    return lines;
}

/* The lines as they are where no process of this machine holds much: the test has not started it. */
static const char *without_holder(const char *lines)
{
    static const char other[] = "end or shrink another program; largest other: ", none[] = "a smaller request";
    static char text[1024];
    snprintf(text, sizeof text, "%s", lines);
    char *holder = strstr(text, other), *rest = holder != NULL ? strchr(holder + sizeof other, ';') : NULL;
    if (rest != NULL) {
        memmove(holder + sizeof none - 1, rest, strlen(rest) + 1);
        memcpy(holder, none, sizeof none - 1);
    }
    return text;
}

CHILD_TEST(a_refusal_is_counted_recorded_and_said_once_a_second)
{
    begin(10 * GIB);
    sg_ledger_charge(SG_DOMAIN_DEVICE, 3 * GIB);
    uint64_t start = clock_ns();
    for (int i = 0; i < 20; i++)
        CHECK(!would_get(SG_DOMAIN_DEVICE, 12 * GIB));
    bool is_within_a_second = clock_ns() - start < 1000000000;
    CHECK_EQUAL(sg_own->refusal_count, 20);
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_DEVICE].refused_count, 20);
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_DEVICE].refused_bytes, 240 * GIB);
    CHECK_TEXT(last_refusal()->call, "call");
    CHECK_EQUAL(last_refusal()->domain, SG_DOMAIN_DEVICE);
    CHECK_EQUAL(last_refusal()->observed, 0);
    if (is_within_a_second)
        CHECK_TEXT(without_holder(said()),
                   "sparkguard: refused call of 12.0 GiB: 10.0 GiB usable, 1.0 GiB kept in reserve "
                   "(SPARKGUARD_RESERVE); this process holds 3.0 GiB, peak 3.0 GiB\n"
                   "try: a smaller request; 3.0 GiB more of the machine's memory would have been enough for this "
                   "request\n");
}

CHILD_TEST(the_last_line_tells_how_many_more_were_refused_in_which_time)
{
    uint64_t then_ns = clock_ns() - 125 * UINT64_C(1000000000);
    unsigned long minutes = 0, seconds = 0;
    begin(10 * GIB);
    sg_own->domain[SG_DOMAIN_DEVICE].refused_count = 36838;
    sg_refusal_last.reported_ns = then_ns;
    sg_refusal_report_rest();
    CHECK_EQUAL(sscanf(said(), "sparkguard: and 36,838 more refused in %lu min %lu s", &minutes, &seconds), 2);
    CHECK(minutes * 60 + seconds >= 125 && minutes * 60 + seconds <= (clock_ns() - then_ns) / 1000000000);
    CHECK(seconds < 60);
}

CHILD_TEST(small_refusals_are_all_counted_but_recorded_once_a_second)
{
    begin(0);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 64 * MIB);
    uint64_t start = clock_ns();
    for (int i = 0; i < 20; i++)
        CHECK(!ask_small(33 * MIB));
    bool is_within_a_second = clock_ns() - start < 1000000000;
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_MAPPED].refused_count, 20);
    CHECK(!is_within_a_second || sg_own->refusal_count == 1);
    CHECK_EQUAL(count_lines(said()), 0);
}

CHILD_TEST(a_forked_child_decides_anew)
{
    begin(10 * GIB);
    CHECK(would_get(SG_DOMAIN_HEAP, GIB));
    struct sg_lock_state state;
    sg_lock_acquire(&sg_decision_lock, &state); /* somebody in the parent held it */
    sg_admission_atfork_child();
    put_available(2 * GIB);
    CHECK(!would_get(SG_DOMAIN_HEAP, 100 * MIB + GIB));
    CHECK(would_get(SG_DOMAIN_HEAP, MIB));
    CHECK_EQUAL(sg_own->machine.available_bytes, 2 * GIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_lands_behind_a_look_is_gone_by_that_look),
        cmocka_unit_test(what_fits_exactly_is_admitted_and_a_byte_more_refused),
        cmocka_unit_test(below_the_reserve_nothing_large_is_admitted),
        cmocka_unit_test(absurd_sizes_are_refused),
        cmocka_unit_test(what_is_in_flight_is_gone_for_others),
        cmocka_unit_test(what_is_promised_is_gone_until_it_is_given_back),
        cmocka_unit_test(only_memory_that_comes_later_is_promised),
        cmocka_unit_test(of_two_that_ask_at_once_exactly_one_gets_what_fits_once),
        cmocka_unit_test(who_is_refused_by_requests_in_flight_only_waits_for_them),
        cmocka_unit_test(who_waits_is_refused_when_the_others_keep_it),
        cmocka_unit_test(waiting_for_requests_in_flight_ends_after_three_seconds),
        cmocka_unit_test(the_wait_option_waits_for_room),
        cmocka_unit_test(the_wait_option_ends),
        cmocka_unit_test(a_cached_snapshot_serves_small_requests_and_an_old_one_none),
        cmocka_unit_test(a_look_is_never_spent_twice),
        cmocka_unit_test(a_request_large_beside_the_slack_takes_a_new_snapshot),
        cmocka_unit_test(between_reserve_and_floor_small_requests_pass),
        cmocka_unit_test(below_the_floor_small_requests_pass_for_32_mib),
        cmocka_unit_test(the_grace_begins_anew_when_the_floor_was_left),
        cmocka_unit_test(a_small_request_that_waited_in_vain_is_refused_with_its_reason),
        cmocka_unit_test(a_shell_may_always_take_small_pieces),
        cmocka_unit_test(the_limit_is_exact_for_large_requests),
        cmocka_unit_test(the_limit_takes_what_a_request_grows_by),
        cmocka_unit_test(what_was_inherited_is_not_held_against_the_limit),
        cmocka_unit_test(a_limit_in_percent_is_of_what_may_be_used_at_all),
        cmocka_unit_test(small_requests_may_pass_the_limit_by_32_mib),
        cmocka_unit_test(a_limit_or_reserve_that_is_set_counts_at_the_next_request),
        cmocka_unit_test(a_request_in_flight_counts_against_the_limit),
        cmocka_unit_test(what_the_machine_has_is_no_limit_of_a_cgroup),
        cmocka_unit_test(a_cgroup_bounds_host_memory_but_not_device_memory),
        cmocka_unit_test(usable_is_what_the_tightest_constraint_leaves),
        cmocka_unit_test(cma_is_there_for_the_host_but_not_for_cuda),
        cmocka_unit_test(a_discrete_card_is_judged_by_its_own_figures),
        cmocka_unit_test(an_outdated_word_of_the_driver_is_asked_for_again),
        cmocka_unit_test(who_waits_for_a_card_asks_the_driver_again),
        cmocka_unit_test(device_memory_that_meminfo_never_shows_stays_subtracted),
        cmocka_unit_test(a_refusal_of_up_to_large_is_recorded_and_not_said),
        cmocka_unit_test(observe_refuses_nothing_and_records_it),
        cmocka_unit_test(observing_what_only_had_to_wait_is_no_refusal),
        cmocka_unit_test(without_a_look_everything_passes_and_the_report_says_so),
        cmocka_unit_test(guarding_from_the_first_look_on_is_no_event),
        cmocka_unit_test(who_was_blind_before_there_is_a_segment_tells_so_once),
        cmocka_unit_test(a_thread_pays_from_credit_without_a_look),
        cmocka_unit_test(a_debt_is_refilled_too),
        cmocka_unit_test(near_the_end_of_the_grace_a_thread_gets_what_it_needs_and_no_more),
        cmocka_unit_test(a_call_of_cuda_that_is_left_leaves_nothing_in_flight),
        cmocka_unit_test(a_refusal_is_counted_recorded_and_said_once_a_second),
        cmocka_unit_test(the_last_line_tells_how_many_more_were_refused_in_which_time),
        cmocka_unit_test(small_refusals_are_all_counted_but_recorded_once_a_second),
        cmocka_unit_test(a_forked_child_decides_anew),
    };
    return cmocka_run_group_tests_name("admission", tests, NULL, NULL);
}
