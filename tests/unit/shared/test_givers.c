/*
 * test_givers.c - whom a request asks to give memory back, and when it asks the next one.
 */
#include "fixture.h"

#include "base/atomics.h"
#include "base/options.h"
#include "shared/givers.h"
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

/* A process with a callback, of a job of its own; no lock keeps its entry, which does not matter here. */
static struct sg_registry_entry *sit(unsigned number, uint64_t granted_bytes)
{
    struct sg_registry_entry *entry = sg_entry_at(sg_entry_registry(), number);
    memset(entry, 0, sizeof *entry);
    entry->slot.job_hash = sg_own->slot.job_hash + number;
    entry->slot.flags = SG_SLOT_GIVES;
    entry->slot.granted_bytes = granted_bytes;
    entry->claim = 1 << 2 | SG_CLAIM_LIVE;
    if (sg_load(&sg_entry_registry()->entry_used) < number + 1)
        sg_store(&sg_entry_registry()->entry_used, number + 1);
    return entry;
}

static void answer(struct sg_registry_entry *entry)
{
    sg_store(&entry->pressure_answered, sg_load(&entry->pressure_asked));
}

CHILD_TEST(what_an_answer_brought_is_looked_at_before_the_next_one_is_asked)
{
    struct sg_givers_asked asked = {0};
    join();
    struct sg_registry_entry *small = sit(1, GIB), *large = sit(2, 2 * GIB);
    CHECK(sg_givers_ask(&asked, MIB) && asked.count == 1 && asked.entry[0] == 2);
    CHECK(sg_givers_ask(&asked, MIB) && asked.count == 1); /* it has not answered */
    answer(large);                                         /* after the sums that led to the next call */
    CHECK(sg_givers_ask(&asked, MIB) && asked.count == 1);
    CHECK(sg_givers_ask(&asked, MIB) && asked.count == 2 && asked.entry[1] == 1);
    answer(small);
    CHECK(sg_givers_ask(&asked, MIB) && !asked.has_answered);
    CHECK(sg_givers_ask(&asked, MIB) && asked.count == 2 && asked.has_answered);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_an_answer_brought_is_looked_at_before_the_next_one_is_asked),
    };
    return cmocka_run_group_tests_name("givers", tests, NULL, NULL);
}
