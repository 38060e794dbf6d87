/*
 * test_claims.c - the granted claim of a job: finding it, what it is to grow by, changing it; and helpers of the
 * launcher, which are no processes of the job.
 */
#include "fixture.h"

#include "base/atomics.h"
#include "base/options.h"
#include "shared/claims.h"
#include "shared/own_entry.h"
#include "shared/registry.h"
#include "shared/segment.h"

static void join(void)
{
    strcpy(sg_options.dir, in_folder("live"));
    strcpy(sg_options.job, "unit");
    sg_segment_attach();
    sg_registry_join();
    CHECK((sg_load(&sg_own->slot.flags) & SG_SLOT_SHARING) != 0);
}

/* An entry of this process's job; no lock keeps it, which does not matter here. */
static struct sg_registry_entry *sit(unsigned number, uint32_t flags)
{
    struct sg_registry_entry *entry = sg_entry_at(sg_entry_registry(), number);
    memset(entry, 0, sizeof *entry);
    entry->slot.job_hash = sg_own->slot.job_hash;
    entry->slot.flags = flags;
    entry->claim = 1 << 2 | SG_CLAIM_LIVE;
    if (sg_load(&sg_entry_registry()->entry_used) < number + 1)
        sg_store(&sg_entry_registry()->entry_used, number + 1);
    return entry;
}

static struct sg_registry_entry *claim_at(unsigned number, uint64_t bytes)
{
    struct sg_registry_entry *entry = sit(number, SG_SLOT_CLAIM);
    entry->claimed_bytes = bytes;
    return entry;
}

CHILD_TEST(granted_claim_of_the_job_is_found)
{
    struct sg_granted_claim found;
    join();
    CHECK(!sg_claims_find(&found));
    claim_at(1, 0)->claim_wanted_bytes = GIB;         /* it waits */
    claim_at(2, GIB)->slot.job_hash++;                /* of another job */
    claim_at(3, GIB)->claim = 1 << 2 | SG_CLAIM_DEAD; /* it has ended */
    sit(4, 0)->claimed_bytes = GIB;                   /* a process */
    CHECK(!sg_claims_find(&found));
    struct sg_registry_entry *first = claim_at(5, GIB);
    claim_at(6, 2 * GIB);
    CHECK(sg_claims_find(&found));
    CHECK(found.entry == first && found.bytes == GIB && found.owner == first->claim);
}

CHILD_TEST(claim_changes_only_as_it_was_found)
{
    struct sg_granted_claim found;
    join();
    struct sg_registry_entry *entry = claim_at(1, GIB);
    CHECK(sg_claims_find(&found) && sg_claims_change(&found, 2 * GIB));
    CHECK_EQUAL(entry->claimed_bytes, 2 * GIB);
    CHECK(!sg_claims_change(&found, 3 * GIB)); /* of another size now */
    CHECK_EQUAL(entry->claimed_bytes, 2 * GIB);
    CHECK(sg_claims_find(&found));
    entry->claim = 2 << 2 | SG_CLAIM_LIVE; /* another job has taken the entry, for a claim of the same size */
    CHECK(!sg_claims_change(&found, 3 * GIB));
    CHECK_EQUAL(entry->claimed_bytes, 2 * GIB);
}

CHILD_TEST(what_the_job_holds_beyond_its_claims_is_not_taken_again)
{
    join();
    claim_at(1, 2 * GIB);
    struct sg_registry_entry *process = sit(2, 0);
    CHECK_EQUAL(sg_claims_more(2 * GIB), 2 * GIB);
    process->slot.granted_bytes = 3 * GIB + MIB; /* 1 MiB of each process was never promised */
    CHECK_EQUAL(sg_claims_more(2 * GIB), GIB);
    claim_at(3, GIB / 2);
    CHECK_EQUAL(sg_claims_more(2 * GIB), GIB + GIB / 2);
    process->slot.granted_bytes = 9 * GIB;
    CHECK_EQUAL(sg_claims_more(2 * GIB), 0);
    process->slot.flags = SG_SLOT_HELPER;
    CHECK_EQUAL(sg_claims_more(2 * GIB), 2 * GIB);
}

CHILD_TEST(helper_is_no_process_of_its_job)
{
    strcpy(sg_options.dir, in_folder("live"));
    strcpy(sg_options.job, "unit");
    sg_segment_attach();
    sg_entry_become_helper();
    sg_registry_join();
    CHECK(!sg_entry_is_process(sg_entry_own()));
}

CHILD_TEST(process_that_becomes_a_helper_is_one_at_once)
{
    join();
    CHECK(sg_entry_is_process(sg_entry_own()));
    sg_entry_become_helper();
    CHECK(!sg_entry_is_process(sg_entry_own()));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(granted_claim_of_the_job_is_found),
        cmocka_unit_test(claim_changes_only_as_it_was_found),
        cmocka_unit_test(what_the_job_holds_beyond_its_claims_is_not_taken_again),
        cmocka_unit_test(helper_is_no_process_of_its_job),
        cmocka_unit_test(process_that_becomes_a_helper_is_one_at_once),
    };
    return cmocka_run_group_tests_name("claims", tests, NULL, NULL);
}
