/*
 * test_segment.c - the file in SPARKGUARD_DIR: what it looks like from outside, that it lives exactly as long as its
 * owner, and what the reaper leaves.
 */
#include "fixture.h"

#include "base/atomics.h"
#include "account/ledger.h"
#include "base/options.h"
#include "shared/segment.h"
#include "account/thread_record.h"
#include "watch/lifetime.h"
#include "shared/retention.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* ---- seen from outside ------------------------------------------------------------------------------------------- */

static void use_folder(const char *name)
{
    strcpy(sg_options.dir, in_folder(name));
    strcpy(sg_options.job, "unit");
}

/* The number of segments in the directory, and the path of the last one found. */
static int list_segments(char *path, size_t room)
{
    int count = 0;
    DIR *directory = opendir(sg_options.dir);
    if (directory == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot == NULL || strcmp(dot, SG_SEGMENT_SUFFIX) != 0)
            continue;
        if (path != NULL)
            (void)snprintf(path, room, "%s/%s", sg_options.dir, entry->d_name);
        count++;
    }
    (void)closedir(directory);
    return count;
}

static int count_segments(void)
{
    return list_segments(NULL, 0);
}

/* Opens the only segment there is. */
static int open_segment(void)
{
    char path[1600];
    CHECK_EQUAL(list_segments(path, sizeof path), 1);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static const struct sg_segment *read_segment(int fd, struct stat *info)
{
    static union {
        struct sg_segment segment;
        char bytes[SG_SEGMENT_MAPPING_BYTES];
    } copy;
    memset(&copy, 0, sizeof copy);
    CHECK(fstat(fd, info) == 0);
    CHECK(pread(fd, &copy, sizeof copy, 0) == info->st_size);
    return &copy.segment;
}

static bool is_alive(int fd)
{
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
        CHECK(flock(fd, LOCK_UN) == 0);
        return false;
    }
    CHECK_EQUAL(errno, EWOULDBLOCK);
    return true;
}

CHILD_TEST(attach_makes_a_private_file_that_says_who_we_are)
{
    struct stat info;
    (void)umask(0);
    use_folder("dir");
    CHECK(!sg_segment_is_shared());
    sg_segment_attach();
    CHECK(sg_segment_is_shared() && sg_segment_is_own());
    CHECK(stat(sg_options.dir, &info) == 0);
    CHECK_EQUAL(info.st_mode & 07777, 0700);
    const struct sg_segment *segment = read_segment(open_segment(), &info);
    CHECK_EQUAL(info.st_mode & 07777, 0600);
    CHECK(segment->slot.magic == SG_ABI_MAGIC);
    CHECK_EQUAL(segment->slot.abi_version, SG_ABI_VERSION);
    CHECK_EQUAL(segment->slot.pid, getpid());
    CHECK_EQUAL(segment->slot.state, SG_STATE_RUNNING);
    CHECK_EQUAL(segment->slot.flags, SG_SLOT_GUARDING);
    CHECK(segment->slot.job_hash == sg_job_hash("unit", getuid()));
    CHECK(segment->slot.start_ticks > 0);
    CHECK_EQUAL(segment->segment_bytes, info.st_size);
    CHECK(segment->record_capacity == SG_RECORD_FIRST && info.st_size >= (off_t)SG_SEGMENT_BYTES(SG_RECORD_FIRST));
    CHECK(info.st_blocks * 512 >= info.st_size); /* really allocated */
    CHECK_EQUAL(segment->parent_pid, getppid());
    CHECK_EQUAL(segment->uid, getuid());
    CHECK_EQUAL(segment->exit_code, -1);
    CHECK_EQUAL(segment->signal, -1);
    CHECK_EQUAL(segment->ended_time_ns, 0);
    CHECK_TEXT(segment->job, "unit");
    CHECK_TEXT(segment->library_version, SG_VERSION_TEXT);
    CHECK(strstr(segment->command, "test_segment") != NULL);
    CHECK(segment->device[0].total_bytes == SG_UNKNOWN);
}

CHILD_TEST(attach_keeps_what_was_counted_before_and_after)
{
    struct stat info;
    use_folder("dir");
    sg_ledger_charge(SG_DOMAIN_MAPPED, 1000);
    sg_thread_enter();
    struct sg_record *record = sg_self.record;
    sg_ledger_grant_credit(record, 500);
    sg_segment_attach();
    sg_segment_attach();
    CHECK(sg_self.record == record);
    CHECK_EQUAL(record->credit_bytes, 500);
    sg_ledger_charge(SG_DOMAIN_DEVICE, 70);
    const struct sg_segment *segment = read_segment(open_segment(), &info);
    CHECK_EQUAL(segment->slot.granted_bytes, 1570);
    CHECK_EQUAL(segment->domain[SG_DOMAIN_MAPPED].granted_bytes, 1000);
    CHECK_EQUAL(segment->record[1].credit_bytes, 500);
    CHECK_EQUAL(segment->record_used, 2);
}

CHILD_TEST(attach_leaves_no_descriptor_and_no_errno)
{
    use_folder("dir");
    int lowest = dup(0);
    CHECK(lowest >= 0 && close(lowest) == 0);
    errno = 99;
    sg_segment_attach();
    CHECK_EQUAL(errno, 99);
    CHECK(sg_segment_is_shared());
    CHECK_EQUAL(dup(0), lowest);
}

CHILD_TEST(observe_mode_is_in_the_flags)
{
    use_folder("dir");
    sg_options.mode_observe = 1;
    sg_segment_attach();
    CHECK_EQUAL(sg_own->slot.flags, SG_SLOT_GUARDING | SG_SLOT_OBSERVE);
}

/* ---- liveness ---------------------------------------------------------------------------------------------------- */

CHILD_TEST(the_lock_is_gone_with_the_owner_though_its_child_lives)
{
    int said[2], held[2];
    if (!has_dontfork())
        SKIP("MADV_DONTFORK has no effect here (qemu-user)");
    use_folder("dir");
    CHECK(pipe(said) == 0 && pipe(held) == 0);
    pid_t owner = fork();
    CHECK(owner >= 0);
    if (owner == 0) {
        pid_t heir;
        CHECK(close(held[1]) == 0);
        CHECK(dup2(said[1], 200) == 200 && dup2(held[0], 201) == 201);
        sg_segment_attach();
        for (int fd = 0; fd < 200; fd++) /* a daemon's close-all loop */
            if (fd != fixture_say)
                (void)close(fd);
        if ((heir = fork()) == 0) {
            char byte;
            (void)!read(201, &byte, 1); /* until the test ends */
            _exit(0);
        }
        (void)!write(200, &heir, sizeof heir);
        (void)pause();
    }
    pid_t heir = 0;
    CHECK(read(said[0], &heir, sizeof heir) == sizeof heir && heir > 0);
    int fd = open_segment();
    CHECK(is_alive(fd));
    int status = 0;
    CHECK(kill(owner, SIGKILL) == 0 && waitpid(owner, &status, 0) == owner);
    CHECK(kill(heir, 0) == 0);
    CHECK(!is_alive(fd));
    CHECK(close(held[1]) == 0); /* lets the heir go */
}

CHILD_TEST(the_lock_is_gone_after_exec)
{
    int said[2];
    use_folder("dir");
    CHECK(pipe(said) == 0);
    pid_t owner = fork();
    CHECK(owner >= 0);
    if (owner == 0) {
        sg_segment_attach();
        CHECK(dup2(said[1], 1) == 1);
        (void)execl("/bin/sh", "sh", "-c", "echo ready; exec sleep 100", (char *)NULL);
        _exit(1);
    }
    char byte;
    CHECK(read(said[0], &byte, 1) == 1);
    int fd = open_segment();
    CHECK(!is_alive(fd));
    CHECK(kill(owner, SIGKILL) == 0 && waitpid(owner, NULL, 0) == owner);
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

/* Attaches with standard error in a file; what was said comes back. */
static const char *attach_and_listen(void)
{
    static char text[2048];
    fixture_say = dup(2);
    int fd = open(in_folder("stderr"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && dup2(fd, 2) == 2);
    sg_segment_attach();
    ssize_t length = pread(fd, text, sizeof text - 1, 0);
    CHECK(length >= 0);
    text[length] = '\0';
    return text;
}

static void check_refused(const char *why)
{
    const char *said = attach_and_listen();
    CHECK(!sg_segment_is_shared());
    if (strstr(said, why) == NULL)
        CHECK_TEXT(said, why);
    CHECK(strstr(said, "SPARKGUARD_DIR") != NULL);
    sg_ledger_charge(SG_DOMAIN_HEAP, 5); /* decisions go on */
    CHECK_EQUAL(sg_ledger_live_bytes(), 5);
    CHECK_EQUAL(count_segments(), 0);
}

CHILD_TEST(a_directory_open_to_the_world_is_refused)
{
    use_folder("dir");
    CHECK(mkdir(sg_options.dir, 0700) == 0 && chmod(sg_options.dir, 01777) == 0);
    check_refused("closed to others");
}

CHILD_TEST(a_directory_of_somebody_else_is_refused)
{
    use_folder("dir");
    CHECK(mkdir(sg_options.dir, 0700) == 0);
    if (chown(sg_options.dir, 12345, 12345) != 0)
        SKIP("needs root");
    check_refused("must belong to you or root");
}

CHILD_TEST(a_symbolic_link_is_refused)
{
    use_folder("link");
    CHECK(mkdir(in_folder("dir"), 0700) == 0 && symlink(in_folder("dir"), sg_options.dir) == 0);
    check_refused("not a directory");
}

CHILD_TEST(a_file_is_refused)
{
    put_file("file", "x");
    use_folder("file");
    check_refused("not a directory");
}

CHILD_TEST(only_the_last_component_is_made)
{
    use_folder("none/dir");
    check_refused("no such directory");
}

CHILD_TEST(a_group_shared_directory_gets_group_shared_files)
{
    struct stat info;
    (void)umask(077);
    use_folder("dir");
    CHECK(mkdir(sg_options.dir, 0700) == 0 && chmod(sg_options.dir, 02770) == 0);
    sg_segment_attach();
    (void)read_segment(open_segment(), &info);
    CHECK_EQUAL(info.st_mode & 0777, 0640);
}

CHILD_TEST(no_directory_means_no_file_and_no_word)
{
    CHECK_TEXT(attach_and_listen(), "");
    CHECK(!sg_segment_is_shared());
}

CHILD_TEST(a_limit_of_file_sizes_does_not_end_the_program)
{
    use_folder("dir");
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = 4096; /* enough for the message */
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    check_refused("cannot keep statistics");
    sigset_t pending;
    CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 0);
}

CHILD_TEST(a_passing_lack_of_descriptors_is_not_final)
{
    use_folder("dir");
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 3;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    sg_segment_attach();
    CHECK(!sg_segment_is_shared());
    limit.rlim_cur = before;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    sg_segment_attach(); /* not before a second has passed */
    CHECK(!sg_segment_is_shared());
    uint64_t begin = clock_ns();
    while (!sg_segment_is_shared() && clock_ns() - begin < 60000000000) {
        (void)usleep(10000); /* poll: the folder is looked for again after some time */
        sg_segment_attach();
    }
    CHECK(sg_segment_is_shared());
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static pthread_barrier_t all_are_in;

static void *enter_together(void *unused)
{
    (void)unused;
    sg_thread_enter();
    if (sg_self.record != NULL)
        sg_ledger_grant_credit(sg_self.record, 10);
    (void)pthread_barrier_wait(&all_are_in);
    return sg_self.record;
}

static void enter_with(int count, void **record)
{
    static pthread_t threads[400];
    pthread_attr_t small;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 256 * 1024) == 0);
    CHECK(pthread_barrier_init(&all_are_in, NULL, (unsigned)count) == 0);
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], &small, enter_together, NULL) == 0);
    for (int i = 0; i < count; i++)
        CHECK(pthread_join(threads[i], &record[i]) == 0);
    for (int i = 0; i < count; i++)
        for (int other = 0; other < i; other++)
            CHECK(record[i] != NULL && record[i] != record[other]);
}

CHILD_TEST(the_65th_thread_makes_the_file_grow)
{
    struct stat info;
    static void *record[100];
    use_folder("dir");
    sg_segment_attach();
    CHECK_EQUAL(sg_segment_record_capacity(), SG_RECORD_FIRST);
    enter_with(100, record);
    CHECK_EQUAL(sg_segment_record_capacity(), 4 * SG_RECORD_FIRST);
    const struct sg_segment *segment = read_segment(open_segment(), &info);
    CHECK_EQUAL(segment->record_used, 101);
    CHECK_EQUAL(segment->record_capacity, 4 * SG_RECORD_FIRST);
    CHECK_EQUAL(segment->segment_bytes, info.st_size);
    CHECK(info.st_size >= (off_t)SG_SEGMENT_BYTES(4 * SG_RECORD_FIRST));
    CHECK(info.st_blocks * 512 >= info.st_size);
    CHECK_EQUAL(segment->slot.granted_bytes, 1000);
    CHECK_EQUAL(sg_ledger_live_bytes(), 0);
    CHECK_EQUAL(segment->record[100].credit_bytes, 10);
}

CHILD_TEST(records_of_a_process_that_attaches_late_all_fit)
{
    struct stat info;
    static void *record[300];
    use_folder("dir");
    enter_with(300, record);
    sg_segment_attach();
    const struct sg_segment *segment = read_segment(open_segment(), &info);
    CHECK_EQUAL(segment->record_used, 301);
    CHECK(segment->record_capacity >= 301);
    CHECK(info.st_size >= (off_t)SG_SEGMENT_BYTES(segment->record_capacity));
    CHECK_EQUAL(sg_ledger_live_bytes(), 0);
    CHECK_EQUAL(segment->record[300].credit_bytes, 10);
}

/* A conservative collector takes all of the library's data for roots, and a leak checker reads it. */
static void read_window(void)
{
    for (size_t i = 0; i < SG_SEGMENT_MAPPING_BYTES; i += 4096)
        (void)*(volatile const char *)(sg_segment_mapping.bytes + i);
}

CHILD_TEST(the_whole_window_can_be_read)
{
    static void *record[100];
    use_folder("dir");
    sg_segment_attach();
    CHECK(sg_segment_is_shared());
    read_window();
    enter_with(100, record);
    CHECK_EQUAL(sg_segment_record_capacity(), 4 * SG_RECORD_FIRST);
    read_window();
}

/* Other threads' records may lie anywhere up to the limit before there is a file. */
CHILD_TEST(the_highest_record_fits_into_the_file_too)
{
    use_folder("dir");
    sg_own->record_used = SG_RECORD_LIMIT;
    sg_own->record[SG_RECORD_LIMIT - 1].credit_bytes = 7;
    sg_segment_attach();
    CHECK(sg_segment_is_shared());
    CHECK_EQUAL(sg_segment_record_capacity(), SG_RECORD_LIMIT);
    CHECK_EQUAL(sg_own->record[SG_RECORD_LIMIT - 1].credit_bytes, 7);
}

/* ---- fork -------------------------------------------------------------------------------------------------------- */

CHILD_TEST(a_forked_child_begins_with_a_file_of_its_own_and_what_it_inherited)
{
    use_folder("dir");
    sg_thread_enter();
    sg_segment_attach();
    sg_ledger_charge(SG_DOMAIN_MAPPED, 1000);
    sg_ledger_charge(SG_DOMAIN_DEVICE, 200);
    sg_ledger_charge_device(0, 200);
    sg_ledger_grant_credit(sg_self.record, 64);
    (void)sg_owner_add(&sg_self.record->credit_bytes, -24);
    sg_ledger_before_fork();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(!sg_segment_is_own());
        CHECK(sg_segment_atfork_child());
        sg_thread_atfork_child();
        sg_ledger_atfork_child();
        CHECK(!sg_segment_is_shared() && sg_self.record == NULL);
        CHECK_EQUAL(sg_ledger_live_bytes(), 1224);
        CHECK_EQUAL(sg_ledger_own_bytes(), 0);
        CHECK_EQUAL(sg_own->domain[SG_DOMAIN_DEVICE].granted_bytes, 200);
        CHECK_EQUAL(sg_own->inherited_domain_bytes[SG_DOMAIN_HEAP], 24);
        sg_ledger_charge(SG_DOMAIN_MAPPED, 5);
        CHECK_EQUAL(sg_ledger_own_bytes(), 5);
        sg_segment_attach();
        CHECK(sg_segment_is_own());
        CHECK_EQUAL(sg_own->slot.pid, getpid());
        CHECK_EQUAL(sg_own->slot.inherited_bytes, 1224);
        CHECK_EQUAL(count_segments(), 2);
        CHECK_EQUAL(sg_own->refusal_count, 0);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_EQUAL(sg_own->slot.pid, getpid());
    CHECK_EQUAL(sg_own->slot.granted_bytes, 1264);
    CHECK_EQUAL(sg_ledger_live_bytes(), 1224);
}

CHILD_TEST(a_child_of_a_process_without_a_file_begins_at_zero)
{
    sg_thread_enter();
    sg_ledger_charge(SG_DOMAIN_MAPPED, 1000);
    sg_ledger_grant_credit(sg_self.record, 64);
    sg_ledger_before_fork();
    CHECK(sg_segment_atfork_child());
    CHECK_EQUAL(sg_own->slot.granted_bytes, 0);
    CHECK_EQUAL(sg_own->record[1].credit_bytes, 0);
    sg_ledger_atfork_child();
    CHECK_EQUAL(sg_ledger_live_bytes(), 1000);
}

CHILD_TEST(a_child_that_shares_the_window_does_not_end_it)
{
    use_folder("dir");
    sg_segment_attach();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        sg_lifetime_end(SG_STATE_EXITED, 3);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_EQUAL(sg_own->slot.state, SG_STATE_RUNNING);
    CHECK_EQUAL(count_segments(), 1);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

CHILD_TEST(a_small_program_leaves_nothing)
{
    use_folder("dir");
    sg_segment_attach();
    sg_ledger_charge(SG_DOMAIN_HEAP, 16 * MIB - 1);
    sg_lifetime_end(SG_STATE_EXITED, 0);
    CHECK_EQUAL(count_segments(), 0);
}

CHILD_TEST(a_larger_program_leaves_its_end)
{
    struct stat info;
    use_folder("dir");
    sg_segment_attach();
    sg_ledger_charge(SG_DOMAIN_HEAP, 16 * MIB);
    sg_ledger_release(SG_DOMAIN_HEAP, 16 * MIB);
    sg_lifetime_end(SG_STATE_EXITED, 3);
    const struct sg_segment *segment = read_segment(open_segment(), &info);
    CHECK_EQUAL(segment->slot.state, SG_STATE_EXITED);
    CHECK_EQUAL(segment->exit_code, 3);
    CHECK_EQUAL(segment->signal, 0);
    CHECK(segment->ended_time_ns >= segment->started_time_ns);
}

CHILD_TEST(what_was_inherited_does_not_make_a_program_large)
{
    use_folder("dir");
    sg_ledger_charge(SG_DOMAIN_HEAP, GIB);
    sg_ledger_before_fork();
    CHECK(sg_segment_atfork_child());
    sg_ledger_atfork_child();
    sg_segment_attach();
    sg_lifetime_end(SG_STATE_EXITED, 0);
    CHECK_EQUAL(count_segments(), 0);
}

CHILD_TEST(a_cuda_program_leaves_its_end)
{
    use_folder("dir");
    sg_segment_attach();
    sg_fetch_or(&sg_own->slot.flags, (uint32_t)SG_SLOT_CUDA);
    sg_lifetime_end(SG_STATE_EXITED, 0);
    CHECK_EQUAL(count_segments(), 1);
}

CHILD_TEST(a_refused_program_leaves_its_end)
{
    use_folder("dir");
    sg_segment_attach();
    sg_segment_add_refusal(&(struct sg_refusal){.size_bytes = 1});
    sg_lifetime_end(SG_STATE_EXITED, 0);
    CHECK_EQUAL(count_segments(), 1);
}

CHILD_TEST(a_failed_exec_takes_the_end_back)
{
    struct stat info;
    use_folder("dir");
    sg_segment_attach();
    sg_lifetime_end(SG_STATE_REPLACED, -1);
    int fd = open_segment();
    CHECK_EQUAL(read_segment(fd, &info)->slot.state, SG_STATE_REPLACED);
    sg_lifetime_resume();
    const struct sg_segment *segment = read_segment(fd, &info);
    CHECK_EQUAL(segment->slot.state, SG_STATE_RUNNING);
    CHECK_EQUAL(segment->ended_time_ns, 0);
    CHECK_EQUAL(segment->exit_code, -1);
    CHECK_EQUAL(segment->signal, -1);
}

/* ---- rings ------------------------------------------------------------------------------------------------------- */

CHILD_TEST(the_last_64_refusals_stay)
{
    for (uint64_t i = 0; i < 100; i++) {
        struct sg_refusal refusal = {.size_bytes = i, .time_ns = 7, .usable_bytes = 2 * i, .call = "cudaMalloc"};
        refusal.domain = SG_DOMAIN_DEVICE;
        refusal.reason = SG_REASON_LIMIT;
        refusal.sequence = 12345; /* not the caller's to say */
        sg_segment_add_refusal(&refusal);
    }
    CHECK_EQUAL(sg_own->refusal_count, 100);
    for (uint64_t i = 100 - SG_REFUSAL_CAPACITY; i < 100; i++) {
        const struct sg_refusal *entry = &sg_own->refusal[i % SG_REFUSAL_CAPACITY];
        CHECK_EQUAL(entry->sequence, i + 1);
        CHECK_EQUAL(entry->size_bytes, i);
        CHECK_EQUAL(entry->usable_bytes, 2 * i);
        CHECK_EQUAL(entry->time_ns, 7);
        CHECK(entry->domain == SG_DOMAIN_DEVICE && entry->reason == SG_REASON_LIMIT);
        CHECK_TEXT(entry->call, "cudaMalloc");
    }
}

CHILD_TEST(the_last_32_events_stay)
{
    for (uint64_t i = 0; i < 50; i++)
        sg_segment_add_event(i == 49 ? "the last one, which is much longer than the one hundred and eleven bytes that "
                                       "there is room for in the layout of version 1"
                                     : "one");
    CHECK_EQUAL(sg_own->event_count, 50);
    for (uint64_t i = 50 - SG_EVENT_CAPACITY; i < 50; i++)
        CHECK_EQUAL(sg_own->event[i % SG_EVENT_CAPACITY].sequence, i + 1);
    CHECK_EQUAL(strlen(sg_own->event[49 % SG_EVENT_CAPACITY].what), 111);
    CHECK(sg_own->event[0].time_ns != 0);
}

/* ---- the reaper -------------------------------------------------------------------------------------------------- */

static void put_dead_segments(int count)
{
    for (int i = 0; i < count; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "dir/%d-%016x%s", 1000 + i, i, SG_SEGMENT_SUFFIX);
        put_file(name, "dead");
        const struct timespec when[2] = {{1000000 + i, 0}, {1000000 + i, 0}};
        CHECK(utimensat(AT_FDCWD, in_folder(name), when, 0) == 0);
    }
}

static bool is_there(const char *name)
{
    return access(in_folder(name), F_OK) == 0;
}

static void sweep(void)
{
    use_folder("dir");
    int directory = open(sg_options.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(directory >= 0);
    sg_retention_sweep(directory);
    CHECK(close(directory) == 0);
}

CHILD_TEST(the_reaper_leaves_a_small_directory_alone)
{
    put_dead_segments(128);
    sweep();
    CHECK_EQUAL(count_segments(), 128);
}

CHILD_TEST(the_reaper_removes_the_oldest_dead_ones)
{
    put_dead_segments(200);
    put_file("dir/notes.txt", "mine");
    put_file("dir/.segment-not", "mine");
    put_file("dir/1136-0000000000000088" SG_TIMELINE_SUFFIX, "%s", "");
    put_file("dir/1137-0000000000000089" SG_TIMELINE_SUFFIX, "%s", "");
    int alive = open(in_folder("dir/1000-0000000000000000" SG_SEGMENT_SUFFIX), O_RDWR);
    CHECK(alive >= 0 && flock(alive, LOCK_EX) == 0);
    sweep();
    CHECK_EQUAL(count_segments(), 64);
    CHECK(is_there("dir/1000-0000000000000000" SG_SEGMENT_SUFFIX)); /* the oldest, but alive */
    CHECK(is_there("dir/1199-00000000000000c7" SG_SEGMENT_SUFFIX));
    CHECK(is_there("dir/1137-0000000000000089" SG_SEGMENT_SUFFIX));
    CHECK(!is_there("dir/1136-0000000000000088" SG_SEGMENT_SUFFIX));
    CHECK(is_there("dir/1137-0000000000000089" SG_TIMELINE_SUFFIX)); /* goes with its segment */
    CHECK(!is_there("dir/1136-0000000000000088" SG_TIMELINE_SUFFIX));
    CHECK(is_there("dir/notes.txt") && is_there("dir/.segment-not"));
}

CHILD_TEST(the_reaper_takes_a_time_that_ns_cannot_tell_for_a_late_one)
{
    const time_t beyond_ns = 17179869183; /* which tmpfs keeps, and ext4 clamps to 2446: INT64_MAX ns end in 2262 */
    const struct timespec when[2] = {{beyond_ns, 0}, {beyond_ns, 0}};
    put_dead_segments(200);
    CHECK(utimensat(AT_FDCWD, in_folder("dir/1000-0000000000000000" SG_SEGMENT_SUFFIX), when, 0) == 0);
    sweep();
    CHECK(is_there("dir/1000-0000000000000000" SG_SEGMENT_SUFFIX));
    CHECK(!is_there("dir/1001-0000000000000001" SG_SEGMENT_SUFFIX));
}

#define FOLDER "dir/1-0000000000000001" SG_SEGMENT_SUFFIX
#define FIFO "dir/2-0000000000000002" SG_SEGMENT_SUFFIX
#define LINK "dir/3-0000000000000003" SG_SEGMENT_SUFFIX
#define EMPTY "dir/4-0000000000000004" SG_SEGMENT_SUFFIX

CHILD_TEST(the_reaper_leaves_what_is_no_segment)
{
    put_dead_segments(150);
    CHECK(mkdir(in_folder(FOLDER), 0700) == 0);
    CHECK(mkfifo(in_folder(FIFO), 0600) == 0);
    CHECK(symlink("/etc/passwd", in_folder(LINK)) == 0);
    put_file(EMPTY, "%s", "");                      /* says nothing: the first to go */
    put_file(EMPTY SG_UNFINISHED_SUFFIX, "%s", ""); /* somebody is making it */
    sweep();
    CHECK(is_there(FOLDER) && is_there(FIFO) && is_there(LINK) && !is_there(EMPTY));
    CHECK(is_there(EMPTY SG_UNFINISHED_SUFFIX));
    CHECK_EQUAL(count_segments(), 64 + 3); /* names of segments */
}

static void put_time_lines(void)
{
    put_dead_segments(2);
    put_file("dir/1001-0000000000000001" SG_TIMELINE_SUFFIX, "its segment is there");
    put_file("dir/1002-0000000000000002" SG_TIMELINE_SUFFIX, "its segment was removed by hand");
    put_file("dir/1003-0000000000000003" SG_TIMELINE_SUFFIX ".txt", "mine");
    CHECK(mkdir(in_folder("dir/1004-0000000000000004" SG_TIMELINE_SUFFIX), 0700) == 0);
    CHECK(symlink("/etc/passwd", in_folder("dir/1005-0000000000000005" SG_TIMELINE_SUFFIX)) == 0);
}

static void check_time_lines(void)
{
    CHECK(is_there("dir/1001-0000000000000001" SG_TIMELINE_SUFFIX));
    CHECK(!is_there("dir/1002-0000000000000002" SG_TIMELINE_SUFFIX));
    CHECK(is_there("dir/1003-0000000000000003" SG_TIMELINE_SUFFIX ".txt"));
    CHECK(is_there("dir/1004-0000000000000004" SG_TIMELINE_SUFFIX));
    CHECK(is_there("dir/1005-0000000000000005" SG_TIMELINE_SUFFIX));
    CHECK_EQUAL(count_segments(), 2);
}

CHILD_TEST(the_reaper_removes_time_lines_without_a_segment)
{
    put_time_lines();
    sweep();
    check_time_lines();
}

CHILD_TEST(the_history_keeps_no_time_line_without_a_segment)
{
    put_time_lines();
    use_folder("dir");
    int directory = open(sg_options.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    sg_retention_trim(directory, MIB);
    check_time_lines();
    CHECK(close(directory) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attach_makes_a_private_file_that_says_who_we_are),
        cmocka_unit_test(attach_keeps_what_was_counted_before_and_after),
        cmocka_unit_test(attach_leaves_no_descriptor_and_no_errno),
        cmocka_unit_test(observe_mode_is_in_the_flags),
        cmocka_unit_test(the_lock_is_gone_with_the_owner_though_its_child_lives),
        cmocka_unit_test(the_lock_is_gone_after_exec),
        cmocka_unit_test(a_directory_open_to_the_world_is_refused),
        cmocka_unit_test(a_directory_of_somebody_else_is_refused),
        cmocka_unit_test(a_symbolic_link_is_refused),
        cmocka_unit_test(a_file_is_refused),
        cmocka_unit_test(only_the_last_component_is_made),
        cmocka_unit_test(a_group_shared_directory_gets_group_shared_files),
        cmocka_unit_test(no_directory_means_no_file_and_no_word),
        cmocka_unit_test(a_limit_of_file_sizes_does_not_end_the_program),
        cmocka_unit_test(a_passing_lack_of_descriptors_is_not_final),
        cmocka_unit_test(the_65th_thread_makes_the_file_grow),
        cmocka_unit_test(records_of_a_process_that_attaches_late_all_fit),
        cmocka_unit_test(the_whole_window_can_be_read),
        cmocka_unit_test(the_highest_record_fits_into_the_file_too),
        cmocka_unit_test(a_forked_child_begins_with_a_file_of_its_own_and_what_it_inherited),
        cmocka_unit_test(a_child_of_a_process_without_a_file_begins_at_zero),
        cmocka_unit_test(a_child_that_shares_the_window_does_not_end_it),
        cmocka_unit_test(a_small_program_leaves_nothing),
        cmocka_unit_test(a_larger_program_leaves_its_end),
        cmocka_unit_test(what_was_inherited_does_not_make_a_program_large),
        cmocka_unit_test(a_cuda_program_leaves_its_end),
        cmocka_unit_test(a_refused_program_leaves_its_end),
        cmocka_unit_test(a_failed_exec_takes_the_end_back),
        cmocka_unit_test(the_last_64_refusals_stay),
        cmocka_unit_test(the_last_32_events_stay),
        cmocka_unit_test(the_reaper_leaves_a_small_directory_alone),
        cmocka_unit_test(the_reaper_removes_the_oldest_dead_ones),
        cmocka_unit_test(the_reaper_takes_a_time_that_ns_cannot_tell_for_a_late_one),
        cmocka_unit_test(the_reaper_leaves_what_is_no_segment),
        cmocka_unit_test(the_reaper_removes_time_lines_without_a_segment),
        cmocka_unit_test(the_history_keeps_no_time_line_without_a_segment),
    };
    return cmocka_run_group_tests_name("segment", tests, NULL, NULL);
}
