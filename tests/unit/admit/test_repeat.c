/*
 * test_repeat.c - requests that repeat a refusal of a moment ago: what they cost, and what ends that.
 */
#include "fixture.h"
#include "admit/job_settings.h"

#include "account/ledger.h"
#include "account/thread_record.h"
#include "admit/admission.h"
#include "base/atomics.h"
#include "base/options.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

#include <inttypes.h>

#define HOLDS_NS 5000000
#define ENOUGH (10 * GIB)

/* A machine of 64 GiB that keeps 1 GiB. */
static void put_available(uint64_t available)
{
    put_file("proc/meminfo", "MemTotal: %" PRIu64 " kB\nMemAvailable: %" PRIu64 " kB\n", 64 * GIB / KIB,
             available / KIB);
}

static void begin(uint64_t available)
{
    strcpy(sg_options.system_root, fixture_folder);
    CHECK_EQUAL(sg_parse_size("1G", &sg_options.reserve), 0);
    put_available(available);
}

static bool would_get(enum sg_domain domain, uint64_t bytes)
{
    struct sg_request request = {.domain = domain, .size_bytes = bytes, .growth_bytes = bytes, .wording.call = "call"};
    bool is_admitted = sg_admission_ask(&request);
    if (is_admitted)
        sg_admission_settle(&request, 0);
    return is_admitted;
}

static bool would_get_small(uint64_t bytes)
{
    const struct sg_request request = {.domain = SG_DOMAIN_MAPPED, .growth_bytes = bytes};
    bool is_admitted = sg_admission_ask_small(SG_DOMAIN_MAPPED, bytes, "call");
    if (is_admitted)
        sg_admission_settle_small(&request, 0);
    return is_admitted;
}

/* Has a request of 64 MiB refused, and lets the machine have enough. Returns the time from which on it holds. */
static uint64_t refuse(void)
{
    put_available(GIB);
    uint64_t now = clock_ns();
    while (clock_ns() - now < 6000000) /* what held before is over */
        ;
    now = clock_ns();
    CHECK(!would_get(SG_DOMAIN_HEAP, 64 * MIB));
    put_available(ENOUGH);
    return now;
}

/* Repeats until a try took less time than a refusal holds: the machine may be busy. */
#define UNTIL_IN_TIME(what) \
    do { \
        int tries = 0; \
        uint64_t begin_ns; \
        do { \
            CHECK(tries++ < 1000); \
            begin_ns = refuse(); \
            what; \
        } while (clock_ns() - begin_ns >= HOLDS_NS); \
    } while (0)

CHILD_TEST(a_refusal_holds_for_5_ms)
{
    bool is_granted = true;
    begin(GIB);
    UNTIL_IN_TIME(is_granted = would_get(SG_DOMAIN_HEAP, 64 * MIB));
    CHECK(!is_granted);
    UNTIL_IN_TIME(is_granted = would_get(SG_DOMAIN_MAPPED, 65 * MIB)); /* as large, whoever asks */
    CHECK(!is_granted);
    (void)refuse();
    uint64_t now = clock_ns();
    while (clock_ns() - now < HOLDS_NS)
        ;
    CHECK(would_get(SG_DOMAIN_HEAP, 64 * MIB));
}

CHILD_TEST(each_repeated_refusal_is_counted)
{
    const struct sg_domain_counters *heap = &sg_own->domain[SG_DOMAIN_HEAP];
    begin(GIB);
    for (uint64_t i = 1; i <= 1000; i++) {
        CHECK(!would_get(SG_DOMAIN_HEAP, 64 * MIB));
        CHECK_EQUAL(heap->refused_count, i);
        CHECK_EQUAL(heap->refused_bytes, i * 64 * MIB);
        CHECK_EQUAL(sg_own->refusal_count, i);
        CHECK_EQUAL(sg_self.refused_count, i);
    }
}

CHILD_TEST(a_smaller_request_is_judged)
{
    begin(GIB);
    (void)refuse();
    CHECK(would_get(SG_DOMAIN_HEAP, 64 * MIB - 1));
}

CHILD_TEST(a_free_of_what_was_missing_ends_a_refusal)
{
    begin(GIB);
    sg_ledger_charge(SG_DOMAIN_MAPPED, GIB);
    (void)refuse();
    sg_ledger_release(SG_DOMAIN_MAPPED, 64 * MIB);
    CHECK(would_get(SG_DOMAIN_HEAP, 64 * MIB));
}

CHILD_TEST(a_free_of_less_does_not)
{
    bool is_granted = true;
    begin(GIB);
    sg_ledger_charge(SG_DOMAIN_MAPPED, GIB);
    UNTIL_IN_TIME(sg_ledger_release(SG_DOMAIN_MAPPED, 4096); is_granted = would_get(SG_DOMAIN_HEAP, 64 * MIB));
    CHECK(!is_granted);
}

CHILD_TEST(what_is_set_ends_a_refusal)
{
    begin(GIB);
    (void)refuse();
    set_for_job(GIB, 0);
    CHECK(would_get(SG_DOMAIN_HEAP, 64 * MIB));
    (void)refuse();
    set_for_job(0, GIB);
    CHECK(would_get(SG_DOMAIN_HEAP, 64 * MIB));
}

CHILD_TEST(device_memory_is_judged_each_time)
{
    begin(GIB);
    CHECK(!would_get(SG_DOMAIN_DEVICE, 64 * MIB));
    put_available(ENOUGH);
    CHECK(would_get(SG_DOMAIN_DEVICE, 64 * MIB));
}

CHILD_TEST(who_waits_for_memory_waits_each_time)
{
    begin(GIB);
    sg_options.wait_ns = 1000000;
    (void)refuse();
    CHECK(would_get(SG_DOMAIN_HEAP, 64 * MIB));
}

CHILD_TEST(any_free_ends_the_refusal_of_a_small_request)
{
    begin(128 * MIB); /* below the floor */
    sg_ledger_charge(SG_DOMAIN_MAPPED, GIB);
    CHECK(would_get_small(32 * MIB));
    sg_ledger_charge(SG_DOMAIN_MAPPED, 32 * MIB); /* the grace is used */
    CHECK(!would_get_small(4096));
    CHECK(!would_get_small(4096));
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_MAPPED].refused_count, 2);
    sg_ledger_release(SG_DOMAIN_MAPPED, 4096);
    CHECK(would_get_small(4096));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refusal_holds_for_5_ms),
        cmocka_unit_test(each_repeated_refusal_is_counted),
        cmocka_unit_test(a_smaller_request_is_judged),
        cmocka_unit_test(a_free_of_what_was_missing_ends_a_refusal),
        cmocka_unit_test(a_free_of_less_does_not),
        cmocka_unit_test(what_is_set_ends_a_refusal),
        cmocka_unit_test(device_memory_is_judged_each_time),
        cmocka_unit_test(who_waits_for_memory_waits_each_time),
        cmocka_unit_test(any_free_ends_the_refusal_of_a_small_request),
    };
    return cmocka_run_group_tests_name("repeat", tests, NULL, NULL);
}
