/*
 * test_defaults.c - the user's file of defaults (libsparkguard(7), DEFAULTS): what it may say, whom it is believed
 * of, and what goes before it.
 */
#include "fixture.h"

#include "base/compiler.h"
#include "base/options.h"

static char said[4096];

/* Takes the options of this process from two variables, which may be NULL, and from the file, as the first decision of
 * a job's first process does. What is said on standard error is in `said`. */
static void take(const char *first, const char *second)
{
    static char one[64], two[64];
    static char *environment[] = {one, two, NULL};
    (void)snprintf(one, sizeof one, "%s", first != NULL ? first : "X=1");
    (void)snprintf(two, sizeof two, "%s", second != NULL ? second : "Y=1");
    fixture_say = dup(2);
    int fd = open(in_folder("stderr"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && dup2(fd, 2) == 2);
    sg_options_read(environment);
    if (sg_options.first_pid == 0) /* as set-up does */
        sg_options.first_pid = (uint32_t)getpid();
    sg_options_take_defaults(in_folder("sparkguard.conf"));
    ssize_t length = pread(fd, said, sizeof said - 1, 0);
    CHECK(length >= 0);
    said[length] = '\0';
}

static void check_wrong(unsigned line)
{
    char expected[2048];
    (void)snprintf(expected, sizeof expected,
                   "sparkguard: %s:%u: cannot be read and has no effect; expected reserve=SIZE, limit=SIZE or "
                   "history=DIR\n",
                   in_folder("sparkguard.conf"), line);
    CHECK_TEXT(said, expected);
}

CHILD_TEST(without_a_file_nothing_is_set)
{
    take(NULL, NULL);
    CHECK(!sg_options.reserve.is_set && !sg_options.limit.is_set && sg_options.history[0] == '\0');
    CHECK_TEXT(said, "");
}

CHILD_TEST(the_file_sets_what_it_names)
{
    put_file("sparkguard.conf", "# mine\n\n  reserve = 12G  # of all\r\nlimit=50%%\n\thistory=/var/x#y\n");
    take(NULL, NULL);
    CHECK_EQUAL(sg_options.reserve.bytes, 12 * GIB);
    CHECK_EQUAL(sg_options.limit.percent_milli, 50000);
    CHECK_TEXT(sg_options.history, "/var/x#y");
    CHECK_TEXT(said, "");
}

CHILD_TEST(the_last_line_counts_without_an_end_too)
{
    put_file("sparkguard.conf", "limit=64G\nlimit=32G");
    take(NULL, NULL);
    CHECK_EQUAL(sg_options.limit.bytes, 32 * GIB);
}

CHILD_TEST(a_variable_goes_before_the_file)
{
    put_file("sparkguard.conf", "reserve=12G\nlimit=64G\nhistory=/var/x\n");
    take("SPARKGUARD_LIMIT=none", "SPARKGUARD_HISTORY=off");
    CHECK(!sg_options.limit.is_set && sg_options.is_history_off);
    CHECK_EQUAL(sg_options.reserve.bytes, 12 * GIB);
}

CHILD_TEST(a_variable_that_cannot_be_read_leaves_the_default_that_it_names)
{
    put_file("sparkguard.conf", "reserve=12G\n");
    take("SPARKGUARD_RESERVE=much", NULL);
    CHECK(!sg_options.reserve.is_set);
    CHECK_TEXT(said, "sparkguard: SPARKGUARD_RESERVE=much cannot be read; for example 12G; using 8%\n");
}

CHILD_TEST(an_empty_variable_is_none)
{
    put_file("sparkguard.conf", "limit=64G\n");
    take("SPARKGUARD_LIMIT=", NULL);
    CHECK_EQUAL(sg_options.limit.bytes, 64 * GIB);
}

CHILD_TEST(the_first_wrong_line_is_said_and_the_others_count)
{
    put_file("sparkguard.conf", "reserve=12G\nlimit=much\nwait=5m\nhistory=off\n");
    take(NULL, NULL);
    CHECK_EQUAL(sg_options.reserve.bytes, 12 * GIB);
    CHECK(sg_options.is_history_off && !sg_options.limit.is_set && sg_options.wait_ns == 0);
    check_wrong(2);
    sg_options_take_defaults(in_folder("sparkguard.conf")); /* takes it once */
    CHECK(!sg_options.limit.is_set);
}

static void check_line_is_wrong(const char *line)
{
    put_file("sparkguard.conf", "%s\n", line);
    take(NULL, NULL);
    CHECK(!sg_options.reserve.is_set && !sg_options.limit.is_set && sg_options.history[0] == '\0');
    check_wrong(1);
}

#define WRONG(name, line) \
    CHILD_TEST(name) \
    { \
        check_line_is_wrong(line); \
    }

WRONG(a_limit_without_its_unit_is_wrong, "limit=64")
WRONG(a_limit_that_no_program_runs_in_is_wrong, "limit=1M")
WRONG(a_reserve_without_its_unit_is_wrong, "reserve=12")
WRONG(a_relative_history_is_wrong, "history=x")
WRONG(a_name_alone_is_wrong, "limit")
WRONG(a_value_alone_is_wrong, "=64G")
WRONG(a_name_of_no_default_is_wrong, "job=x")
WRONG(a_variable_is_wrong, "SPARKGUARD_LIMIT=64G")
WRONG(a_section_is_wrong, "[sparkguard]")

CHILD_TEST(a_zero_byte_makes_its_line_wrong)
{
    put_file("sparkguard.conf", "limit=64G%cx\n", 0);
    take(NULL, NULL);
    CHECK(!sg_options.limit.is_set);
    check_wrong(1);
}

static void check_has_no_effect(const char *why)
{
    char expected[2048] = "";
    take(NULL, NULL);
    CHECK(!sg_options.limit.is_set);
    if (why != NULL)
        (void)snprintf(expected, sizeof expected, "sparkguard: %s %s\n", in_folder("sparkguard.conf"), why);
    CHECK_TEXT(said, expected);
}

CHILD_TEST(a_file_of_4096_bytes_is_read_and_a_longer_one_is_not)
{
    put_file("sparkguard.conf", "limit=64G\n#%*s\n", 4096 - 12, "");
    take(NULL, NULL);
    CHECK_EQUAL(sg_options.limit.bytes, 64 * GIB);
}

CHILD_TEST(a_longer_file_has_no_effect)
{
    put_file("sparkguard.conf", "limit=64G\n#%*s\n", 4096 - 11, "");
    check_has_no_effect("is longer than 4096 bytes and has no effect");
}

CHILD_TEST(a_file_that_all_may_write_has_no_effect)
{
    put_file("sparkguard.conf", "limit=64G\n");
    CHECK(chmod(in_folder("sparkguard.conf"), 0666) == 0);
    check_has_no_effect("can be written by all users and has no effect; chmod o-w mends it");
}

CHILD_TEST(what_is_no_file_has_no_effect)
{
    CHECK(mkfifo(in_folder("sparkguard.conf"), 0600) == 0);
    check_has_no_effect("cannot be read and has no effect");
}

CHILD_TEST(a_file_of_another_user_is_passed_over)
{
    if (geteuid() != 0)
        SKIP("gives a file away: needs root");
    put_file("sparkguard.conf", "limit=64G\nnonsense\n");
    CHECK(chown(in_folder("sparkguard.conf"), 65534, 65534) == 0);
    check_has_no_effect(NULL);
}

CHILD_TEST(a_link_to_a_file_of_ones_own_is_followed)
{
    put_file("dotfiles/sparkguard", "limit=64G\n");
    CHECK(symlink("dotfiles/sparkguard", in_folder("sparkguard.conf")) == 0);
    take(NULL, NULL);
    CHECK_EQUAL(sg_options.limit.bytes, 64 * GIB);
}

CHILD_TEST(under_a_launcher_nothing_is_said)
{
    put_file("sparkguard.conf", "nonsense\nlimit=64G\n");
    take("SPARKGUARD_JOB_FIRST=1", NULL);
    CHECK_EQUAL(sg_options.limit.bytes, 64 * GIB);
    CHECK_TEXT(said, "");
}

CHILD_TEST(a_disabled_guard_reads_nothing)
{
    put_file("sparkguard.conf", "nonsense\n");
    take("SPARKGUARD_DISABLE=1", NULL);
    CHECK_TEXT(said, "");
}

PLAIN_TEST(the_place_of_the_file)
{
    char path[SG_DEFAULTS_PATH_BYTES], longest[1100] = "/";
    sg_options_name_defaults(path, NULL, "/home/a");
    assert_string_equal(path, "/home/a/.config/sparkguard.conf");
    sg_options_name_defaults(path, "/etc/a", "/home/a");
    assert_string_equal(path, "/etc/a/sparkguard.conf");
    sg_options_name_defaults(path, "relative", "/home/a");
    assert_string_equal(path, "/home/a/.config/sparkguard.conf");
    sg_options_name_defaults(path, NULL, NULL);
    assert_string_equal(path, "");
    memset(longest + 1, 'x', sizeof longest - 2);
    sg_options_name_defaults(path, longest, NULL);
    assert_string_equal(path, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_file_nothing_is_set),
        cmocka_unit_test(the_file_sets_what_it_names),
        cmocka_unit_test(the_last_line_counts_without_an_end_too),
        cmocka_unit_test(a_variable_goes_before_the_file),
        cmocka_unit_test(a_variable_that_cannot_be_read_leaves_the_default_that_it_names),
        cmocka_unit_test(an_empty_variable_is_none),
        cmocka_unit_test(the_first_wrong_line_is_said_and_the_others_count),
        cmocka_unit_test(a_limit_without_its_unit_is_wrong),
        cmocka_unit_test(a_limit_that_no_program_runs_in_is_wrong),
        cmocka_unit_test(a_reserve_without_its_unit_is_wrong),
        cmocka_unit_test(a_relative_history_is_wrong),
        cmocka_unit_test(a_name_alone_is_wrong),
        cmocka_unit_test(a_value_alone_is_wrong),
        cmocka_unit_test(a_name_of_no_default_is_wrong),
        cmocka_unit_test(a_variable_is_wrong),
        cmocka_unit_test(a_section_is_wrong),
        cmocka_unit_test(a_zero_byte_makes_its_line_wrong),
        cmocka_unit_test(a_file_of_4096_bytes_is_read_and_a_longer_one_is_not),
        cmocka_unit_test(a_longer_file_has_no_effect),
        cmocka_unit_test(a_file_that_all_may_write_has_no_effect),
        cmocka_unit_test(what_is_no_file_has_no_effect),
        cmocka_unit_test(a_file_of_another_user_is_passed_over),
        cmocka_unit_test(a_link_to_a_file_of_ones_own_is_followed),
        cmocka_unit_test(under_a_launcher_nothing_is_said),
        cmocka_unit_test(a_disabled_guard_reads_nothing),
        cmocka_unit_test(the_place_of_the_file),
    };
    return cmocka_run_group_tests_name("defaults", tests, NULL, NULL);
}
