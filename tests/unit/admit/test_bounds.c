/*
 * The administrator's file: which bounds a user has by its lines.
 */
#include "fixture.h"

#include "sparkguard_bounds.h"

static const char users[] = "root:x:0:0:root:/root:/bin/sh\nalice:x:1001:1001::/home/alice:/bin/sh\n"
                            "ali:x:1003:1003::/home/ali:/bin/sh\nbroken\nbob:x:1002";
static const char groups[] = "root:x:0:\nstudents:x:2001:alice,bob\nstudent:x:2002:\n";

static struct sg_bounds_text text_of(const char *text)
{
    return (struct sg_bounds_text){text, strlen(text)};
}

/* The bounds of alice (1001, in the groups 1001 and 2001), or of another user without groups. */
static struct sg_bounds find(const char *file, uint32_t user, uint32_t *unreadable)
{
    static const uint32_t of_alice[] = {2001, 1001};
    const struct sg_bounds_sources sources = {text_of(file), text_of(users), text_of(groups)};
    const struct sg_bounds_user who = {user, of_alice, user == 1001 ? 2 : 0};
    struct sg_bounds bounds;
    *unreadable = sg_bounds_find(&sources, &who, &bounds);
    return bounds;
}

static void assert_limit(const char *file, uint32_t user, uint64_t gib)
{
    uint32_t unreadable;
    struct sg_bounds bounds = find(file, user, &unreadable);
    assert_int_equal(unreadable, 0);
    assert_int_equal(bounds.limit.is_set, gib != 0);
    assert_int_equal(bounds.limit.bytes, gib * GIB);
}

PLAIN_TEST(lines_name_users_groups_and_everybody_but_root)
{
    assert_limit("alice limit=3G", 1001, 3);
    assert_limit("alice limit=3G", 1003, 0); /* "ali" is another user */
    assert_limit("ali limit=3G", 1001, 0);
    assert_limit("bob limit=3G", 1002, 3); /* the last line has no end */
    assert_limit("1001 limit=3G", 1001, 3);
    assert_limit("4294967297 limit=3G", 1, 0); /* no 32 bits */
    assert_limit("4711 limit=3G", 4711, 3);    /* not in /etc/passwd */
    assert_limit("broken limit=3G", 1001, 0);
    assert_limit("@students limit=3G", 1001, 3);
    assert_limit("@2001 limit=3G", 1001, 3);
    assert_limit("@alice limit=3G", 1001, 0); /* a user, no group */
    assert_limit("@student limit=3G", 1001, 0);
    assert_limit("@ limit=3G", 1001, 0);
    assert_limit("* limit=3G", 1001, 3);
    assert_limit("* limit=3G", 0, 0);
    assert_limit("root limit=3G", 0, 3);
}

PLAIN_TEST(first_line_that_names_the_user_counts_for_each_bound)
{
    uint32_t unreadable;
    struct sg_bounds bounds = find("@students reserve=2G\nalice limit=5G reserve=4G\n* limit=1G\n", 1001, &unreadable);
    assert_int_equal(bounds.limit.bytes, 5 * GIB);
    assert_int_equal(bounds.reserve.bytes, 2 * GIB);
    bounds = find("alice limit=5%\n* reserve=8G", 1001, &unreadable);
    assert_int_equal(bounds.limit.percent_milli, 5000);
    assert_int_equal(bounds.reserve.bytes, 8 * GIB);
    assert_int_equal(unreadable, 0);
}

PLAIN_TEST(blanks_comments_and_ends_of_lines_are_as_they_may_be)
{
    assert_limit("", 1001, 0);
    assert_limit("\n\n# alice limit=1G\n  \t\n", 1001, 0);
    assert_limit("  alice\t limit=3G   # limit=1G\r\n", 1001, 3);
    assert_limit("alice limit=3G\r\n* limit=1G\r\n", 1001, 3);
}

PLAIN_TEST(line_that_cannot_be_read_has_no_effect_and_is_told)
{
    static const char *const lines[] = {"alice",
                                        "alice limit",
                                        "alice limit=",
                                        "alice limit=big",
                                        "alice limit=2G x",
                                        "alice speed=2G",
                                        "alice limit = 2G",
                                        "alice limit=2G=",
                                        "alice limit=101%",
                                        "limit=2G",
                                        "alice LIMIT=2G",
                                        "alice limit=11111111111111111111111111111111111111111111G"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        char file[160];
        uint32_t unreadable;
        snprintf(file, sizeof file, "# first\n%s\nalice limit=7G\n", lines[i]);
        struct sg_bounds bounds = find(file, 1001, &unreadable);
        if (unreadable != 2 || bounds.limit.bytes != 7 * GIB)
            fail_msg("\"%s\": line %u, %llu bytes", lines[i], unreadable, (unsigned long long)bounds.limit.bytes);
    }
}

PLAIN_TEST(bound_of_none_is_no_bound_and_0_is_told)
{
    static const struct {
        const char *word;
        uint32_t zero_line;
    } words[] = {{"none", 0}, {"0", 2}, {"0G", 2}, {"0%", 2}, {"0.0", 2}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char file[160];
        uint32_t unreadable;
        snprintf(file, sizeof file, "# first\nalice limit=%s reserve=%s\n* limit=7G reserve=7G\n", words[i].word,
                 words[i].word);
        for (uint32_t user = 1001; user <= 1002; user++) {
            struct sg_bounds bounds = find(file, user, &unreadable);
            assert_int_equal(unreadable, 0);
            assert_int_equal(bounds.zero_line, words[i].zero_line);
            assert_int_equal(bounds.limit.is_set, user != 1001);
            assert_int_equal(bounds.reserve.is_set, user != 1001);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_name_users_groups_and_everybody_but_root),
        cmocka_unit_test(first_line_that_names_the_user_counts_for_each_bound),
        cmocka_unit_test(blanks_comments_and_ends_of_lines_are_as_they_may_be),
        cmocka_unit_test(line_that_cannot_be_read_has_no_effect_and_is_told),
        cmocka_unit_test(bound_of_none_is_no_bound_and_0_is_told),
    };
    return cmocka_run_group_tests_name("bounds", tests, NULL, NULL);
}
