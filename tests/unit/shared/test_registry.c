/*
 * test_registry.c - a registry entry among all guarded processes: taking it, losing it, what the others' add up to, and
 * waiting for them.
 */
#include "fixture.h"

#include "base/atomics.h"
#include "account/ledger.h"
#include "base/options.h"
#include "base/procfs.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/registry.h"
#include "shared/segment.h"
#include "account/thread_record.h"

#include <inttypes.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define MOST (UINT64_C(1) << 52) /* what any sum may be */

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static void use_folder(void)
{
    strcpy(sg_options.dir, in_folder("live"));
    strcpy(sg_options.job, "unit");
}

static bool is_sharing(void)
{
    return (sg_load(&sg_own->slot.flags) & SG_SLOT_SHARING) != 0;
}

static void join(void)
{
    use_folder();
    sg_segment_attach();
    CHECK(sg_registry_due() == SG_REGISTRY_JOIN);
    sg_registry_join();
}

static void join_shared(void)
{
    join();
    CHECK(is_sharing());
    CHECK(sg_registry_due() != SG_REGISTRY_JOIN);
}

static const char *ledger_path(void)
{
    return in_folder("live/" SG_REGISTRY_NAME);
}

static struct sg_registry_entry *entry_at(unsigned number)
{
    return sg_entry_at(sg_entry_registry(), number);
}

static unsigned own_number(void)
{
    return (unsigned)(sg_entry_own() - sg_entry_registry()->entry);
}

static bool is_locked(unsigned number)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = number, .l_len = 1};
    int fd = open(ledger_path(), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0 && close(fd) == 0);
    return lock.l_type != F_UNLCK;
}

/* Locks some registry entries as living owners do, until the descriptor is closed. */
static int lock_entries(unsigned first, unsigned count)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
    int fd = open(ledger_path(), O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0);
    return fd;
}

static const char *last_event(void)
{
    uint64_t count = sg_own->event_count;
    return count == 0 ? "" : sg_own->event[(count - 1) % SG_EVENT_CAPACITY].what;
}

/* A forked child, as the library's fork handlers make it: it runs `body` and ends without cleaning up. */
static pid_t fork_guarded(void (*body)(void))
{
    sg_ledger_before_fork();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0)
        return child;
    (void)alarm(60);
    CHECK(sg_segment_atfork_child());
    sg_thread_atfork_child();
    sg_registry_atfork_child();
    sg_ledger_atfork_child();
    body();
    _exit(0);
}

static void wait_for(pid_t child)
{
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_EQUAL(status, 0);
}

CHILD_TEST(without_a_segment_a_process_decides_alone)
{
    struct sg_peers peers;
    CHECK(sg_registry_due() != SG_REGISTRY_JOIN);
    sg_registry_announce(SG_SOURCE_BOUNDED, GIB);
    sg_peers_sum(&peers, 0, true, NULL);
    CHECK_EQUAL(peers.machine.queued_before_bytes, 0);
    CHECK_EQUAL(peers.machine.queued_after_bytes, 0);
    sg_registry_withdraw();
    CHECK(!sg_registry_reap());
    sg_registry_leave();
    CHECK_EQUAL(sg_entry_registry()->asked_bytes, GIB);
    CHECK(access(ledger_path(), F_OK) != 0);
}

CHILD_TEST(the_first_one_makes_the_ledger_and_takes_the_first_entry)
{
    struct stat info;
    join_shared();
    struct sg_registry *ledger = sg_entry_registry();
    CHECK(stat(ledger_path(), &info) == 0);
    CHECK_EQUAL(info.st_size, SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry)));
    CHECK_EQUAL(info.st_mode & 07777, 0600);
    CHECK_EQUAL(info.st_nlink, 1);
    CHECK((uint64_t)info.st_blocks * 512 >= SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry)));
    CHECK_EQUAL(ledger->magic, SG_REGISTRY_MAGIC);
    CHECK_EQUAL(ledger->version, SG_REGISTRY_VERSION);
    CHECK_EQUAL(ledger->entry_capacity, SG_ENTRY_CAPACITY);
    CHECK_EQUAL(ledger->entry_used, 1);
    CHECK_EQUAL(own_number(), 0);
    const struct sg_registry_entry *entry = sg_entry_own();
    CHECK_EQUAL(entry->claim, 1 << 2 | SG_CLAIM_LIVE);
    CHECK_EQUAL(entry->slot.magic, 0);
    CHECK_EQUAL(entry->slot.pid, getpid());
    CHECK_EQUAL(entry->slot.start_ticks, sg_own->slot.start_ticks);
    CHECK_EQUAL(entry->slot.job_hash, sg_own->slot.job_hash);
    CHECK(is_locked(0) && !is_locked(1));
}

CHILD_TEST(who_has_no_standard_descriptors_has_none_after_joining)
{
    fixture_say = dup(2);
    CHECK(close(0) == 0 && close(1) == 0 && close(2) == 0);
    join_shared();
    for (int fd = 0; fd <= 2; fd++)
        CHECK(fcntl(fd, F_GETFD) == -1);
}

CHILD_TEST(what_was_there_before_the_entry_is_in_it)
{
    sg_own->slot.promised_bytes = 3 * MIB;
    sg_entry_flight_add(SG_SOURCE_UNBOUNDED, GIB);
    sg_entry_flight_add(SG_SOURCE_BOUNDED, 2 * GIB);
    const uint64_t level[] = {11, 12};
    sg_registry_set_levels(level, 2);
    join_shared();
    const struct sg_registry_entry *entry = sg_entry_own();
    CHECK_EQUAL(entry->slot.promised_bytes, 3 * MIB);
    CHECK_EQUAL(entry->slot.in_flight_bytes, 3 * GIB);
    CHECK_EQUAL(entry->bounded_flight_bytes, 2 * GIB);
    CHECK_EQUAL(entry->level[0], 11);
    CHECK_EQUAL(entry->level[1], 12);
    CHECK_EQUAL(entry->level[2], 0);
}

CHILD_TEST(nothing_of_the_last_owner_is_left_in_an_entry)
{
    join_shared();
    struct sg_registry_entry *entry = entry_at(1);
    memset(entry, 0xff, sizeof *entry);
    entry->claim = 7 << 2 | SG_CLAIM_DEAD;
    pid_t child = fork_guarded(join_shared);
    wait_for(child);
    CHECK_EQUAL(entry->claim, 8 << 2 | SG_CLAIM_LIVE);
    CHECK_EQUAL(entry->slot.pid, child);
    CHECK_EQUAL(entry->slot.magic, 0);
    CHECK_EQUAL(entry->slot.promised_bytes, 0);
    CHECK_EQUAL(entry->slot.limit_bytes, 0);
    CHECK_EQUAL(entry->ticket, SG_TICKET_NONE);
    for (const uint64_t *word = &entry->queued_bytes; word < entry->level + SG_ENTRY_LEVELS; word++)
        CHECK_EQUAL(*word, word == &entry->job_run ? SG_RUN(child, entry->slot.start_ticks) : 0);
}

/* ---- leaving ----------------------------------------------------------------------------------------------------- */

static void expect_entry_1(void)
{
    join_shared();
    CHECK_EQUAL(own_number(), 1);
}

CHILD_TEST(who_leaves_counts_no_more_but_keeps_others_from_the_entry)
{
    join_shared();
    uint32_t epoch = sg_peers_epoch();
    sg_registry_leave();
    CHECK_EQUAL(sg_entry_own()->claim, 1 << 2 | SG_CLAIM_EMPTY);
    CHECK(sg_peers_epoch() != epoch);
    CHECK(is_locked(0));
    wait_for(fork_guarded(expect_entry_1));
}

CHILD_TEST(a_generation_never_comes_again)
{
    join_shared();
    for (uint64_t generation = 1; generation < 20; generation++) {
        wait_for(fork_guarded(expect_entry_1));
        CHECK_EQUAL(entry_at(1)->claim, generation << 2 | SG_CLAIM_LIVE);
        CHECK(sg_registry_reap());
        CHECK_EQUAL(entry_at(1)->claim, generation << 2 | SG_CLAIM_DEAD);
        CHECK(!sg_registry_reap());
    }
    CHECK_EQUAL(sg_entry_registry()->entry_used, 2);
}

/* ---- fork -------------------------------------------------------------------------------------------------------- */

static void change_everything(void)
{
    CHECK(!is_sharing());
    sg_entry_flight_add(SG_SOURCE_BOUNDED, 5 * GIB);
    sg_ledger_charge(SG_DOMAIN_HEAP, 5 * GIB);
    sg_ledger_promise(5 * GIB, true);
    sg_registry_announce(SG_SOURCE_BOUNDED, 5 * GIB);
    sg_registry_count(GIB);
    sg_registry_leave();
    CHECK(!sg_registry_reap());
    sg_registry_atfork_child();
    CHECK_EQUAL(sg_entry_own()->ticket, SG_TICKET_NONE);
    CHECK_EQUAL(sg_entry_own_flight(true), 0);
}

CHILD_TEST(a_childs_entry_is_not_its_parents)
{
    join_shared();
    sg_ledger_charge(SG_DOMAIN_HEAP, 7 * MIB);
    sg_entry_flight_add(SG_SOURCE_UNBOUNDED, MIB);
    sg_registry_announce(SG_SOURCE_BOUNDED, 9 * MIB);
    struct sg_registry_entry before = *sg_entry_own();
    uint64_t asked = sg_entry_registry()->asked_bytes;
    wait_for(fork_guarded(change_everything));
    CHECK(memcmp(&before, sg_entry_own(), sizeof before) == 0);
    CHECK_EQUAL(sg_entry_registry()->asked_bytes, asked);
}

static void say_parent(void)
{
    join_shared();
    CHECK_EQUAL(sg_entry_own()->parent_entry, 1);
    CHECK_EQUAL(sg_entry_own()->parent_claim, 1 << 2 | SG_CLAIM_LIVE);
}

CHILD_TEST(a_childs_parent_is_who_forked_it_though_somebody_else_sits_there_by_now)
{
    join_shared();
    sg_entry_own()->claim = 2 << 2 | SG_CLAIM_LIVE;
    wait_for(fork_guarded(say_parent));
}

/* Once the parent is back, what both have is its promise again, and not the child's on top. */
CHILD_TEST(a_childs_parent_may_have_left_for_a_while)
{
    join_shared();
    sg_registry_leave();
    wait_for(fork_guarded(say_parent));
    sg_registry_come_back();
    CHECK_EQUAL(sg_entry_own()->claim, 1 << 2 | SG_CLAIM_LIVE);
}

static void say_inherited(void)
{
    join_shared();
    CHECK_EQUAL(sg_entry_own()->slot.inherited_bytes, 7 * MIB);
    CHECK_EQUAL(sg_entry_own()->slot.granted_bytes, 7 * MIB);
    CHECK_EQUAL(sg_entry_own()->slot.in_flight_bytes, 0);
    CHECK_EQUAL(sg_entry_own_names()->origin[0].bytes, 7 * MIB);
    CHECK_EQUAL(sg_entry_own_names()->origin[0].pid, getppid());
}

CHILD_TEST(a_child_sits_down_with_what_it_inherited)
{
    join_shared();
    sg_ledger_charge(SG_DOMAIN_HEAP, 7 * MIB);
    sg_entry_flight_add(SG_SOURCE_BOUNDED, MIB);
    wait_for(fork_guarded(say_inherited));
}

static int hold_pipe[2];

/* Joins, has a child that knows nothing of it, and is killed. */
static void die_before_child(void)
{
    expect_entry_1();
    pid_t child = fork();
    if (child == 0) {
        char byte;
        (void)close(hold_pipe[1]);
        _exit(read(hold_pipe[0], &byte, 1) != 0);
    }
    (void)kill(getpid(), SIGKILL);
}

CHILD_TEST(a_child_that_lives_on_does_not_keep_its_parents_entry)
{
    int status;
    if (!has_dontfork())
        SKIP("MADV_DONTFORK has no effect here (qemu-user)");
    join_shared();
    CHECK(pipe(hold_pipe) == 0);
    pid_t child = fork_guarded(die_before_child);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK(!is_locked(1));
    CHECK(sg_registry_reap());
    CHECK_EQUAL(SG_CLAIM_STATE(entry_at(1)->claim), SG_CLAIM_DEAD);
    (void)close(hold_pipe[1]);
}

/* ---- who is dead ------------------------------------------------------------------------------------------------- */

CHILD_TEST(only_unlocked_entries_are_found_dead)
{
    join_shared();
    for (unsigned i = 1; i < 6; i++)
        entry_at(i)->claim = (uint64_t)i << 2 | SG_CLAIM_LIVE;
    entry_at(4)->claim = 4 << 2 | SG_CLAIM_EMPTY;
    sg_store(&sg_entry_registry()->entry_used, 5u);
    int fd = lock_entries(2, 1);
    uint32_t epoch = sg_peers_epoch();
    CHECK(sg_registry_reap());
    CHECK(sg_peers_epoch() != epoch);
    CHECK_EQUAL(sg_entry_own()->claim, 1 << 2 | SG_CLAIM_LIVE);
    CHECK_EQUAL(entry_at(1)->claim, 1 << 2 | SG_CLAIM_DEAD);
    CHECK_EQUAL(entry_at(2)->claim, 2 << 2 | SG_CLAIM_LIVE);
    CHECK_EQUAL(entry_at(3)->claim, 3 << 2 | SG_CLAIM_DEAD);
    CHECK_EQUAL(entry_at(4)->claim, 4 << 2 | SG_CLAIM_EMPTY);
    CHECK_EQUAL(entry_at(5)->claim, 5 << 2 | SG_CLAIM_LIVE); /* behind what is used */
    CHECK(!sg_registry_reap());
    CHECK(close(fd) == 0);
    CHECK(sg_registry_reap());
    CHECK_EQUAL(entry_at(2)->claim, 2 << 2 | SG_CLAIM_DEAD);
}

CHILD_TEST(who_finds_the_ledger_removed_joins_a_new_one)
{
    join_shared();
    struct sg_registry *old = sg_entry_registry();
    struct sg_registry_entry *entry = sg_entry_own();
    sg_entry_flight_add(SG_SOURCE_BOUNDED, MIB);
    CHECK(unlink(ledger_path()) == 0);
    CHECK(!sg_registry_reap());
    CHECK_EQUAL(SG_CLAIM_STATE(entry->claim), SG_CLAIM_EMPTY);
    CHECK(sg_entry_registry() != old && sg_registry_due() == SG_REGISTRY_JOIN);
    sg_registry_join();
    CHECK(is_sharing() && sg_entry_registry() != old && sg_entry_own() != entry);
    CHECK_EQUAL(sg_entry_own()->slot.in_flight_bytes, MIB);
    CHECK(access(ledger_path(), F_OK) == 0 && is_locked(0));
    CHECK(!sg_registry_reap() && sg_registry_due() != SG_REGISTRY_JOIN);
}

static struct sg_registry *inherited;

static void join_anew(void)
{
    CHECK(unlink(ledger_path()) == 0);
    join_shared();
    CHECK(sg_entry_registry() != inherited);
    CHECK_EQUAL(inherited->magic, SG_REGISTRY_MAGIC); /* a thread that was stopped may go on there */
}

CHILD_TEST(mapping_of_a_removed_ledger_stays)
{
    join_shared();
    inherited = sg_entry_registry();
    wait_for(fork_guarded(join_anew));
}

CHILD_TEST(who_finds_another_file_in_the_place_of_the_ledger_goes_there)
{
    join_shared();
    const char *away = in_folder("live/away");
    CHECK(rename(ledger_path(), away) == 0);
    wait_for(fork_guarded(join_shared));
    CHECK(!sg_registry_reap());
    CHECK(sg_registry_due() == SG_REGISTRY_JOIN);
    sg_registry_join();
    CHECK(is_sharing());
    CHECK_EQUAL(sg_entry_registry()->entry_used, 2); /* the dead child's registry entry has not been reaped */
}

/* ---- no registry entry ------------------------------------------------------------------------------------------- */

static void fill_ledger(uint64_t claim)
{
    for (unsigned i = 0; i < SG_ENTRY_CAPACITY; i++)
        entry_at(i)->claim = claim;
    sg_store(&sg_entry_registry()->entry_used, (uint32_t)SG_ENTRY_CAPACITY);
}

static void expect_no_entry(void)
{
    join();
    CHECK(!is_sharing());
    CHECK(sg_registry_due() != SG_REGISTRY_JOIN);
    CHECK(strstr(last_event(), "not sharing: no room") == last_event());
    CHECK(sg_entry_registry()->entry_used == 0);
    sg_entry_flight_add(SG_SOURCE_BOUNDED, GIB);
    CHECK(!sg_registry_reap());
}

static void expect_an_entry(void)
{
    join_shared();
}

CHILD_TEST(who_finds_all_entries_taken_decides_alone)
{
    join_shared();
    int fd = lock_entries(1, SG_ENTRY_CAPACITY - 1);
    fill_ledger(1 << 2 | SG_CLAIM_LIVE);
    wait_for(fork_guarded(expect_no_entry));
    fill_ledger(1 << 2 | SG_CLAIM_EMPTY); /* they have left, and not ended yet */
    wait_for(fork_guarded(expect_no_entry));
    fill_ledger(1 << 2 | SG_CLAIM_LIVE);
    CHECK(close(fd) == 0);
    wait_for(fork_guarded(expect_an_entry)); /* of the dead */
    CHECK_EQUAL(SG_CLAIM_STATE(entry_at(0)->claim), SG_CLAIM_LIVE);
    CHECK_EQUAL(SG_CLAIM_STATE(entry_at(SG_ENTRY_CAPACITY - 1)->claim), SG_CLAIM_DEAD);
}

static void expect_alone(const char *why)
{
    join();
    CHECK(!is_sharing());
    CHECK(sg_registry_due() != SG_REGISTRY_JOIN);
    CHECK(strstr(last_event(), "not sharing: ") == last_event());
    CHECK(strstr(last_event(), why) != NULL);
}

static void put_ledger(const struct sg_registry *header, off_t bytes)
{
    CHECK(mkdir(in_folder("live"), 0700) == 0);
    int fd = open(ledger_path(), O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
    CHECK(bytes < (off_t)sizeof *header || pwrite(fd, header, sizeof *header, 0) == (ssize_t)sizeof *header);
    CHECK(close(fd) == 0);
}

static const struct sg_registry good = {.magic = SG_REGISTRY_MAGIC,
                                        .version = SG_REGISTRY_VERSION,
                                        .entry_bytes = sizeof(struct sg_registry_entry),
                                        .entry_capacity = SG_ENTRY_CAPACITY};

/* Joins a registry that another version made, with entries of `entry_bytes`, and shows shared memory there. */
static void join_another_versions(uint32_t entry_bytes)
{
    const struct sg_memory_file range = {1, 3, 4096};
    struct sg_registry header = good;
    header.version++;
    header.entry_bytes = entry_bytes;
    put_ledger(&header, (off_t)SG_REGISTRY_BYTES(entry_bytes));
    int owners = lock_entries(0, 2);
    join_shared();
    CHECK(sg_registry_due() != SG_REGISTRY_JOIN);
    CHECK(sg_entry_own() == entry_at(2) && (char *)entry_at(2) == (char *)entry_at(0) + 2 * (size_t)entry_bytes);
    sg_entry_begin_files();
    sg_entry_end_files(&range, 1, 0);
    CHECK(sg_entry_own_names()->file[0].begin == range.begin && sg_entry_own_names()->file[1].begin == 0);
    sg_entry_set_file_bytes(8192);
    CHECK_EQUAL(sg_entry_names(sg_entry_own())->file[0].end, 3);
    CHECK_EQUAL(sg_entry_names(sg_entry_own())->file_bytes, 8192);
    char rest[4096] = {0};
    CHECK(memcmp((char *)entry_at(2) + SG_ENTRY_FROZEN_BYTES, rest, entry_bytes - SG_ENTRY_FROZEN_BYTES) == 0);
    CHECK_EQUAL(SG_CLAIM_STATE(entry_at(3)->claim), SG_CLAIM_EMPTY);
    CHECK_EQUAL(sg_entry_names(entry_at(3))->file_bytes, 0);
    CHECK(close(owners) == 0);
}

CHILD_TEST(another_versions_ledger_with_smaller_entries_is_shared)
{
    join_another_versions(SG_ENTRY_FROZEN_BYTES);
}

CHILD_TEST(another_versions_ledger_with_larger_entries_is_shared)
{
    join_another_versions(4096);
}

CHILD_TEST(entries_of_another_version_add_up_without_their_names)
{
    struct sg_registry header = good;
    struct sg_peers peers;
    header.version++;
    header.entry_bytes = 1024;
    put_ledger(&header, SG_REGISTRY_BYTES(1024));
    join_shared();
    struct sg_registry_entry *other = entry_at(7);
    memset((char *)other + SG_ENTRY_FROZEN_BYTES, 0xff, 1024 - SG_ENTRY_FROZEN_BYTES);
    other->slot.granted_bytes = other->slot.promised_bytes = 5000;
    other->slot.in_flight_bytes = other->bounded_flight_bytes = 700;
    other->claim = 1 << 2 | SG_CLAIM_LIVE;
    sg_store(&sg_entry_registry()->entry_used, UINT32_C(8));
    sg_peers_sum(&peers, 0, false, NULL);
    CHECK_EQUAL(peers.machine.held_bytes, 5000);
    CHECK_EQUAL(peers.machine.flight_bytes, 700);
}

CHILD_TEST(another_versions_ledger_whose_entries_cannot_be_found_is_left_alone)
{
    struct sg_registry header = good;
    header.version++;
    header.entry_bytes = SG_ENTRY_FROZEN_BYTES + 8;
    put_ledger(&header, SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry)));
    expect_alone("another version");
}

CHILD_TEST(a_ledger_with_other_entries_is_left_alone)
{
    struct sg_registry header = good;
    header.entry_bytes *= 2;
    put_ledger(&header, SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry)));
    expect_alone("another version");
}

CHILD_TEST(a_short_ledger_is_left_alone)
{
    put_ledger(&good, SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry)) - 1);
    expect_alone("");
}

CHILD_TEST(a_sparse_ledger_is_filled_up)
{
    struct stat info;
    put_ledger(&good, SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry)));
    join_shared();
    CHECK(stat(ledger_path(), &info) == 0);
    CHECK((uint64_t)info.st_blocks * 512 >= SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry)));
}

CHILD_TEST(a_link_is_not_followed)
{
    CHECK(mkdir(in_folder("live"), 0700) == 0);
    CHECK(symlink("elsewhere", ledger_path()) == 0);
    expect_alone("");
    CHECK(access(in_folder("live/elsewhere"), F_OK) != 0);
}

enum { CROWD = 6, CROWD_ROUNDS = 40 };
struct crowd {
    uint32_t here, may_join, joined, may_end;
};
static struct crowd *crowd;

static void join_at_once(void)
{
    (void)alarm(60);
    use_folder();
    sg_segment_attach();
    sg_fetch_add(&crowd->here, 1u);
    while (!sg_load(&crowd->may_join))
        ;
    sg_registry_join();
    sg_fetch_add(&crowd->joined, 1u);
    CHECK(is_sharing());
    CHECK(is_locked(own_number()));
    while (!sg_load(&crowd->may_end))
        (void)usleep(1000); /* poll: until all have met */
}

static void meet(void)
{
    pid_t child[CROWD];
    memset(crowd, 0, sizeof *crowd);
    for (int i = 0; i < CROWD; i++) {
        child[i] = fork();
        CHECK(child[i] >= 0);
        if (child[i] == 0) {
            join_at_once();
            _exit(0);
        }
    }
    while (sg_load(&crowd->here) != CROWD)
        (void)usleep(100); /* poll: until all are there */
    sg_store(&crowd->may_join, 1u);
    while (sg_load(&crowd->joined) == 0)
        (void)usleep(100); /* poll: until one of them has joined, and the others are in the middle of it */
    join_shared();
    unsigned live = 0;
    for (uint64_t deadline = clock_ns() + 60 * UINT64_C(1000000000); live != CROWD + 1 && clock_ns() < deadline;) {
        live = 0;
        for (unsigned i = 0; i < SG_ENTRY_CAPACITY; i++)
            live += SG_CLAIM_STATE(sg_load(&entry_at(i)->claim)) == SG_CLAIM_LIVE;
    }
    CHECK_EQUAL(live, CROWD + 1);
    sg_store(&crowd->may_end, 1u);
    for (int i = 0; i < CROWD; i++) {
        unsigned entries = 0;
        for (unsigned j = 0; j < SG_ENTRY_CAPACITY; j++)
            entries += entry_at(j)->slot.pid == (uint32_t)child[i];
        CHECK_EQUAL(entries, 1);
        wait_for(child[i]);
    }
}

CHILD_TEST(those_who_come_at_once_meet_in_one_ledger_on_different_entries)
{
    char command[128];
    crowd = mmap(NULL, sizeof *crowd, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(crowd != MAP_FAILED);
    for (int round = 0; round < CROWD_ROUNDS; round++) {
        (void)fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            meet();
            _exit(0);
        }
        wait_for(child);
        (void)snprintf(command, sizeof command, "test \"$(ls %s | grep -c ledger)\" = 1", in_folder("live"));
        CHECK_EQUAL(system(command), 0);
        (void)snprintf(command, sizeof command, "rm -r %s", in_folder("live"));
        CHECK_EQUAL(system(command), 0);
    }
}

/* ---- what the others have ---------------------------------------------------------------------------------------- */

/* A registry entry of somebody else; it is locked by nobody, which sums do not care about. */
static struct sg_registry_entry *sit(unsigned number)
{
    struct sg_registry_entry *entry = entry_at(number);
    memset(entry, 0, sizeof *entry);
    entry->claim = 1 << 2 | SG_CLAIM_LIVE;
    if (sg_load(&sg_entry_registry()->entry_used) < number + 1)
        sg_store(&sg_entry_registry()->entry_used, number + 1);
    return entry;
}

static struct sg_peers sum_for(uint64_t device)
{
    struct sg_peers peers;
    memset(&peers, 0xff, sizeof peers);
    sg_peers_sum(&peers, device, false, NULL);
    return peers;
}

static void ask_from(struct sg_registry_entry *entry, uint64_t ticket, uint64_t source, uint64_t bytes)
{
    entry->queued_bytes = bytes;
    entry->queued_source = source;
    entry->ticket = ticket;
}

static void promise_of(struct sg_registry_entry *entry, uint64_t bytes)
{
    entry->slot.granted_bytes = entry->slot.promised_bytes = bytes;
}

CHILD_TEST(the_sum_is_of_the_living_and_without_ourselves)
{
    join_shared();
    sg_ledger_charge(SG_DOMAIN_HEAP, GIB);
    sg_ledger_promise(GIB, true);
    promise_of(sit(1), 1);
    promise_of(sit(2), 10);
    promise_of(sit(3), 100);
    promise_of(sit(700), 1000);
    entry_at(2)->claim = 1 << 2 | SG_CLAIM_DEAD;
    CHECK_EQUAL(sum_for(0).machine.held_bytes, 1101);
    entry_at(3)->claim = 1 << 2 | SG_CLAIM_EMPTY;
    CHECK_EQUAL(sum_for(0).machine.held_bytes, 1001);
    sg_store(&sg_entry_registry()->entry_used, 10u);
    CHECK_EQUAL(sum_for(0).machine.held_bytes, 1);
    sg_store(&sg_entry_registry()->entry_used, UINT32_MAX);
    CHECK_EQUAL(sum_for(0).machine.held_bytes, 1001);
}

CHILD_TEST(who_asks_stands_before_or_behind)
{
    join_shared();
    sg_store(&sg_entry_registry()->asked_bytes, 1000u);
    ask_from(sit(1), 900, SG_SOURCE_BOUNDED, 1);
    ask_from(sit(2), 1100, SG_SOURCE_UNBOUNDED, 10);
    ask_from(sit(3), SG_TICKET_CHOOSING, SG_SOURCE_BOUNDED, 100);
    ask_from(sit(4), SG_TICKET_NONE, SG_SOURCE_BOUNDED, 1000);
    ask_from(sit(5), 900, 4711, 10000); /* of a device */
    sg_registry_announce(SG_SOURCE_BOUNDED, 50);
    CHECK_EQUAL(sg_entry_own()->ticket, 1000 + SG_TICKET_FIRST);
    CHECK_EQUAL(sg_entry_own()->queued_bytes, 50);
    CHECK_EQUAL(sg_entry_registry()->asked_bytes, 1050);
    struct sg_peers peers = sum_for(4711);
    CHECK_EQUAL(peers.machine.queued_before_bytes, 101);
    CHECK_EQUAL(peers.machine.queued_after_bytes, 10);
    CHECK_EQUAL(peers.device.queued_before_bytes, 10000);
    sg_registry_withdraw();
    CHECK_EQUAL(sg_entry_own()->ticket, SG_TICKET_NONE);
    peers = sum_for(0); /* without a ticket of our own all stand before us */
    CHECK_EQUAL(peers.machine.queued_before_bytes, 111);
    CHECK_EQUAL(peers.machine.queued_after_bytes, 0);
    CHECK_EQUAL(peers.device.queued_before_bytes, 0);
}

CHILD_TEST(the_order_goes_on_where_the_count_wraps)
{
    join_shared();
    sg_store(&sg_entry_registry()->asked_bytes, UINT64_MAX - 100);
    ask_from(sit(1), UINT64_MAX - 300, SG_SOURCE_BOUNDED, 1);
    ask_from(sit(2), 500, SG_SOURCE_BOUNDED, 10);
    ask_from(sit(3), SG_TICKET_CHOOSING, SG_SOURCE_BOUNDED, 100);
    sg_registry_announce(SG_SOURCE_BOUNDED, 1000);
    CHECK_EQUAL(sg_entry_registry()->asked_bytes, 899);
    struct sg_peers peers = sum_for(0);
    CHECK_EQUAL(peers.machine.queued_before_bytes, 101);
    CHECK_EQUAL(peers.machine.queued_after_bytes, 10);
}

static void fly_everywhere(void)
{
    const uint64_t levels[] = {99, 77};
    join_shared();
    sg_registry_set_levels(levels, 2);
    sg_entry_flight_add(SG_SOURCE_BOUNDED, 1);
    sg_entry_flight_add(SG_SOURCE_UNBOUNDED, 10);
    sg_entry_flight_add(4711, 100);
}

CHILD_TEST(what_flies_is_of_the_machine_its_groups_or_a_device)
{
    const uint64_t levels[] = {77};
    join_shared();
    sg_registry_set_levels(levels, 1);
    wait_for(fork_guarded(fly_everywhere));
    struct sg_peers peers = sum_for(4711);
    CHECK_EQUAL(peers.machine.flight_bytes, 11);
    CHECK_EQUAL(peers.level[0].flight_bytes, 1);
    CHECK_EQUAL(peers.device.flight_bytes, 100);
    CHECK_EQUAL(peers.job.flight_bytes, 111);
    CHECK_EQUAL(sum_for(4712).device.flight_bytes, 0);
    entry_at(1)->flight_device = SG_UNKNOWN;
    CHECK_EQUAL(sum_for(4712).device.flight_bytes, 100);
    CHECK_EQUAL(sum_for(0).device.flight_bytes, 0);
    entry_at(1)->slot.device_bytes = 5;
    CHECK_EQUAL(sum_for(0).cuda_bytes, 5);
}

CHILD_TEST(promises_count_in_the_groups_both_are_in)
{
    join_shared();
    const uint64_t levels[] = {70, 60, 50};
    sg_registry_set_levels(levels, 3);
    CHECK_EQUAL(sg_entry_own()->level[2], 50);
    const uint64_t theirs[][3] = {{70, 60, 50}, {71, 60, 50}, {50}, {99, 50}, {0}, {SG_UNKNOWN}};
    uint64_t bytes = 1;
    for (unsigned i = 0; i < 6; i++, bytes *= 10) {
        struct sg_registry_entry *entry = sit(i + 1);
        memcpy(entry->level, theirs[i], sizeof theirs[i]);
        entry->slot.granted_bytes = entry->slot.promised_bytes = bytes;
        ask_from(entry, 1 + SG_TICKET_FIRST, i == 1 ? SG_SOURCE_UNBOUNDED : SG_SOURCE_BOUNDED, bytes);
    }
    struct sg_peers peers = sum_for(0);
    CHECK_EQUAL(peers.machine.held_bytes, 111111);
    CHECK_EQUAL(peers.level[0].held_bytes, 1);
    CHECK_EQUAL(peers.level[1].held_bytes, 11);
    CHECK_EQUAL(peers.level[2].held_bytes, 1111);
    CHECK_EQUAL(peers.level[3].held_bytes, 0);
    CHECK_EQUAL(peers.level[1].queued_before_bytes, 1); /* what no group bounds is not asked of one */
    CHECK_EQUAL(peers.level[2].queued_before_bytes, 1101);
    sg_registry_set_levels(levels, 1);
    CHECK_EQUAL(sg_entry_own()->level[1], 0);
    CHECK_EQUAL(sum_for(0).level[1].held_bytes, 0);
}

CHILD_TEST(a_job_is_what_its_processes_hold_of_their_own)
{
    join_shared();
    const uint64_t limit[] = {0, 500, 300, 1};
    for (unsigned i = 0; i < 4; i++) {
        struct sg_registry_entry *entry = sit(i + 1);
        entry->slot.job_hash = sg_own->slot.job_hash + (i == 3);
        entry->slot.granted_bytes = 100;
        entry->slot.inherited_bytes = i == 0 ? 0 : i == 1 ? 60 : 200;
        entry->slot.in_flight_bytes = 7;
        entry->slot.limit_bytes = limit[i];
        ask_from(entry, SG_TICKET_FIRST, i == 0 ? 4711 : SG_SOURCE_BOUNDED, 10);
    }
    struct sg_peers peers = sum_for(0);
    CHECK_EQUAL(peers.job.held_bytes, 140);
    CHECK_EQUAL(peers.job.flight_bytes, 21);
    CHECK_EQUAL(peers.job.queued_before_bytes, 30);
    CHECK_EQUAL(peers.job_limit_bytes, 300);
    entry_at(2)->claim = entry_at(3)->claim = 1 << 2 | SG_CLAIM_DEAD;
    CHECK_EQUAL(sum_for(0).job_limit_bytes, 0);
}

CHILD_TEST(no_sum_wraps_whatever_the_entries_say)
{
    join_shared();
    const uint64_t levels[] = {SG_UNKNOWN};
    sg_registry_set_levels(levels, 1);
    for (unsigned i = 1; i < SG_ENTRY_CAPACITY; i++) {
        struct sg_registry_entry *entry = sit(i);
        memset(entry, 0xff, sizeof *entry);
        entry->slot.flags &= ~(uint32_t)(SG_SLOT_JOB | SG_SLOT_HELPER);
        entry->slot.job_hash = sg_own->slot.job_hash;
        entry->slot.inherited_bytes = 0;
        entry->device_flight_bytes = 1;
        entry->ticket = i % 2 == 0 ? SG_TICKET_CHOOSING : UINT64_C(1) << 60;
        entry->queued_source = SG_SOURCE_BOUNDED;
        entry->files_version -= i % 2; /* half of them are in the middle of a change */
        entry->claim = UINT64_MAX << 2 | SG_CLAIM_LIVE;
    }
    sg_registry_announce(SG_SOURCE_BOUNDED, 1);
    struct sg_peers peers = sum_for(SG_UNKNOWN);
    const struct sg_peer_sums *sums[] = {&peers.machine, &peers.level[0], &peers.job};
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(sums[i]->held_bytes, MOST);
        CHECK_EQUAL(sums[i]->flight_bytes, MOST);
        CHECK_EQUAL(sums[i]->queued_before_bytes, MOST);
        CHECK_EQUAL(sums[i]->queued_after_bytes, MOST);
    }
    CHECK_EQUAL(peers.device.flight_bytes, SG_ENTRY_CAPACITY - 1);
    CHECK_EQUAL(peers.cuda_bytes, MOST);
}

CHILD_TEST(watching_is_of_this_moment)
{
    join_shared();
    struct sg_registry_entry *entry = sit(1);
    uint64_t now = clock_ns();
    CHECK(!sg_peers_is_watched(entry, now));
    entry->watched_ns = now;
    CHECK(sg_peers_is_watched(entry, now));
    CHECK(!sg_peers_is_watched(entry, now + 2000000000));
}

static uint64_t closely(void)
{
    struct sg_peers peers;
    sg_peers_sum(&peers, 0, true, NULL);
    return peers.machine.held_bytes;
}

static int ready_pipe[2];

/* Has 32 MiB of memory of its own and 64 MiB that it does not touch, and waits for its end. */
static void hold_memory(void)
{
    char *memory = mmap(NULL, 96 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), byte = 1;
    CHECK(memory != MAP_FAILED);
    memset(memory, 1, 32 * MIB);
    CHECK(write(ready_pipe[1], &byte, 1) == 1);
    (void)alarm(CHILD_SECONDS); /* where the test fails */
    (void)pause();
}

/* What the program has mapped beside that and not touched; a sanitizer and an emulator map more. */
static bool is_near(uint64_t bytes, uint64_t expected)
{
    return bytes >= expected && bytes <= expected + 16 * MIB;
}

CHILD_TEST(a_close_look_sees_what_of_a_promise_is_there_by_now)
{
    SKIP_BESIDE_SHADOW();
    char byte;
    join_shared();
    CHECK(pipe(ready_pipe) == 0);
    pid_t child = fork_guarded(hold_memory);
    CHECK(read(ready_pipe[0], &byte, 1) == 1);
    struct sg_registry_entry *entry = sit(1);
    entry->slot.pid = (uint32_t)child;
    entry->pid_namespace = sg_own->pid_namespace;
    entry->slot.granted_bytes = entry->slot.promised_bytes = 200 * MIB;
    CHECK_EQUAL(sum_for(0).machine.held_bytes, 200 * MIB);
    CHECK(is_near(closely(), 64 * MIB));
    entry->unwritable_bytes = 20 * MIB; /* its size is not in the kernel's figure, and its pages are */
    CHECK(is_near(closely(), 84 * MIB));
    entry->shared_promised_bytes = 30 * MIB; /* the kernel's figure says nothing of it */
    CHECK(is_near(closely(), 114 * MIB));
    entry->slot.promised_bytes = 5 * MIB; /* the kernel may count more than was granted */
    CHECK_EQUAL(closely(), 5 * MIB);
    entry->slot.promised_bytes = 512 * KIB; /* too little to ask */
    CHECK_EQUAL(closely(), 512 * KIB);
    entry->slot.promised_bytes = 200 * MIB;
    CHECK(kill(child, SIGSTOP) == 0);
    CHECK(is_near(closely(), 114 * MIB));
    entry->pid_namespace++;
    CHECK_EQUAL(closely(), 200 * MIB);
    entry->pid_namespace--;
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    CHECK_EQUAL(closely(), 200 * MIB);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

CHILD_TEST(what_is_in_flight_is_kept_by_source)
{
    join_shared();
    const struct sg_registry_entry *entry = sg_entry_own();
    sg_entry_flight_add(SG_SOURCE_BOUNDED, 100);
    sg_entry_flight_add(SG_SOURCE_UNBOUNDED, 10);
    sg_entry_flight_add(4711, 1000);
    CHECK_EQUAL(entry->slot.in_flight_bytes, 1110);
    CHECK_EQUAL(entry->bounded_flight_bytes, 100);
    CHECK_EQUAL(entry->device_flight_bytes, 1000);
    CHECK_EQUAL(entry->flight_device, 4711);
    CHECK_EQUAL(sg_entry_own_flight(false), 110);
    CHECK_EQUAL(sg_entry_own_flight(true), 100);
    CHECK_EQUAL(sg_entry_own_device_flight(4711), 1000);
    CHECK_EQUAL(sg_entry_own_device_flight(4712), 0);
    sg_entry_flight_add(4712, 1);
    CHECK_EQUAL(entry->flight_device, SG_UNKNOWN);
    CHECK_EQUAL(sg_entry_own_device_flight(4712), 1001);
    sg_entry_flight_add(4711, -1000);
    sg_entry_flight_add(4712, -1);
    sg_entry_flight_add(4712, 5);
    CHECK_EQUAL(entry->flight_device, 4712);
    sg_entry_flight_add(4712, -5);
    sg_entry_flight_add(SG_SOURCE_BOUNDED, -100);
    sg_entry_flight_add(SG_SOURCE_UNBOUNDED, -11); /* never below nothing */
    CHECK_EQUAL(entry->slot.in_flight_bytes, 0);
    CHECK_EQUAL(entry->bounded_flight_bytes, 0);
    CHECK_EQUAL(sg_entry_own_flight(false), 0);
}

CHILD_TEST(what_has_landed_is_no_more_in_flight)
{
    sg_entry_flight_add(SG_SOURCE_BOUNDED, 100);
    sg_entry_flight_add(SG_SOURCE_UNBOUNDED, 10);
    sg_entry_flight_add(4711, 1);
    sg_entry_flight_complete(SG_SOURCE_BOUNDED, 70);
    sg_entry_flight_complete(SG_SOURCE_UNBOUNDED, 10);
    sg_entry_flight_complete(4711, 1); /* no memory of the machine */
    CHECK_EQUAL(sg_entry_own_flight(false), 30);
    CHECK_EQUAL(sg_entry_own_landed(true), 70);
    CHECK_EQUAL(sg_entry_own_landed(false), 80);
    CHECK_EQUAL(sg_entry_own_device_flight(4711), 0);
}

CHILD_TEST(a_cached_snapshot_serves_what_is_small_beside_it)
{
    uint64_t *asked = &sg_entry_registry()->asked_bytes;
    join_shared();
    for (int i = 0; i < 2; i++) { /* the second time the count wraps */
        uint64_t begin = i == 0 ? 1000 : UINT64_MAX - 800, most = begin + 1600;
        asked = &sg_entry_registry()->asked_bytes;
        sg_store(asked, begin);
        CHECK(!sg_registry_take(101, &most)); /* more than 1/16 of what is left */
        CHECK_EQUAL(*asked, begin);
        CHECK(sg_registry_take(100, &most));
        CHECK_EQUAL(*asked, begin + 100);
        sg_store(asked, begin + 1584);
        CHECK(sg_registry_take(1, &most));
        sg_store(asked, begin + 1600);
        CHECK(!sg_registry_take(0, &most));
        sg_store(asked, begin + 1601); /* others have taken more than there was */
        CHECK(!sg_registry_take(1, &most));
    }
    const uint64_t none = 0;
    sg_store(asked, UINT64_MAX - 1600);
    CHECK(!sg_registry_take(1, &none));
}

static uint64_t shared_most;
static uint64_t taken;

static void *take_while_it_lasts(void *unused)
{
    (void)unused;
    while (sg_registry_take(64, &shared_most))
        sg_fetch_add(&taken, UINT64_C(64));
    return NULL;
}

CHILD_TEST(what_many_take_together_stays_within_the_look)
{
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    join_shared();
    for (int round = 0; round < 20; round++) {
        taken = 0;
        shared_most = sg_entry_registry()->asked_bytes + 1000000;
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_create(&thread[i], NULL, take_while_it_lasts, NULL) == 0);
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_join(thread[i], NULL) == 0);
        CHECK(taken <= 1000000 && taken >= 1000000 - 16 * 64 - THREADS * 64);
    }
}

enum { CHANGERS = 4 };
static pthread_barrier_t barrier;

static void *change_slot(void *number)
{
    uint64_t bytes = (uint64_t)(uintptr_t)number;
    for (int round = 0; round < 3000; round++) {
        (void)pthread_barrier_wait(&barrier);
        for (int i = 0; i < 10; i++) {
            sg_entry_flight_add(SG_SOURCE_BOUNDED, (int64_t)bytes);
            sg_ledger_charge(SG_DOMAIN_DEVICE, bytes);
            sg_ledger_release(SG_DOMAIN_DEVICE, bytes);
            sg_entry_flight_add(SG_SOURCE_BOUNDED, -(int64_t)bytes);
        }
        (void)pthread_barrier_wait(&barrier); /* all is quiet */
        CHECK_EQUAL(sg_entry_own()->slot.granted_bytes, 0);
        CHECK_EQUAL(sg_entry_own()->slot.in_flight_bytes, 0);
        CHECK_EQUAL(sg_entry_own()->bounded_flight_bytes, 0);
    }
    return NULL;
}

CHILD_TEST(the_entry_says_what_the_slot_says_when_all_is_quiet)
{
    pthread_t thread[CHANGERS];
    join_shared();
    CHECK(pthread_barrier_init(&barrier, NULL, CHANGERS) == 0);
    for (uintptr_t i = 0; i < CHANGERS; i++)
        CHECK(pthread_create(&thread[i], NULL, change_slot, (void *)(i + 1)) == 0);
    for (int i = 0; i < CHANGERS; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* How often the thread slept in a wait whose word has changed already. */
static long sleeps_of_a_late_wait(void)
{
    struct rusage before, after;
    CHECK(getrusage(RUSAGE_THREAD, &before) == 0);
    sg_peers_wait(sg_peers_epoch() - 1, 900000000);
    CHECK(getrusage(RUSAGE_THREAD, &after) == 0);
    return after.ru_nvcsw - before.ru_nvcsw;
}

/* Of several tries one must end soon: the machine may have other work, and a page of memory may have to be waited for.
 * */
CHILD_TEST(waiting_ends_with_its_time)
{
    join_shared();
    uint64_t took = UINT64_MAX, begin;
    for (int i = 0; i < 20 && took >= 100000000; i++) {
        begin = clock_ns();
        sg_peers_wait(sg_peers_epoch(), 50000000);
        took = clock_ns() - begin;
        CHECK(took >= 49000000);
    }
    CHECK(took < 100000000); /* pace: the best of 20 tries */
    long sleeps = 1;
    for (int i = 0; i < 20 && sleeps != 0; i++)
        sleeps = sleeps_of_a_late_wait();
    CHECK_EQUAL(sleeps, 0);
    begin = clock_ns();
    sg_peers_wait(sg_peers_epoch(), 1100000000);
    CHECK(clock_ns() - begin >= 1090000000);
}

static void advance_soon(void)
{
    struct sg_registry *ledger;
    join_shared();
    ledger = sg_entry_registry();
    while (sg_load(&ledger->waiting_until_ns) == 0 || process_state(getppid()) != 'S')
        (void)usleep(100); /* poll: until the other one waits and sleeps */
    sg_peers_advance();
}

CHILD_TEST(who_waits_is_woken_from_another_process)
{
    join_shared();
    uint32_t seen = sg_peers_epoch();
    pid_t child = fork_guarded(advance_soon);
    uint64_t begin = clock_ns();
    while (sg_peers_epoch() == seen && clock_ns() - begin < 60 * UINT64_C(1000000000))
        sg_peers_wait(seen, 900000000);
    CHECK(sg_peers_epoch() != seen);
    wait_for(child);
}

CHILD_TEST(nobody_is_woken_when_nobody_waits)
{
    join_shared();
    struct sg_registry *ledger = sg_entry_registry();
    sg_peers_wait(sg_peers_epoch(), 1000000);
    CHECK(ledger->waiting_until_ns != 0);
    (void)usleep(2000); /* pace: until the time of the wait is over */
    sg_peers_advance(); /* its time is over: forgotten */
    CHECK_EQUAL(ledger->waiting_until_ns, 0);
    uint32_t call = ledger->call;
    sg_peers_call();
    CHECK_EQUAL(ledger->call, call + 1);
}

CHILD_TEST(a_header_that_somebody_changes_later_moves_no_entry)
{
    struct sg_peers peers;
    join_shared();
    struct sg_registry *registry = sg_entry_registry();
    struct sg_registry_entry *second = entry_at(1), *last = entry_at(SG_ENTRY_CAPACITY - 1);
    const struct sg_registry_entry *names = sg_entry_names(sg_entry_own());
    registry->entry_bytes = UINT32_MAX;
    registry->version = SG_REGISTRY_VERSION + 7;
    registry->entry_used = UINT32_MAX;
    CHECK(entry_at(1) == second && entry_at(SG_ENTRY_CAPACITY - 1) == last);
    CHECK(sg_entry_names(sg_entry_own()) == names && names == sg_entry_own());
    sg_peers_sum(&peers, 0, true, NULL); /* reads every entry */
    CHECK(!sg_registry_reap());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_segment_a_process_decides_alone),
        cmocka_unit_test(the_first_one_makes_the_ledger_and_takes_the_first_entry),
        cmocka_unit_test(who_has_no_standard_descriptors_has_none_after_joining),
        cmocka_unit_test(what_was_there_before_the_entry_is_in_it),
        cmocka_unit_test(nothing_of_the_last_owner_is_left_in_an_entry),
        cmocka_unit_test(who_leaves_counts_no_more_but_keeps_others_from_the_entry),
        cmocka_unit_test(a_generation_never_comes_again),
        cmocka_unit_test(a_childs_entry_is_not_its_parents),
        cmocka_unit_test(a_childs_parent_is_who_forked_it_though_somebody_else_sits_there_by_now),
        cmocka_unit_test(a_childs_parent_may_have_left_for_a_while),
        cmocka_unit_test(a_child_sits_down_with_what_it_inherited),
        cmocka_unit_test(a_child_that_lives_on_does_not_keep_its_parents_entry),
        cmocka_unit_test(only_unlocked_entries_are_found_dead),
        cmocka_unit_test(who_finds_the_ledger_removed_joins_a_new_one),
        cmocka_unit_test(mapping_of_a_removed_ledger_stays),
        cmocka_unit_test(who_finds_another_file_in_the_place_of_the_ledger_goes_there),
        cmocka_unit_test(who_finds_all_entries_taken_decides_alone),
        cmocka_unit_test(another_versions_ledger_with_smaller_entries_is_shared),
        cmocka_unit_test(another_versions_ledger_with_larger_entries_is_shared),
        cmocka_unit_test(entries_of_another_version_add_up_without_their_names),
        cmocka_unit_test(another_versions_ledger_whose_entries_cannot_be_found_is_left_alone),
        cmocka_unit_test(a_ledger_with_other_entries_is_left_alone),
        cmocka_unit_test(a_short_ledger_is_left_alone),
        cmocka_unit_test(a_sparse_ledger_is_filled_up),
        cmocka_unit_test(a_link_is_not_followed),
        cmocka_unit_test(those_who_come_at_once_meet_in_one_ledger_on_different_entries),
        cmocka_unit_test(the_sum_is_of_the_living_and_without_ourselves),
        cmocka_unit_test(who_asks_stands_before_or_behind),
        cmocka_unit_test(the_order_goes_on_where_the_count_wraps),
        cmocka_unit_test(what_flies_is_of_the_machine_its_groups_or_a_device),
        cmocka_unit_test(promises_count_in_the_groups_both_are_in),
        cmocka_unit_test(a_job_is_what_its_processes_hold_of_their_own),
        cmocka_unit_test(no_sum_wraps_whatever_the_entries_say),
        cmocka_unit_test(watching_is_of_this_moment),
        cmocka_unit_test(a_close_look_sees_what_of_a_promise_is_there_by_now),
        cmocka_unit_test(what_is_in_flight_is_kept_by_source),
        cmocka_unit_test(what_has_landed_is_no_more_in_flight),
        cmocka_unit_test(a_cached_snapshot_serves_what_is_small_beside_it),
        cmocka_unit_test(what_many_take_together_stays_within_the_look),
        cmocka_unit_test(the_entry_says_what_the_slot_says_when_all_is_quiet),
        cmocka_unit_test(waiting_ends_with_its_time),
        cmocka_unit_test(who_waits_is_woken_from_another_process),
        cmocka_unit_test(nobody_is_woken_when_nobody_waits),
        cmocka_unit_test(a_header_that_somebody_changes_later_moves_no_entry),
    };
    return cmocka_run_group_tests_name("registry", tests, NULL, NULL);
}
