/*
 * test_observe.c - the observer: it counts what the registry's living owners hold, and leaves no trace.
 */
#include "fixture.h"

#include "base/options.h"
#include "observer/observe.h"

enum { OWN_BYTES = sizeof(struct sg_registry_entry) };

static union {
    struct sg_registry registry;
    char bytes[SG_REGISTRY_BYTES(OWN_BYTES)];
} file;

static void put_machine(void)
{
    put_file("root/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n");
    CHECK(setenv("SPARKGUARD_SYSTEM_ROOT", in_folder("root"), 1) == 0);
    CHECK(setenv("SPARKGUARD_RESERVE", "1G", 1) == 0);
}

static struct sg_registry_entry *entry_at(unsigned number)
{
    return (void *)((char *)file.registry.entry + (size_t)number * file.registry.entry_bytes);
}

/* A registry whose entries 1 and 2 promise 1 GiB each; they are of the job "unit". */
static void make_registry(uint32_t version, uint32_t entry_bytes)
{
    file.registry = (struct sg_registry){.magic = SG_REGISTRY_MAGIC,
                                         .version = version,
                                         .entry_bytes = entry_bytes,
                                         .entry_capacity = SG_ENTRY_CAPACITY,
                                         .entry_used = 3};
    for (unsigned i = 1; i < 3; i++) {
        struct sg_registry_entry *entry = entry_at(i);
        entry->slot.promised_bytes = entry->slot.granted_bytes = GIB;
        entry->slot.job_hash = sg_job_hash("unit", getuid());
        entry->claim = 1 << 2 | SG_CLAIM_LIVE;
    }
}

static const char *path_of(void)
{
    return in_folder("machine.ledger");
}

static int put_registry(void)
{
    int fd = open(path_of(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    size_t bytes = SG_REGISTRY_BYTES(file.registry.entry_bytes);
    CHECK(fd >= 0 && write(fd, file.bytes, bytes) == (ssize_t)bytes);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1}; /* 2 has no owner */
    CHECK(fcntl(fd, F_OFD_SETLK, &lock) == 0);
    return fd;
}

static struct sg_observation observe(const char *job)
{
    struct sg_observation seen;
    int fd = open(path_of(), O_RDONLY | O_CLOEXEC);
    sg_observe(fd, &(const struct sg_observer){.job = job != NULL ? sg_job_hash(job, getuid()) : 0}, &seen);
    if (fd >= 0)
        (void)close(fd);
    CHECK(seen.is_known);
    return seen;
}

CHILD_TEST(without_a_registry_nothing_is_taken)
{
    put_machine();
    struct sg_observation seen = observe(NULL);
    CHECK(!seen.has_registry && sg_observe_count() == 0 && sg_observe_entry(0) == NULL);
    CHECK_EQUAL(seen.total_bytes, 8 * GIB);
    CHECK_EQUAL(seen.at[0].usable_bytes, 6 * GIB);
    CHECK_EQUAL(seen.host_bytes, 5 * GIB);
    CHECK_EQUAL(seen.device_bytes, 5 * GIB - 5 * GIB / 161 - 1);
    CHECK(seen.limit_bytes == 0 && seen.left_bytes == UINT64_MAX);
}

CHILD_TEST(promises_of_living_owners_are_taken)
{
    put_machine();
    make_registry(SG_REGISTRY_VERSION, OWN_BYTES);
    (void)put_registry();
    struct sg_observation seen = observe(NULL);
    CHECK(seen.has_registry);
    CHECK_EQUAL(seen.at[0].promised_bytes, GIB);
    CHECK_EQUAL(seen.host_bytes, 4 * GIB);
    CHECK(sg_observe_entry(1) != NULL && sg_observe_entry(2) == NULL);
    CHECK_EQUAL(sg_observe_promise(1), GIB);
}

CHILD_TEST(file_is_as_it_was)
{
    static union {
        char bytes[sizeof file];
    } after;
    put_machine();
    make_registry(SG_REGISTRY_VERSION, OWN_BYTES);
    entry_at(1)->managed_bytes = GIB; /* then the observer looks for a base of unexplained memory, too */
    int fd = put_registry();
    (void)observe("unit");
    CHECK(pread(fd, after.bytes, sizeof after, 0) == (ssize_t)sizeof after);
    CHECK(memcmp(after.bytes, file.bytes, sizeof after) == 0);
}

CHILD_TEST(entries_of_another_version_count)
{
    put_machine();
    make_registry(SG_REGISTRY_VERSION + 1, 1024);
    int fd = put_registry();
    CHECK_EQUAL(observe(NULL).host_bytes, 4 * GIB);
    (void)close(fd);
    memset(&file, 0, sizeof file);
    make_registry(SG_REGISTRY_VERSION, OWN_BYTES);
    (void)put_registry();
    CHECK_EQUAL(observe(NULL).host_bytes, 4 * GIB);
}

CHILD_TEST(registry_that_is_cut_is_none)
{
    put_machine();
    make_registry(SG_REGISTRY_VERSION, OWN_BYTES);
    int fd = put_registry();
    CHECK_EQUAL(observe(NULL).host_bytes, 4 * GIB);
    CHECK(ftruncate(fd, sizeof(struct sg_registry) + OWN_BYTES) == 0);
    struct sg_observation seen = observe(NULL);
    CHECK(!seen.has_registry && sg_observe_count() == 0);
    CHECK_EQUAL(seen.host_bytes, 5 * GIB);
}

CHILD_TEST(limit_of_the_job_that_is_joined_counts)
{
    put_machine();
    make_registry(SG_REGISTRY_VERSION, OWN_BYTES);
    entry_at(2)->slot = (struct sg_slot){.flags = SG_SLOT_JOB, .job_hash = sg_job_hash("unit", getuid())};
    entry_at(2)->set_user = 1;
    entry_at(2)->set_limit_bytes = 3 * GIB; /* nobody holds its lock: it lives as long as the job */
    file.registry.settings = 1;
    (void)put_registry();
    struct sg_observation seen = observe("unit");
    CHECK_EQUAL(seen.limit_bytes, 3 * GIB);
    CHECK_EQUAL(seen.left_bytes, 2 * GIB);
    CHECK_EQUAL(observe("other").left_bytes, UINT64_MAX);
    CHECK_EQUAL(sg_observe_held_by(sg_job_hash("unit", getuid())),
                GIB - MIB); /* 1 MiB of each process was never promised */
}

CHILD_TEST(rest_of_a_claim_is_what_its_job_does_not_hold)
{
    put_machine();
    make_registry(SG_REGISTRY_VERSION, OWN_BYTES);
    file.registry.claim_places = 1;
    entry_at(2)->slot = (struct sg_slot){.flags = SG_SLOT_JOB, .job_hash = sg_job_hash("unit", getuid())};
    entry_at(2)->claimed_bytes = 3 * GIB;
    int fd = put_registry();
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2, .l_len = 1};
    CHECK(fcntl(fd, F_OFD_SETLK, &lock) == 0);
    struct sg_observation seen = observe(NULL);
    CHECK_EQUAL(sg_observe_claim_rest(2), 2 * GIB + MIB);
    CHECK_EQUAL(seen.at[0].claimed_bytes, 2 * GIB + MIB);
    CHECK_EQUAL(seen.host_bytes, 2 * GIB - MIB);
    CHECK_EQUAL(observe("unit").at[0].claimed_bytes, 0); /* its own */
    CHECK_EQUAL(sg_observe_claim_rest(2), 2 * GIB + MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_registry_nothing_is_taken),
        cmocka_unit_test(promises_of_living_owners_are_taken),
        cmocka_unit_test(file_is_as_it_was),
        cmocka_unit_test(entries_of_another_version_count),
        cmocka_unit_test(registry_that_is_cut_is_none),
        cmocka_unit_test(limit_of_the_job_that_is_joined_counts),
        cmocka_unit_test(rest_of_a_claim_is_what_its_job_does_not_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
