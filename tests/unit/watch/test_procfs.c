/*
 * What the kernel says of a process, on the real /proc.
 */
#include "fixture.h"

#include "base/procfs.h"
#include "watch/own_process.h"

#include <grp.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define SLACK (4 * MIB)

static char *take(uint64_t bytes, int flags)
{
    char *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    assert_true(block != MAP_FAILED);
    (void)madvise(block, bytes, MADV_NOHUGEPAGE);
    memset(block, 1, bytes);
    return block;
}

static bool is_within(uint64_t bytes, uint64_t from, uint64_t to)
{
    return bytes + SLACK >= from && bytes <= to + SLACK;
}

/* 0, or 1: what is `expected` is not between the two, or they are farther apart than `apart`. */
static int is_wrong(uint64_t expected, uint64_t apart)
{
    uint64_t least = UINT64_MAX, most = 0;
    if (!sg_own_process_private_bytes(&least, &most) || least > most)
        return 1;
    return !is_within(least, expected > apart ? expected - apart : 0, expected) ||
           !is_within(most, expected, expected + apart);
}

/* Runs in a child that does not return: 0 is right. */
static void assert_in_child(int (*check)(char *), char *block)
{
    int status = 1;
    pid_t child = fork();
    if (child == 0)
        _exit(check(block));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static int inherits(char *block)
{
    (void)block;
    return is_wrong(0, 0);
}

static int copies(char *block)
{
    memset(block, 2, 32 * MIB);
    return is_wrong(32 * MIB, 0);
}

static int churns(char *block)
{
    (void)block;
    for (int i = 0; i < 8; i++)
        (void)munmap(take(16 * MIB, MAP_PRIVATE), 16 * MIB);
    return is_wrong(0, 0);
}

/* Whose the private pages are that are no file's, is known only as far as Pss tells: half of what is inherited. */
static int shares_a_mapping(char *block)
{
    (void)block;
    (void)take(48 * MIB, MAP_SHARED);
    (void)take(8 * MIB, MAP_PRIVATE);
    return is_wrong(8 * MIB, 32 * MIB) != 0 || is_wrong(8 * MIB, 0) == 0;
}

PLAIN_TEST(private_bytes_of_a_child_are_what_its_end_would_give_back)
{
    uint64_t least = 0, most = 0;
    assert_true(sg_own_process_private_bytes(&least, &most));
    if (most > SLACK)
        SKIP("not only the program's memory is in it (qemu-user)");
    char *block = take(64 * MIB, MAP_PRIVATE);
    assert_true(sg_own_process_private_bytes(&least, &most));
    assert_true(least >= 64 * MIB && most >= least && most <= 64 * MIB + SLACK);
    assert_in_child(inherits, block);
    assert_in_child(copies, block);
    assert_in_child(churns, block);
    assert_in_child(shares_a_mapping, block);
    (void)munmap(block, 64 * MIB);
}

/* A user of many groups, whose numbers come before the sizes in /proc/PID/status: 0 is right. */
static int is_in_many_groups(char *block)
{
    gid_t groups[1000];
    uint64_t before, after, swapped;
    (void)block;
    for (unsigned i = 0; i < 1000; i++)
        groups[i] = 100000 + i;
    if (setgroups(1000, groups) != 0)
        return 2;
    if (!sg_procfs_missing_bytes(0, &before, &swapped))
        return 1;
    (void)take(64 * MIB, MAP_PRIVATE);
    return !sg_procfs_missing_bytes(0, &after, &swapped) || after > before + SLACK;
}

PLAIN_TEST(what_is_resident_of_a_user_of_many_groups_is_not_missing)
{
    if (geteuid() != 0)
        SKIP("needs root, to join groups");
    sg_procfs_note_swap(true);
    assert_in_child(is_in_many_groups, NULL);
    sg_procfs_note_swap(false);
    assert_in_child(is_in_many_groups, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(private_bytes_of_a_child_are_what_its_end_would_give_back),
        cmocka_unit_test(what_is_resident_of_a_user_of_many_groups_is_not_missing),
    };
    return cmocka_run_group_tests_name("process", tests, NULL, NULL);
}
