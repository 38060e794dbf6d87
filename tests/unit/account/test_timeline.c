/*
 * test_timeline.c - the time line: that it stays of one size and forgets neither the least usable nor the most live,
 * and the life of its file.
 */
#include "fixture.h"

#include "base/atomics.h"
#include "account/ledger.h"
#include "base/options.h"
#include "shared/segment.h"
#include "account/timeline.h"
#include "model/timeline_reader.h"
#include "watch/lifetime.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define MS_NS INT64_C(1000000)
#define SECOND_NS (1000 * MS_NS)
#define START_NS (INT64_C(1795180000) * SECOND_NS)

static struct sg_timeline line = {.interval_ns = 10000000};

static void add(int64_t time_ns, uint64_t usable, uint64_t heap, uint64_t device)
{
    struct sg_sample sample = {.time_ns = time_ns, .usable_bytes = usable, .reserve_bytes = usable / 8};
    sample.live_bytes[SG_DOMAIN_HEAP] = heap;
    sample.live_bytes[SG_DOMAIN_DEVICE] = device;
    sg_timeline_add(&line, &sample);
}

static uint64_t live_of(const struct sg_sample *sample)
{
    return sample->live_bytes[SG_DOMAIN_HEAP] + sample->live_bytes[SG_DOMAIN_DEVICE];
}

/* ---- thinning ---------------------------------------------------------------------------------------------------- */

CHILD_TEST(samples_closer_than_the_interval_are_one)
{
    add(START_NS, 80, 5, 5);
    add(START_NS + 5 * MS_NS, 72, 1, 8);
    add(START_NS + 9 * MS_NS, 90, 4, 7);
    add(START_NS + 10 * MS_NS, 100, 1, 1);
    CHECK_EQUAL(line.sample_count, 2);
    CHECK(line.sample[0].time_ns == START_NS && line.sample[1].time_ns == START_NS + 10 * MS_NS);
    CHECK(line.sample[0].usable_bytes == 72 && line.sample[0].reserve_bytes == 9);
    CHECK(line.sample[0].live_bytes[SG_DOMAIN_HEAP] == 4 && line.sample[0].live_bytes[SG_DOMAIN_DEVICE] == 7);
    CHECK(line.sample[1].usable_bytes == 100 && live_of(&line.sample[1]) == 2);
}

CHILD_TEST(a_month_keeps_its_extremes_in_the_same_room)
{
    const int64_t seconds = INT64_C(31) * 86400, worst = seconds / 3;
    for (int64_t i = 0; i < seconds; i++)
        add(START_NS + i * SECOND_NS, i == worst ? 7 : 1000 + (uint64_t)i % 10, 100, i == worst + 1 ? 5000 : 100);
    CHECK(line.sample_count <= SG_SAMPLE_CAPACITY && line.sample_count > SG_SAMPLE_CAPACITY / 2);
    CHECK(line.sample[0].time_ns == START_NS);
    int troughs = 0, peaks = 0;
    for (uint32_t i = 0; i < line.sample_count; i++) {
        const struct sg_sample *sample = &line.sample[i];
        int64_t until = i + 1 < line.sample_count ? sample[1].time_ns : START_NS + seconds * SECOND_NS;
        CHECK(sample->time_ns < until && until - sample->time_ns < 2 * 7200 * SECOND_NS);
        bool is_around = sample->time_ns <= START_NS + (worst + 1) * SECOND_NS && until > START_NS + worst * SECOND_NS;
        CHECK(is_around || (sample->usable_bytes == 1000 && live_of(sample) == 200));
        troughs += sample->usable_bytes == 7;
        peaks += live_of(sample) == 5100;
    }
    CHECK(troughs == 1 && peaks == 1);
}

CHILD_TEST(a_clock_set_back_makes_no_younger_sample)
{
    add(START_NS, 80, 5, 5);
    add(START_NS - 3600 * SECOND_NS, 30, 50, 5);
    CHECK_EQUAL(line.sample_count, 1);
    CHECK(line.sample[0].time_ns == START_NS && line.sample[0].usable_bytes == 30 && live_of(&line.sample[0]) == 55);
}

CHILD_TEST(a_count_that_somebody_else_wrote_is_not_followed)
{
    line.sample_count = SG_SAMPLE_CAPACITY + 1;
    add(START_NS, 80, 5, 5);
    CHECK_EQUAL(line.sample_count, SG_SAMPLE_CAPACITY + 1);
}

CHILD_TEST(a_copy_of_an_empty_line_is_empty)
{
    static struct sg_timeline copy;
    sg_timeline_copy(&copy, &line);
    CHECK_EQUAL(copy.sample_count, 0);
    CHECK_EQUAL(copy.interval_ns, line.interval_ns);
}

/* ---- read meanwhile ---------------------------------------------------------------------------------------------- */

static void write_until_killed(struct sg_timeline *shared, unsigned pause_us)
{
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0); /* with a test that fails */
    for (int64_t now = 1;; now++) {
        struct sg_sample sample = {.time_ns = now, .usable_bytes = 1};
        for (int i = 0; i < SG_DOMAIN_CAPACITY; i++)
            sample.live_bytes[i] = (uint64_t)now;
        shared->interval_ns = now % 4 == 0 ? 2 : 1; /* some are merged with the last */
        bool is_full = shared->sample_count == SG_SAMPLE_CAPACITY;
        sg_timeline_add(shared, &sample);
        if (is_full && pause_us > 0)
            usleep(pause_us); /* pace: else it does nothing but thin */
    }
}

/* A file with a time line in it, which a child adds to until it is killed: samples of one nanosecond, of which all
 * figures are the time. So what they are merged to has in its live bytes when it ended, and begins where the one before
 * ended. */
static pid_t begin_writer(const char *path, unsigned pause_us)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, sizeof line) == 0);
    struct sg_timeline *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(shared != MAP_FAILED && close(fd) == 0);
    shared->version = SG_TIMELINE_VERSION;
    shared->magic = SG_TIMELINE_MAGIC;
    pid_t writer = fork();
    if (writer == 0)
        write_until_killed(shared, pause_us);
    CHECK(writer > 0 && munmap(shared, sizeof *shared) == 0);
    return writer;
}

static size_t check_samples(const char *segment)
{
    char why[MODEL_WHY_CAPACITY];
    struct model_timeline read = {0};
    if (model_timeline_read(&read, segment, why) != MODEL_GOOD)
        return 0;
    for (size_t i = 0; i < read.count; i++) {
        const struct sg_sample *sample = &read.samples[i];
        for (int domain = 0; domain < SG_DOMAIN_CAPACITY; domain++)
            CHECK(sample->live_bytes[domain] == sample->live_bytes[0]);
        CHECK(sample->live_bytes[0] >= (uint64_t)sample->time_ns);
        CHECK(i + 1 == read.count || (uint64_t)sample[1].time_ns <= sample->live_bytes[0] + 1); /* none is missing */
    }
    size_t count = read.count;
    free(read.samples);
    return count;
}

static void end_writer(pid_t writer)
{
    CHECK(kill(writer, SIGKILL) == 0 && waitpid(writer, NULL, 0) == writer);
}

CHILD_TEST(a_reader_sees_whole_samples_while_they_are_thinned)
{
    char segment[1200];
    (void)snprintf(segment, sizeof segment, "%s", in_folder("1-1" SG_SEGMENT_SUFFIX));
    pid_t writer = begin_writer(in_folder("1-1" SG_TIMELINE_SUFFIX), 500);
    for (int i = 0; i < 2000; i++)
        (void)check_samples(segment);
    end_writer(writer);
    CHECK(check_samples(segment) > SG_SAMPLE_CAPACITY / 2 - 2);
}

CHILD_TEST(a_kill_at_any_instruction_leaves_whole_samples)
{
    char segment[1200];
    (void)snprintf(segment, sizeof segment, "%s", in_folder("1-1" SG_SEGMENT_SUFFIX));
    for (unsigned i = 0; i < 100; i++) {
        pid_t writer = begin_writer(in_folder("1-1" SG_TIMELINE_SUFFIX), 0);
        usleep(1000 + i * 7); /* pace: the writer runs until any instant */
        end_writer(writer);
        (void)check_samples(segment);
    }
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static void attach(void)
{
    strcpy(sg_options.dir, in_folder("dir"));
    sg_segment_attach();
    CHECK(sg_segment_is_shared());
    sg_own->machine =
        (struct sg_machine){.time_ns = START_NS, .usable_bytes = 90, .reserve_bytes = 8, .floor_bytes = 2};
}

/* The path of this process's time line. */
static const char *path_of_line(void)
{
    static char path[1200];
    (void)snprintf(path, sizeof path, "%s", sg_segment_path());
    strcpy(strrchr(path, '.'), SG_TIMELINE_SUFFIX);
    return path;
}

static struct sg_timeline read_line(void)
{
    struct sg_timeline copy = {0};
    struct stat info;
    int fd = open(path_of_line(), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && fstat(fd, &info) == 0);
    CHECK_EQUAL(info.st_size, sizeof copy);
    CHECK_EQUAL(info.st_mode & 07777, 0600);
    CHECK(info.st_blocks * 512 >= info.st_size); /* really there */
    CHECK(read(fd, &copy, sizeof copy) == (ssize_t)sizeof copy && close(fd) == 0);
    return copy;
}

CHILD_TEST(there_is_none_until_it_begins)
{
    attach();
    sg_timeline_sample();
    CHECK(access(path_of_line(), F_OK) != 0);
}

CHILD_TEST(it_begins_with_what_was_seen_last)
{
    (void)umask(0);
    attach();
    sg_ledger_charge(SG_DOMAIN_DEVICE, 40);
    sg_timeline_begin();
    sg_timeline_begin();
    struct sg_timeline seen = read_line();
    CHECK(seen.magic == SG_TIMELINE_MAGIC && seen.version == SG_TIMELINE_VERSION && seen.sample_count == 1);
    CHECK(seen.sample[0].time_ns == START_NS && seen.sample[0].usable_bytes == 90);
    CHECK(seen.sample[0].reserve_bytes == 8 && seen.sample[0].floor_bytes == 2);
    CHECK(seen.sample[0].live_bytes[SG_DOMAIN_DEVICE] == 40 && seen.sample[0].live_bytes[SG_DOMAIN_HEAP] == 0);
    sg_own->machine.time_ns += SECOND_NS;
    sg_timeline_sample();
    CHECK_EQUAL(read_line().sample_count, 2);
}

CHILD_TEST(a_directory_without_room_is_told_once_and_nothing_breaks)
{
    attach();
    CHECK(close(open(path_of_line(), O_WRONLY | O_CREAT | O_EXCL, 0600)) == 0); /* in the way */
    sg_timeline_begin();
    sg_timeline_begin();
    sg_timeline_sample();
    CHECK_EQUAL(sg_own->event_count, 1);
    CHECK(strstr(sg_own->event[0].what, "no time line") != NULL);
}

CHILD_TEST(it_goes_where_nothing_is_to_be_left)
{
    attach();
    sg_timeline_begin();
    (void)read_line();
    sg_lifetime_end(SG_STATE_EXITED, 0);
    CHECK(access(path_of_line(), F_OK) != 0);
    sg_timeline_sample();
}

CHILD_TEST(a_child_has_none_of_its_parents)
{
    attach();
    sg_timeline_begin();
    CHECK(sg_segment_atfork_child());
    sg_timeline_atfork_child();
    attach();
    sg_timeline_sample();
    CHECK(access(path_of_line(), F_OK) != 0);
    sg_timeline_begin();
    CHECK_EQUAL(read_line().sample_count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_closer_than_the_interval_are_one),
        cmocka_unit_test(a_month_keeps_its_extremes_in_the_same_room),
        cmocka_unit_test(a_clock_set_back_makes_no_younger_sample),
        cmocka_unit_test(a_count_that_somebody_else_wrote_is_not_followed),
        cmocka_unit_test(a_copy_of_an_empty_line_is_empty),
        cmocka_unit_test(a_reader_sees_whole_samples_while_they_are_thinned),
        cmocka_unit_test(a_kill_at_any_instruction_leaves_whole_samples),
        cmocka_unit_test(there_is_none_until_it_begins),
        cmocka_unit_test(it_begins_with_what_was_seen_last),
        cmocka_unit_test(a_directory_without_room_is_told_once_and_nothing_breaks),
        cmocka_unit_test(it_goes_where_nothing_is_to_be_left),
        cmocka_unit_test(a_child_has_none_of_its_parents),
    };
    return cmocka_run_group_tests_name("timeline", tests, NULL, NULL);
}
