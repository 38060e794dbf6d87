/*
 * test_givers.c - whom a request asks to give memory back, and when it asks the next one.
 */
#include "entries.h"

#include "shared/givers.h"

/* A process with a callback, of a job of its own. */
static struct sg_registry_entry *give_at(unsigned number, uint64_t granted_bytes)
{
    struct sg_registry_entry *entry = sit(number, SG_SLOT_GIVES);
    entry->slot.job_hash += number;
    entry->slot.granted_bytes = granted_bytes;
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
    struct sg_registry_entry *small = give_at(1, GIB), *large = give_at(2, 2 * GIB);
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
