/*
 * test_segment_reader.c - what a tool reads of a record whose process goes on meanwhile. The source is included: each
 * reading of it may be followed by a change.
 */
#include "fixture.h"

#include "base/options.h"
#include "shared/segment.h"

static unsigned readings, changes;

/* pread(2), after which the process goes on: so often, it changes one figure of its record. */
static ssize_t read_beside_owner(int fd, void *bytes, size_t capacity, off_t offset)
{
    ssize_t got = pread(fd, bytes, capacity, offset);
    readings += offset == 0;
    if (offset == 0 && changes != 0) {
        changes--;
        sg_own->slot.granted_bytes++;
    }
    return got;
}

#define pread read_beside_owner
#include "model/segment_reader.c"
#undef pread

/* Reads this process's own record while it changes so often. */
static uint64_t granted_bytes_beside(unsigned how_often)
{
    static struct model_segment segment;
    char why[MODEL_WHY_CAPACITY] = "";
    strcpy(sg_options.dir, in_folder("live"));
    sg_segment_attach();
    int directory = open(sg_options.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(directory >= 0);
    changes = how_often;
    model_segment_begin(&segment);
    CHECK(model_segment_read(&segment, directory, sg_segment_file_name(), why) == MODEL_GOOD);
    CHECK_TEXT(why, "");
    CHECK(segment.has_owner);
    return segment.content->slot.granted_bytes;
}

CHILD_TEST(a_record_that_stands_still_is_read_twice)
{
    CHECK_EQUAL(granted_bytes_beside(0), 0);
    CHECK_EQUAL(readings, 2);
}

CHILD_TEST(a_record_that_changes_is_read_until_it_stands_still)
{
    CHECK_EQUAL(granted_bytes_beside(2), 2);
    CHECK_EQUAL(readings, 4);
}

CHILD_TEST(a_record_that_never_stands_still_is_read_all_the_same)
{
    CHECK_EQUAL(granted_bytes_beside(1000), READS - 1);
    CHECK_EQUAL(readings, READS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_that_stands_still_is_read_twice),
        cmocka_unit_test(a_record_that_changes_is_read_until_it_stands_still),
        cmocka_unit_test(a_record_that_never_stands_still_is_read_all_the_same),
    };
    return cmocka_run_group_tests_name("segment_reader", tests, NULL, NULL);
}
