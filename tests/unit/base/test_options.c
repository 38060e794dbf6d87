/*
 * test_options.c - what the environment variables may say (libsparkguard(7), ENVIRONMENT), and what is made of it.
 */
#include "fixture.h"

#include "base/atomics.h"
#include "base/options.h"

#include "base/compiler.h"

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void expect_bytes(const char *text, uint64_t bytes)
{
    struct sg_size size = {0};
    if (sg_parse_size(text, &size) != 0 || !size.is_set || size.percent_milli != 0 || size.bytes != bytes)
        fail_msg("\"%s\" is not read as %llu bytes but %llu", text, (unsigned long long)bytes,
                 (unsigned long long)size.bytes);
}

PLAIN_TEST(sizes_in_powers_of_1024)
{
    const struct {
        const char *letter;
        uint64_t factor;
    } units[] = {{"K", KIB}, {"M", MIB}, {"G", GIB}, {"T", GIB * 1024}, {"P", GIB * MIB}};
    const char *const endings[] = {"%s", "%si", "%siB", "%siB"};
    for (size_t u = 0; u < SG_ARRAY_LENGTH(units); u++)
        for (size_t e = 0; e < SG_ARRAY_LENGTH(endings); e++) {
            char text[16] = "12", lower[16];
            strcat(text, units[u].letter);
            strcat(text, endings[e] + 2);
            for (size_t i = 0; i < sizeof text; i++)
                lower[i] = (char)(text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 0x20 : text[i]);
            expect_bytes(text, 12 * units[u].factor);
            expect_bytes(lower, 12 * units[u].factor);
        }
    expect_bytes("64KiB", 65536);
    expect_bytes("1.5G", GIB + GIB / 2);
    expect_bytes("0.5M", MIB / 2);
    expect_bytes(".5M", MIB / 2);
    expect_bytes("2.M", 2 * MIB);
    expect_bytes("1.0009K", 1024); /* three decimals count */
}

PLAIN_TEST(sizes_in_powers_of_1000)
{
    expect_bytes("12KB", 12000);
    expect_bytes("12MB", 12000000);
    expect_bytes("12GB", UINT64_C(12000000000));
    expect_bytes("12gb", UINT64_C(12000000000));
    expect_bytes("2TB", UINT64_C(2000000000000));
    expect_bytes("1PB", UINT64_C(1000000000000000));
    expect_bytes("1.5KB", 1500);
}

PLAIN_TEST(sizes_in_bytes)
{
    expect_bytes("0", 0);
    expect_bytes("4096", 4096);
    expect_bytes("4096B", 4096);
    expect_bytes("4096b", 4096);
    expect_bytes("1.0", 1);
    expect_bytes("18446744073709551", UINT64_C(18446744073709551)); /* with thousandths it just fits */
    expect_bytes("15000P", UINT64_C(15000) << 50);
}

PLAIN_TEST(sizes_that_cannot_be_read)
{
    const char *const bad[] = {"",
                               " ",
                               "G",
                               "12X",
                               "12GG",
                               "12GiBB",
                               "12 G",
                               " 12G",
                               "12G ",
                               "-1",
                               "+1",
                               "1e9",
                               "0x10",
                               "1,5G",
                               "1..5G",
                               "1.5",
                               "1.5B",
                               "12iB",
                               "12i",
                               "12%%",
                               "101%",
                               "-1%",
                               "100.001%",
                               "12GBi",
                               "12kib/s",
                               "99999999999999999999",
                               "99999999999999999999G",
                               "20000000P",
                               ".",
                               ".G",
                               "%",
                               "infinity",
                               "\xd9\xa1\xd9\xa2", /* 12, in other digits */
                               "max"};
    for (size_t i = 0; i < SG_ARRAY_LENGTH(bad); i++) {
        struct sg_size size = {0};
        if (sg_parse_size(bad[i], &size) != -EINVAL)
            fail_msg("\"%s\" is read as a size", bad[i]);
        assert_false(size.is_set);
    }
}

PLAIN_TEST(percentages)
{
    struct sg_size size;
    assert_int_equal(sg_parse_size("10%", &size), 0);
    assert_true(size.is_set && size.percent_milli == 10000);
    assert_int_equal(sg_size_of(size, 1000), 100);
    assert_int_equal(sg_parse_size("0.001%", &size), 0);
    assert_int_equal(sg_size_of(size, 100000), 1);
    assert_int_equal(sg_parse_size("100%", &size), 0);
    assert_true(sg_size_of(size, UINT64_MAX) == UINT64_MAX);
    assert_true(sg_size_of(size, 123456789) == 123456789);
    assert_int_equal(sg_parse_size("0%", &size), 0);
    assert_true(size.is_set && sg_size_of(size, GIB) == 0);
    assert_int_equal(sg_parse_size("12.5%", &size), 0);
    assert_int_equal(sg_size_of(size, 64 * GIB), 8 * GIB);
}

PLAIN_TEST(durations)
{
    const struct {
        const char *text;
        uint64_t nanoseconds;
    } good[] = {{"0", 0},
                {"30", UINT64_C(30000000000)},
                {"0.5", 500000000},
                {"1.001", 1001000000},
                {".25", 250000000},
                {"90s", UINT64_C(90000000000)},
                {"5m", UINT64_C(300000000000)},
                {"5min", UINT64_C(300000000000)},
                {"1.5h", UINT64_C(5400000000000)},
                {"none", 0}};
    const char *const bad[] = {"",     "-1",    "1sec",           "s", "5 m", "1M", "2d", "None", "1 ",
                               "soon", "1.2.3", "99999999999999", "."};
    uint64_t nanoseconds;
    for (size_t i = 0; i < SG_ARRAY_LENGTH(good); i++) {
        assert_int_equal(sg_parse_time(good[i].text, &nanoseconds), 0);
        assert_int_equal(nanoseconds, good[i].nanoseconds);
    }
    for (size_t i = 0; i < SG_ARRAY_LENGTH(bad); i++)
        assert_int_equal(sg_parse_time(bad[i], &nanoseconds), -EINVAL);
}

PLAIN_TEST(numbers)
{
    int64_t number;
    assert_int_equal(sg_parse_number("-17", &number), 0);
    assert_int_equal(number, -17);
    assert_int_equal(sg_parse_number("500", &number), 0);
    assert_int_equal(number, 500);
    const char *const bad[] = {"", "-", "1.0", "1.5", "--1", "+1", "1k", " 1", "9223372036854775808"};
    for (size_t i = 0; i < SG_ARRAY_LENGTH(bad); i++)
        assert_int_equal(sg_parse_number(bad[i], &number), -EINVAL);
}

PLAIN_TEST(choices)
{
    assert_int_equal(sg_parse_choice("off", "off|warn|term"), 0);
    assert_int_equal(sg_parse_choice("term", "off|warn|term"), 2);
    const char *const bad[] = {"", "OFF", "of", "offf", "off|warn", "|", "warn "};
    for (size_t i = 0; i < SG_ARRAY_LENGTH(bad); i++)
        assert_int_equal(sg_parse_choice(bad[i], "off|warn|term"), -EINVAL);
}

PLAIN_TEST(job_names)
{
    char longest[65];
    memset(longest, 'x', sizeof longest);
    longest[63] = '\0';
    assert_true(sg_is_name(longest));
    longest[63] = 'x';
    longest[64] = '\0';
    assert_false(sg_is_name(longest));
    assert_true(sg_is_name("train-7b"));
    assert_true(sg_is_name("a b"));
    assert_true(sg_is_name("caf\xc3\xa9"));
    const char *const bad[] = {"", " a", "a ", "a/b", "a\nb", "\x7f", "a\tb"};
    for (size_t i = 0; i < SG_ARRAY_LENGTH(bad); i++)
        assert_false(sg_is_name(bad[i]));
}

PLAIN_TEST(values_of_each_option)
{
    char path[1100] = "/";
    const struct {
        enum sg_option option;
        const char *text;
        bool is_valid;
    } cases[] = {
        {SG_OPTION_RESERVE, "12G", true},
        {SG_OPTION_RESERVE, "8%", true},
        {SG_OPTION_RESERVE, "much", false},
        {SG_OPTION_LIMIT, "none", true},
        {SG_OPTION_LIMIT, "nonesuch", false},
        {SG_OPTION_LARGE, "1M", true},
        {SG_OPTION_LARGE, "1%", true},
        {SG_OPTION_WAIT, "0.5", true},
        {SG_OPTION_WAIT, "1d", false},
        {SG_OPTION_MODE, "observe", true},
        {SG_OPTION_MODE, "watch", false},
        {SG_OPTION_WATCHDOG, "warn", true},
        {SG_OPTION_OOM_SCORE_ADJ, "-1000", true},
        {SG_OPTION_OOM_SCORE_ADJ, "1000", true},
        {SG_OPTION_OOM_SCORE_ADJ, "1001", false},
        {SG_OPTION_OOM_SCORE_ADJ, "-1001", false},
        {SG_OPTION_DIR, "/dev/shm/x", true},
        {SG_OPTION_DIR, "x", false},
        {SG_OPTION_HISTORY, "off", true},
        {SG_OPTION_HISTORY, "on", false},
        {SG_OPTION_SYSTEM_ROOT, "off", false},
        {SG_OPTION_DISABLE, "1", true},
        {SG_OPTION_DISABLE, "yes", false},
        {SG_OPTION_JOB, "a/b", false},
    };
    for (size_t i = 0; i < SG_ARRAY_LENGTH(cases); i++)
        if (sg_is_valid(cases[i].option, cases[i].text) != cases[i].is_valid)
            fail_msg("%s=%s", sg_option_table[cases[i].option].variable, cases[i].text);
    memset(path + 1, 'x', 1022);
    assert_true(sg_is_valid(SG_OPTION_DIR, path));
    path[1023] = 'x';
    assert_false(sg_is_valid(SG_OPTION_DIR, path));
}

PLAIN_TEST(every_fallback_and_example_is_a_good_value)
{
    for (unsigned i = 0; i < SG_OPTION_COUNT; i++) {
        const struct sg_option_info *info = &sg_option_table[i];
        assert_true(info->fallback[0] == '\0' || sg_is_valid((enum sg_option)i, info->fallback));
        assert_true(info->kind == SG_KIND_CHOICE || sg_is_valid((enum sg_option)i, info->example));
    }
}

PLAIN_TEST(nearest_name)
{
    assert_int_equal(sg_option_nearest("SPARKGUARD_RESREVE"), SG_OPTION_RESERVE);
    assert_int_equal(sg_option_nearest("SPARKGUARD_LIMITS"), SG_OPTION_LIMIT);
    assert_int_equal(sg_option_nearest("SPARKGUARD_MEMORY"), SG_OPTION_LIMIT);
    assert_int_equal(sg_option_nearest("SPARKGUARD_MEMORY_LIMIT"), SG_OPTION_LIMIT);
    assert_int_equal(sg_option_nearest("SPARKGUARD_MEMNFO"), SG_OPTION_MEMINFO);
    assert_int_equal(sg_option_nearest("SPARKGUARD_reserve"), SG_OPTION_RESERVE);
    assert_int_equal(sg_option_nearest("SPARKGUARD_DEVICE_RESERV"), SG_OPTION_DEVICE_RESERVE);
    assert_int_equal(sg_option_nearest("SPARKGUARD_MEMINF"), SG_OPTION_MEMINFO);
    assert_int_equal(sg_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(sg_edit_distance("", "abc"), 3);
    assert_int_equal(sg_edit_distance("abc", "abc"), 0);
    char endless[200];
    memset(endless, 'x', sizeof endless);
    endless[199] = '\0';
    assert_int_equal(sg_edit_distance(endless, "abc"), 64);
}

PLAIN_TEST(sizes_for_people)
{
    const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {640, "640 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {1536, "1.5 KiB"},
        {1024 * 1024 - 1, "1.0 MiB"},
        {1024 * 1024 - 52, "1023.9 KiB"},
        {512 * MIB, "512.0 MiB"},
        {12 * GIB, "12.0 GiB"},
        {GIB * 1024 - 1, "1.0 TiB"},
        {UINT64_C(1) << 60, "1.0 EiB"},
        {UINT64_MAX, "16.0 EiB"},
    };
    for (size_t i = 0; i < SG_ARRAY_LENGTH(cases); i++) {
        char text[16];
        memset(text, '#', sizeof text);
        assert_int_equal(sg_format_size(text, cases[i].bytes), strlen(cases[i].text));
        assert_string_equal(text, cases[i].text);
    }
}

PLAIN_TEST(a_limit_that_suffices_reads_otherwise_than_the_one_that_did_not)
{
    const struct {
        uint64_t bytes, limit_bytes;
        const char *text;
    } cases[] = {
        {14 * GIB, 12 * GIB, "14.0 GiB"},         {1215 * MIB, 1200 * MIB, "1215 MiB"}, /* both would be 1.2 GiB */
        {1214 * MIB + 1, 1200 * MIB, "1215 MiB"}, {640 * KIB + 1, 640 * KIB, "640.1 KiB"},
        {64 * GIB + 1, 64 * GIB, "64.1 GiB"},     {3, 2, "3 B"},
    };
    for (size_t i = 0; i < SG_ARRAY_LENGTH(cases); i++) {
        char text[16];
        memset(text, '#', sizeof text);
        assert_int_equal(sg_format_limit_up(text, cases[i].bytes, cases[i].limit_bytes), strlen(cases[i].text));
        assert_string_equal(text, cases[i].text);
    }
}

/* ---- the environment --------------------------------------------------------------------------------------------- */

/* Reads the environment in this child with standard error going into a file; what was said is in `said`. */
static char said[4096];

static void read_environment(char *const *environment)
{
    fixture_say = dup(2);
    int fd = open(in_folder("stderr"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && dup2(fd, 2) == 2);
    sg_options_read(environment);
    ssize_t length = pread(fd, said, sizeof said - 1, 0);
    CHECK(length >= 0);
    said[length] = '\0';
}

#define READ_ENVIRONMENT(...) \
    do { \
        static char entries[][256] = {__VA_ARGS__}; \
        static char *environment[SG_ARRAY_LENGTH(entries) + 1]; \
        for (size_t i = 0; i < SG_ARRAY_LENGTH(entries); i++) \
            environment[i] = entries[i]; \
        read_environment(environment); \
    } while (0)

CHILD_TEST(empty_environment_leaves_the_defaults)
{
    READ_ENVIRONMENT("HOME=/root");
    char dir[64], own[16];
    (void)snprintf(dir, sizeof dir, "/dev/shm/sparkguard-%u", (unsigned)geteuid());
    CHECK_TEXT(sg_options.dir, dir);
    CHECK_TEXT(sg_options.system_root, "");
    (void)snprintf(own, sizeof own, "-%d", (int)getpid());
    CHECK_TEXT(strchr(sg_options.job, '-'), own); /* made up: the time and our number */
    CHECK(!sg_options.reserve.is_set && !sg_options.limit.is_set && !sg_options.floor.is_set);
    CHECK(!sg_options.device_reserve.is_set);
    CHECK_EQUAL(sg_options.large_bytes, 2 * MIB + 1);
    CHECK_EQUAL(sg_options.wait_ns, 0);
    CHECK(!sg_options.mode_observe && !sg_options.report_at_exit && !sg_options.is_disabled);
    CHECK_EQUAL(sg_options.unified, SG_UNIFIED_AUTO);
    CHECK(sg_options.oom_score_adj == INT64_MIN);
    CHECK_EQUAL(sg_options.first_pid, 0);
    CHECK_TEXT(said, "");
}

CHILD_TEST(every_variable_reaches_its_option)
{
    READ_ENVIRONMENT("SPARKGUARD_RESERVE=12G", "SPARKGUARD_LIMIT=50%", "SPARKGUARD_WAIT=1.5",
                     "SPARKGUARD_DEVICE_RESERVE=1G", "SPARKGUARD_LARGE=3M", "SPARKGUARD_FLOOR=3G",
                     "SPARKGUARD_WATCHDOG=off", "SPARKGUARD_MODE=observe", "SPARKGUARD_UNIFIED=off",
                     "SPARKGUARD_MEMINFO=raw", "SPARKGUARD_JOB=train 7b", "SPARKGUARD_REPORT=exit",
                     "SPARKGUARD_OOM_SCORE_ADJ=-5", "SPARKGUARD_DIR=/run/x", "SPARKGUARD_HISTORY=off",
                     "SPARKGUARD_SYSTEM_ROOT=/run/fake", "SPARKGUARD_DISABLE=1", "SPARKGUARD_JOB_FIRST=4711");
    CHECK_EQUAL(sg_options.reserve.bytes, 12 * GIB);
    CHECK_EQUAL(sg_options.limit.percent_milli, 50000);
    CHECK_EQUAL(sg_options.wait_ns, 1500000000);
    CHECK_EQUAL(sg_options.device_reserve.bytes, GIB);
    CHECK_EQUAL(sg_options.large_bytes, 3 * MIB + 1);
    CHECK_EQUAL(sg_options.floor.bytes, 3 * GIB);
    CHECK_EQUAL(sg_options.mode_observe, 1);
    CHECK_EQUAL(sg_options.unified, SG_UNIFIED_OFF);
    CHECK_TEXT(sg_options.job, "train 7b");
    CHECK_EQUAL(sg_options.report_at_exit, 1);
    CHECK_EQUAL(sg_options.oom_score_adj, -5);
    CHECK_TEXT(sg_options.dir, "/run/x");
    CHECK_TEXT(sg_options.system_root, "/run/fake");
    CHECK_EQUAL(sg_options.is_disabled, 1);
    CHECK_EQUAL(sg_options.first_pid, 4711);
    CHECK_TEXT(said, "");
}

CHILD_TEST(a_value_that_cannot_be_read_is_said_and_the_default_used)
{
    READ_ENVIRONMENT("SPARKGUARD_RESERVE=lots", "SPARKGUARD_LIMIT=", "SPARKGUARD_WAIT=-1", "SPARKGUARD_LARGE=5Q");
    CHECK(!sg_options.reserve.is_set && !sg_options.limit.is_set);
    CHECK_EQUAL(sg_options.large_bytes, 2 * MIB + 1);
    CHECK_TEXT(said, "sparkguard: SPARKGUARD_RESERVE=lots cannot be read; for example 12G; using 8%\n"
                     "sparkguard: SPARKGUARD_WAIT=-1 cannot be read; for example 5m; using 0\n"
                     "sparkguard: SPARKGUARD_LARGE=5Q cannot be read; for example 2M; using 2M\n");
}

CHILD_TEST(an_unknown_variable_is_said_with_the_nearest_name)
{
    READ_ENVIRONMENT("SPARKGUARD_RESREVE=12G", "SPARKGUARDX=1", "XSPARKGUARD_RESERV=1");
    CHECK(!sg_options.reserve.is_set);
    CHECK_TEXT(said, "sparkguard: unknown variable SPARKGUARD_RESREVE; did you mean SPARKGUARD_RESERVE?\n");
}

CHILD_TEST(a_sweep_keeps_each_record)
{
    READ_ENVIRONMENT("SPARKGUARD_RECORD_ALL=1");
    CHECK_TEXT(said, "");
    CHECK_EQUAL(sg_options.is_record_kept, 1);
}

CHILD_TEST(only_the_first_process_of_a_job_complains)
{
    READ_ENVIRONMENT("SPARKGUARD_RESREVE=12G", "SPARKGUARD_LIMIT=lots", "SPARKGUARD_JOB_FIRST=1");
    CHECK_TEXT(said, "");
    CHECK(!sg_options.limit.is_set);
}

CHILD_TEST(the_environment_is_read_once)
{
    sg_options_read(NULL);
    CHECK_TEXT(sg_options.dir, "");
    READ_ENVIRONMENT("SPARKGUARD_RESERVE=1G");
    READ_ENVIRONMENT("SPARKGUARD_RESERVE=2G");
    CHECK_EQUAL(sg_options.reserve.bytes, GIB);
}

CHILD_TEST(the_root_as_system_root_is_no_prefix)
{
    READ_ENVIRONMENT("SPARKGUARD_SYSTEM_ROOT=/");
    CHECK_TEXT(sg_options.system_root, "");
}

/* So many that another thread finds the first one reading, and so few that it need not wait too long. */
#ifdef __SANITIZE_THREAD__
enum { ENTRIES = 100000 };
#else
enum { ENTRIES = 2000000 };
#endif
static char *many[ENTRIES + 2];
static uint32_t is_started;

/* The constructor of another library has started a thread; the first thread reads meanwhile. */
static void *use_options(void *ordered)
{
    sg_store(&is_started, 1u);
    while (*(bool *)ordered && !sg_options_are_read())
        ;
    sg_options_read(many);
    CHECK(sg_options.limit.is_set);
    return NULL;
}

static void read_beside_a_thread(bool is_ordered)
{
    pthread_t thread;
    static char nothing[] = "X=1", limit[] = "SPARKGUARD_LIMIT=3G";
    for (size_t i = 0; i < ENTRIES; i++)
        many[i] = nothing;
    many[ENTRIES] = limit;
    CHECK(pthread_create(&thread, NULL, use_options, &is_ordered) == 0);
    while (sg_load(&is_started) == 0)
        ;
    sg_options_read(many);
    CHECK(sg_options.limit.is_set);
    CHECK(pthread_join(thread, NULL) == 0);
}

CHILD_TEST(options_that_are_read_are_all_there)
{
    read_beside_a_thread(true);
}

CHILD_TEST(who_reads_beside_another_thread_finds_all)
{
    read_beside_a_thread(false);
}

static void *fork_while_reading(void *unused)
{
    (void)unused;
    while (sg_load(&is_started) == 0)
        ;
    (void)usleep(2000); /* pace: the other thread reads ENTRIES meanwhile; nothing tells that it has begun */
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        sg_options_read(many);
        _exit(sg_options.limit.is_set ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return NULL;
}

CHILD_TEST(child_of_a_process_that_was_reading_reads_itself)
{
    pthread_t thread;
    static char nothing[] = "X=1", limit[] = "SPARKGUARD_LIMIT=3G";
    for (size_t i = 0; i < ENTRIES; i++)
        many[i] = nothing;
    many[ENTRIES] = limit;
    CHECK(pthread_create(&thread, NULL, fork_while_reading, NULL) == 0);
    sg_store(&is_started, 1u);
    sg_options_read(many);
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_in_powers_of_1024),
        cmocka_unit_test(sizes_in_powers_of_1000),
        cmocka_unit_test(sizes_in_bytes),
        cmocka_unit_test(sizes_that_cannot_be_read),
        cmocka_unit_test(percentages),
        cmocka_unit_test(durations),
        cmocka_unit_test(numbers),
        cmocka_unit_test(choices),
        cmocka_unit_test(job_names),
        cmocka_unit_test(a_limit_that_suffices_reads_otherwise_than_the_one_that_did_not),
        cmocka_unit_test(values_of_each_option),
        cmocka_unit_test(every_fallback_and_example_is_a_good_value),
        cmocka_unit_test(nearest_name),
        cmocka_unit_test(sizes_for_people),
        cmocka_unit_test(empty_environment_leaves_the_defaults),
        cmocka_unit_test(every_variable_reaches_its_option),
        cmocka_unit_test(a_value_that_cannot_be_read_is_said_and_the_default_used),
        cmocka_unit_test(an_unknown_variable_is_said_with_the_nearest_name),
        cmocka_unit_test(a_sweep_keeps_each_record),
        cmocka_unit_test(only_the_first_process_of_a_job_complains),
        cmocka_unit_test(the_environment_is_read_once),
        cmocka_unit_test(the_root_as_system_root_is_no_prefix),
        cmocka_unit_test(options_that_are_read_are_all_there),
        cmocka_unit_test(who_reads_beside_another_thread_finds_all),
        cmocka_unit_test(child_of_a_process_that_was_reading_reads_itself),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
