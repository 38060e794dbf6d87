/*
 * test_claims.c - the granted claim of a job: finding it, what it is to grow by, changing it; and helpers of the
 * launcher, which are no processes of the job.
 */
#include "entries.h"

#include "shared/claims.h"

static struct sg_registry_entry *claim_at(unsigned number, uint64_t bytes)
{
    struct sg_registry_entry *entry = sit(number, SG_SLOT_JOB);
    entry->claimed_bytes = bytes;
    return entry;
}

CHILD_TEST(granted_claim_of_the_job_is_found)
{
    struct sg_granted_claim found;
    join();
    CHECK(!sg_claims_find(sg_own->slot.job_hash, &found));
    claim_at(1, 0)->claim_wanted_bytes = GIB;         /* it waits */
    claim_at(2, GIB)->slot.job_hash++;                /* of another job */
    claim_at(3, GIB)->claim = 1 << 2 | SG_CLAIM_DEAD; /* it has ended */
    sit(4, 0)->claimed_bytes = GIB;                   /* a process */
    CHECK(!sg_claims_find(sg_own->slot.job_hash, &found));
    struct sg_registry_entry *first = claim_at(5, GIB);
    claim_at(6, 2 * GIB);
    CHECK(sg_claims_find(sg_own->slot.job_hash, &found));
    CHECK(found.entry == first && found.bytes == GIB && found.owner == first->claim);
}

CHILD_TEST(claim_changes_only_as_it_was_found)
{
    struct sg_granted_claim found;
    join();
    struct sg_registry_entry *entry = claim_at(1, GIB);
    CHECK(sg_claims_find(sg_own->slot.job_hash, &found) && sg_claims_change(&found, 2 * GIB));
    CHECK_EQUAL(entry->claimed_bytes, 2 * GIB);
    CHECK(!sg_claims_change(&found, 3 * GIB)); /* of another size now */
    CHECK_EQUAL(entry->claimed_bytes, 2 * GIB);
    CHECK(sg_claims_find(sg_own->slot.job_hash, &found));
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

/* ---- what other jobs' claims take -------------------------------------------------------------------------------- */

/* An entry of another job. */
static struct sg_registry_entry *stranger(unsigned number, uint64_t granted_bytes)
{
    struct sg_registry_entry *entry = sit(number, 0);
    entry->slot.job_hash++;
    entry->slot.granted_bytes = granted_bytes + MIB; /* 1 MiB of each process was never promised */
    return entry;
}

static uint64_t taken(void)
{
    struct sg_peers peers;
    sg_store(&sg_entry_registry()->claim_places, 1);
    CHECK(sg_claims_begin());
    sg_peers_sum(&peers, 0, false, sg_claims_read);
    sg_claims_keep();
    sg_claims_end(&peers, false);
    return peers.machine.claimed_bytes + peers.machine.flight_bytes;
}

/* Gives the process a range of a memory file, `first` MiB from the file's beginning. */
static void share(struct sg_registry_entry *entry, uint64_t first, uint64_t mib)
{
    const uint64_t unit = MIB / SG_FILE_UNIT_BYTES, file = UINT64_C(7) << 32;
    entry->file[0].begin = file | first * unit;
    entry->file[0].end = file | (first + mib) * unit;
    entry->file_bytes = mib * MIB;
    entry->files_version = 2;
    entry->slot.granted_bytes += mib * MIB;
}

static unsigned visits[SG_ENTRY_CAPACITY];

static void visit(uint32_t number, const struct sg_registry_entry *entry)
{
    CHECK(entry == sg_entry_at(sg_entry_registry(), number));
    visits[number]++;
}

CHILD_TEST(pass_over_the_peers_shows_each_entry_that_lives)
{
    struct sg_peers peers;
    join();
    (void)stranger(1, GIB);
    stranger(2, GIB)->claim = 1 << 2 | SG_CLAIM_DEAD;
    claim_at(3, GIB);
    sg_peers_sum(&peers, 0, false, visit);
    CHECK_EQUAL(visits[0], 1); /* this process's own */
    CHECK_EQUAL(visits[1], 1);
    CHECK_EQUAL(visits[2], 0);
    CHECK_EQUAL(visits[3], 1);
}

CHILD_TEST(claim_takes_its_size_however_much_of_it_is_held)
{
    join();
    claim_at(1, 3 * GIB)->slot.job_hash++;
    CHECK_EQUAL(taken(), 3 * GIB);
    struct sg_registry_entry *first = stranger(2, GIB), *second = stranger(3, GIB);
    CHECK_EQUAL(taken(), GIB);
    first->slot.granted_bytes = second->slot.granted_bytes = 3 * GIB;
    CHECK_EQUAL(taken(), 0);
}

CHILD_TEST(two_claims_of_one_job_are_filled_one_after_the_other)
{
    join();
    claim_at(1, GIB)->slot.job_hash++;
    claim_at(2, 2 * GIB)->slot.job_hash++;
    (void)stranger(3, GIB + GIB / 2);
    CHECK_EQUAL(taken(), GIB + GIB / 2);
}

CHILD_TEST(shared_memory_of_a_claimed_job_is_held_once)
{
    join();
    claim_at(1, 3 * GIB)->slot.job_hash++;
    struct sg_registry_entry *first = stranger(2, 0), *second = stranger(3, 0);
    share(first, 0, 1024);
    share(second, 1024, 1024);
    CHECK_EQUAL(taken(), GIB); /* different memory */
    second->file[0] = first->file[0];
    second->files_version = 4;
    CHECK_EQUAL(taken(), 2 * GIB); /* the same */
}

CHILD_TEST(shared_memory_that_is_being_changed_is_in_doubt)
{
    join();
    claim_at(1, 3 * GIB)->slot.job_hash++;
    struct sg_registry_entry *process = stranger(2, 0);
    share(process, 0, 1024);
    CHECK_EQUAL(taken(), 2 * GIB);
    process->files_version = 3;
    CHECK_EQUAL(taken(), 3 * GIB); /* a part of it counts as in flight */
}

CHILD_TEST(memory_of_an_ended_parent_is_its_childs)
{
    join();
    claim_at(1, 3 * GIB)->slot.job_hash++;
    struct sg_registry_entry *parent = stranger(2, 2 * GIB), *child = stranger(3, 2 * GIB);
    child->slot.inherited_bytes = 2 * GIB;
    child->origin[0] = (struct sg_origin){.claim = parent->claim, .bytes = 2 * GIB, .entry = 3};
    CHECK_EQUAL(taken(), GIB); /* the parent holds it */
    parent->claim = 1 << 2 | SG_CLAIM_DEAD;
    CHECK_EQUAL(taken(), GIB);
}

/* A member of a group may write any claims into the registry. Each request adds up what jobs with claims hold. */
CHILD_TEST(claims_of_a_bounded_number_of_jobs_count)
{
    join();
    for (unsigned i = 1; i < SG_ENTRY_CAPACITY; i++)
        claim_at(i, GIB)->slot.job_hash = UINT64_C(4096) * i;
    CHECK_EQUAL(taken(), SG_CLAIM_JOBS * GIB);
}

CHILD_TEST(a_job_gets_no_claim_that_would_not_count)
{
    join();
    for (unsigned i = 1; i < SG_CLAIM_JOBS; i++)
        claim_at(i, GIB)->slot.job_hash = UINT64_C(4096) * i;
    CHECK(!sg_claims_are_full());
    struct sg_registry_entry *last = claim_at(SG_CLAIM_JOBS, GIB);
    CHECK(!sg_claims_are_full()); /* the job's own */
    last->slot.job_hash++;
    CHECK(sg_claims_are_full());
    last->claim = 1 << 2 | SG_CLAIM_DEAD;
    CHECK(!sg_claims_are_full());
}

/* For each entry with what is set for a job, a search for dead owners asked about all processes of that job. */
CHILD_TEST(search_for_dead_owners_asks_about_a_bounded_number_of_processes)
{
    enum { SETTINGS = 500, PROCESSES = 500 };
    join();
    for (unsigned i = 1; i <= SETTINGS + PROCESSES; i++) {
        struct sg_registry_entry *entry = sit(i, i <= SETTINGS ? SG_SLOT_JOB : 0);
        entry->slot.job_hash++;
        entry->set_user = i <= SETTINGS;
    }
    int fd = (int)sg_registry_open();
    CHECK(fd >= 0);
    uint32_t found = sg_registry_mark_dead_in(sg_entry_registry(), fd, NULL);
    CHECK(found >= PROCESSES && found <= PROCESSES + 2 * SG_ENTRY_CAPACITY / PROCESSES);
}

CHILD_TEST(ranges_beyond_a_bound_count_for_each_process)
{
    struct sg_peers peers;
    join();
    for (unsigned i = 1; i < SG_ENTRY_CAPACITY; i++) {
        struct sg_registry_entry *entry = stranger(i, 0);
        entry->files_version = 2;
        entry->file_bytes = entry->slot.promised_bytes = entry->slot.granted_bytes = SG_FILE_CAPACITY * MIB;
        for (unsigned k = 0; k < SG_FILE_CAPACITY; k++) {
            const uint64_t first = (UINT64_C(7) << 32) + k * (MIB / SG_FILE_UNIT_BYTES) + 1;
            entry->file[k] = (struct sg_memory_file){first, first + MIB / SG_FILE_UNIT_BYTES, MIB};
        }
    }
    sg_peers_sum(&peers, 0, false, NULL);
    CHECK_EQUAL(peers.machine.held_bytes, SG_FILE_CAPACITY * MIB * (1 + SG_ENTRY_CAPACITY / 2 - 1));
}

/* Entries first to last - 1 become claims of a user, given by its number plus one. */
static void claims_of(uint64_t user, unsigned first, unsigned last)
{
    for (unsigned i = first; i < last; i++) {
        struct sg_registry_entry *claim = claim_at(i, GIB);
        claim->claim_place = i;
        claim->set_user = user;
    }
}

static void assert_next_is_the_last(void)
{
    CHECK(sg_claims_queue(GIB, 0, 1) >= 0);
    CHECK_EQUAL(sg_claims_queue(GIB, 0, 1), -EDQUOT);
}

CHILD_TEST(user_has_half_of_the_claims_at_most)
{
    join();
    claims_of(getuid() + UINT64_C(1), 1, SG_CLAIM_JOBS / 2);
    assert_next_is_the_last();
}

CHILD_TEST(user_has_half_of_the_claims_that_others_leave)
{
    join();
    claims_of(getuid() + UINT64_C(2), 1, 33);
    claims_of(getuid() + UINT64_C(1), 33, 33 + 15);
    assert_next_is_the_last();
}

CHILD_TEST(first_claim_of_a_user_is_never_too_many)
{
    join();
    claims_of(getuid() + UINT64_C(2), 1, SG_CLAIM_JOBS);
    assert_next_is_the_last();
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
        cmocka_unit_test(pass_over_the_peers_shows_each_entry_that_lives),
        cmocka_unit_test(claim_takes_its_size_however_much_of_it_is_held),
        cmocka_unit_test(two_claims_of_one_job_are_filled_one_after_the_other),
        cmocka_unit_test(shared_memory_of_a_claimed_job_is_held_once),
        cmocka_unit_test(shared_memory_that_is_being_changed_is_in_doubt),
        cmocka_unit_test(memory_of_an_ended_parent_is_its_childs),
        cmocka_unit_test(claims_of_a_bounded_number_of_jobs_count),
        cmocka_unit_test(a_job_gets_no_claim_that_would_not_count),
        cmocka_unit_test(search_for_dead_owners_asks_about_a_bounded_number_of_processes),
        cmocka_unit_test(ranges_beyond_a_bound_count_for_each_process),
        cmocka_unit_test(user_has_half_of_the_claims_at_most),
        cmocka_unit_test(user_has_half_of_the_claims_that_others_leave),
        cmocka_unit_test(first_claim_of_a_user_is_never_too_many),
        cmocka_unit_test(helper_is_no_process_of_its_job),
        cmocka_unit_test(process_that_becomes_a_helper_is_one_at_once),
    };
    return cmocka_run_group_tests_name("claims", tests, NULL, NULL);
}
