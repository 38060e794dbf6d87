/*
 * test_snapshot.c - what the machine and the cgroups above us still have, over fake trees (SPARKGUARD_SYSTEM_ROOT), and
 * the reserve and floor that each of them keeps.
 */
#include "fixture.h"

#include "base/options.h"
#include "admit/snapshot.h"
#include "hooks/mmap/mapping_kind.h"
#include "admit/cgroup.h"
#include "base/atomics.h"
#include "shared/own_entry.h"
#include "shared/settings.h"

#include <inttypes.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

static struct sg_snapshot snapshot;

static void use_fake_root(void)
{
    strcpy(sg_options.system_root, fixture_folder);
}

static void put_meminfo(uint64_t total, uint64_t available)
{
    put_file("proc/meminfo",
             "MemTotal:       %8" PRIu64 " kB\nMemFree:        %8" PRIu64 " kB\nMemAvailable:   %8" PRIu64 " kB\n"
             "Buffers:             100 kB\nCmaTotal:          65536 kB\nCmaFree:            1024 kB\n",
             total / KIB, available / KIB / 2, available / KIB);
}

static void look_at_fake(void)
{
    uint64_t level[SG_ENTRY_LEVELS];
    use_fake_root();
    (void)sg_cgroup_find(level);
    sg_snapshot_refresh(&snapshot);
    sg_cgroup_refresh(&snapshot);
}

static void check_is_sysinfo(void)
{
    struct sysinfo info;
    CHECK(sysinfo(&info) == 0 && snapshot.is_valid);
    CHECK_EQUAL(snapshot.at[0].limit_bytes, (uint64_t)info.totalram * info.mem_unit);
    CHECK(snapshot.at[0].headroom_bytes > 0 && snapshot.at[0].headroom_bytes <= snapshot.at[0].limit_bytes);
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

CHILD_TEST(meminfo_is_read_in_bytes)
{
    put_meminfo(128 * GIB, 100 * GIB);
    look_at_fake();
    CHECK(snapshot.is_valid && snapshot.time_ns != 0);
    CHECK_EQUAL(snapshot.count, 1);
    CHECK_EQUAL(snapshot.at[0].limit_bytes, 128 * GIB);
    CHECK_EQUAL(snapshot.at[0].headroom_bytes, 100 * GIB);
    CHECK_EQUAL(snapshot.free_bytes, 50 * GIB);
    CHECK_EQUAL(snapshot.cma_free_bytes, MIB);
}

CHILD_TEST(meminfo_without_cma_has_none)
{
    put_file("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\nXCmaFree: 7 kB\nCmaFreeX: 8 kB\n");
    look_at_fake();
    CHECK_EQUAL(snapshot.cma_free_bytes, 0);
    CHECK_EQUAL(snapshot.at[0].headroom_bytes, 512 * MIB);
}

CHILD_TEST(available_is_never_more_than_total)
{
    put_file("proc/meminfo", "MemTotal: 1024 kB\nMemAvailable: 18446744073709551614 kB\n");
    look_at_fake();
    CHECK_EQUAL(snapshot.at[0].headroom_bytes, MIB);
}

CHILD_TEST(missing_meminfo_falls_back_to_sysinfo)
{
    look_at_fake();
    check_is_sysinfo();
}

CHILD_TEST(meminfo_without_available_falls_back_to_sysinfo)
{
    put_file("proc/meminfo", "MemTotal: 1024 kB\nMemFree: 512 kB\n");
    look_at_fake();
    check_is_sysinfo();
}

CHILD_TEST(garbage_in_meminfo_falls_back_to_sysinfo)
{
    const char *const garbage[] = {"",
                                   "\n\n\n",
                                   "MemTotal:",
                                   "MemTotal: kB\nMemAvailable: 1 kB\n",
                                   "MemTotal: x\nMemAvailable: y\n",
                                   "\xff\xfe\x01",
                                   "MemTotal: 99999999999999999999999 kB\nMemAvailable: 1 kB\n",
                                   "MemTotal: 0 kB\nMemAvailable: 1 kB\n"};
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        put_file("proc/meminfo", "%s", garbage[i]);
        look_at_fake();
        check_is_sysinfo();
    }
}

CHILD_TEST(available_that_is_no_number_is_nothing)
{
    put_file("proc/meminfo", "MemTotal: 1024 kB\nMemAvailable: much kB\n");
    look_at_fake();
    CHECK(snapshot.is_valid);
    CHECK_EQUAL(snapshot.at[0].headroom_bytes, 0);
}

CHILD_TEST(a_huge_cma_figure_takes_no_more_than_there_is)
{
    put_file("proc/meminfo", "MemTotal: 1024 kB\nMemAvailable: 512 kB\nCmaFree: 99999999999999999999 kB\n");
    look_at_fake();
    CHECK_EQUAL(snapshot.cma_free_bytes, 512 * KIB);
}

/* ---- reserve and floor ------------------------------------------------------------------------------------------- */

static struct sg_constraint kept(uint64_t limit_bytes, bool is_machine)
{
    struct sg_constraint constraint = {.limit_bytes = limit_bytes};
    sg_snapshot_set_reserve(&constraint, is_machine);
    return constraint;
}

static struct sg_constraint watched(uint64_t limit_bytes, bool is_machine)
{
    struct sg_constraint constraint = {.limit_bytes = limit_bytes};
    sg_snapshot_set_danger_lines(&constraint, is_machine);
    return constraint;
}

static void set_size(struct sg_size *size, const char *text)
{
    CHECK_EQUAL(sg_parse_size(text, size), 0);
}

CHILD_TEST(the_default_reserve_is_8_percent_and_the_floor_a_quarter_of_it)
{
    CHECK_EQUAL(kept(100 * GIB, true).reserve_bytes, 8 * GIB);
    CHECK_EQUAL(kept(100 * GIB, true).floor_bytes, 2 * GIB);
    CHECK_EQUAL(kept(100 * MIB, false).reserve_bytes, 8 * MIB);
    CHECK_EQUAL(kept(100 * MIB, false).floor_bytes, 2 * MIB);
}

CHILD_TEST(the_machine_keeps_at_least_512_mib_but_no_more_than_a_quarter_for_that)
{
    CHECK_EQUAL(kept(6 * GIB, true).reserve_bytes, 512 * MIB);
    CHECK_EQUAL(kept(2 * GIB, true).reserve_bytes, 512 * MIB);
    CHECK_EQUAL(kept(GIB, true).reserve_bytes, 256 * MIB);
    CHECK_EQUAL(kept(6400 * MIB, true).reserve_bytes, 512 * MIB);
    CHECK_EQUAL(kept(6500 * MIB, true).reserve_bytes, 520 * MIB);
}

CHILD_TEST(what_is_set_for_a_job_moves_no_line_of_the_watchdog)
{
    sg_store(&sg_settings.reserve_bytes, 50 * GIB);
    CHECK_EQUAL(kept(100 * GIB, true).reserve_bytes, 50 * GIB);
    CHECK_EQUAL(watched(100 * GIB, true).reserve_bytes, 8 * GIB);
    CHECK_EQUAL(watched(100 * GIB, true).floor_bytes, 2 * GIB);
    CHECK_EQUAL(watched(100 * MIB, false).floor_bytes, 2 * MIB);
}

CHILD_TEST(an_option_beyond_the_machine_moves_no_line_of_the_watchdog)
{
    set_size(&sg_options.reserve, "200G");
    set_size(&sg_options.floor, "100G");
    CHECK_EQUAL(watched(100 * GIB, true).reserve_bytes, 8 * GIB);
    CHECK_EQUAL(watched(100 * GIB, true).floor_bytes, 2 * GIB);
    set_size(&sg_options.reserve, "20G");
    set_size(&sg_options.floor, "10G");
    CHECK_EQUAL(watched(100 * GIB, true).reserve_bytes, 20 * GIB);
    CHECK_EQUAL(watched(100 * GIB, true).floor_bytes, 10 * GIB);
}

CHILD_TEST(a_reserve_in_percent_is_of_each_constraint)
{
    set_size(&sg_options.reserve, "10%");
    CHECK_EQUAL(kept(100 * GIB, true).reserve_bytes, 10 * GIB);
    CHECK_EQUAL(kept(GIB * 10, false).reserve_bytes, GIB);
    CHECK_EQUAL(kept(GIB, true).reserve_bytes, GIB / 10); /* asked for: no minimum */
    set_size(&sg_options.reserve, "50%");
    CHECK_EQUAL(kept(10 * GIB, false).reserve_bytes, 5 * GIB);
}

CHILD_TEST(a_reserve_in_bytes_is_at_most_a_quarter_of_a_cgroup)
{
    set_size(&sg_options.reserve, "12G");
    CHECK_EQUAL(kept(128 * GIB, true).reserve_bytes, 12 * GIB);
    CHECK_EQUAL(kept(48 * GIB, false).reserve_bytes, 12 * GIB);
    CHECK_EQUAL(kept(40 * GIB, false).reserve_bytes, 10 * GIB);
    CHECK_EQUAL(kept(24 * GIB, true).reserve_bytes, 12 * GIB);
    CHECK_EQUAL(kept(40 * GIB, false).floor_bytes, 10 * GIB / 4);
}

CHILD_TEST(the_floor_never_lies_above_the_reserve)
{
    set_size(&sg_options.reserve, "4G");
    set_size(&sg_options.floor, "1G");
    CHECK_EQUAL(kept(128 * GIB, true).floor_bytes, GIB);
    set_size(&sg_options.floor, "5G");
    CHECK_EQUAL(kept(128 * GIB, true).floor_bytes, 4 * GIB);
    set_size(&sg_options.floor, "2%");
    CHECK_EQUAL(kept(100 * GIB, true).floor_bytes, 2 * GIB);
}

CHILD_TEST(a_reserve_of_nothing_is_nothing)
{
    set_size(&sg_options.reserve, "0");
    CHECK_EQUAL(kept(128 * GIB, true).reserve_bytes, 0);
    CHECK_EQUAL(kept(128 * GIB, true).floor_bytes, 0);
}

/* ---- cgroups ----------------------------------------------------------------------------------------------------- */

static void put_v2(const char *group, const char *max, const char *high, uint64_t current, uint64_t file, uint64_t slab)
{
    char name[1100];
    (void)snprintf(name, sizeof name, "sys/fs/cgroup%s/memory.max", group);
    put_file(name, "%s\n", max);
    (void)snprintf(name, sizeof name, "sys/fs/cgroup%s/memory.high", group);
    put_file(name, "%s\n", high);
    (void)snprintf(name, sizeof name, "sys/fs/cgroup%s/memory.current", group);
    put_file(name, "%" PRIu64 "\n", current);
    (void)snprintf(name, sizeof name, "sys/fs/cgroup%s/memory.stat", group);
    put_file(name,
             "anon 1\nfile 999\nactive_file %" PRIu64 "\ninactive_file %" PRIu64 "\nslab_reclaimable %" PRIu64
             "\nslab_unreclaimable 77\nworkingset_refault_file 5\n",
             file / 2, file / 2, slab);
}

CHILD_TEST(every_level_of_v2_bounds)
{
    put_meminfo(128 * GIB, 100 * GIB);
    put_file("proc/self/cgroup", "0::/user.slice/job/leaf\n");
    put_v2("/user.slice", "42949672960", "max", 10 * GIB, 0, 0);                     /* 40 GiB */
    put_v2("/user.slice/job", "max", "max", 9 * GIB, 0, 0);                          /* no limit */
    put_v2("/user.slice/job/leaf", "21474836480", "10737418240", 4 * GIB, GIB, MIB); /* 20 GiB, high at 10 */
    look_at_fake();
    CHECK_EQUAL(snapshot.count, 3);
    CHECK_EQUAL(snapshot.at[1].limit_bytes, 10 * GIB); /* high is lower than max */
    CHECK_EQUAL(snapshot.at[1].headroom_bytes, 7 * GIB + MIB);
    CHECK_EQUAL(snapshot.at[1].reserve_bytes, 10 * GIB / 100 * 8 + 10 * GIB % 100 * 8 / 100);
    CHECK_EQUAL(snapshot.at[2].limit_bytes, 40 * GIB);
    CHECK_EQUAL(snapshot.at[2].headroom_bytes, 30 * GIB);
    CHECK_EQUAL(snapshot.at[0].headroom_bytes, 100 * GIB);
}

CHILD_TEST(a_group_beyond_its_limit_has_no_headroom)
{
    put_meminfo(128 * GIB, 100 * GIB);
    put_file("proc/self/cgroup", "0::/job\n");
    put_v2("/job", "1073741824", "max", 2 * GIB, 0, 0);
    look_at_fake();
    CHECK_EQUAL(snapshot.count, 2);
    CHECK_EQUAL(snapshot.at[1].headroom_bytes, 0);
}

CHILD_TEST(more_cache_than_usage_is_no_usage)
{
    put_meminfo(128 * GIB, 100 * GIB);
    put_file("proc/self/cgroup", "0::/job\n");
    put_v2("/job", "1073741824", "max", MIB, 4 * MIB, MIB);
    look_at_fake();
    CHECK_EQUAL(snapshot.at[1].headroom_bytes, GIB);
}

CHILD_TEST(v1_counts_with_the_hierarchical_totals)
{
    put_meminfo(128 * GIB, 100 * GIB);
    put_file("proc/self/cgroup", "12:cpu,cpuacct:/other\n4:cpuset,memory:/docker/abc\n1:name=systemd:/docker/abc\n");
    put_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put_file("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "%" PRIu64 "\n", 16 * GIB);
    put_file("sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "%" PRIu64 "\n", 6 * GIB);
    put_file("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "%" PRIu64 "\n", 8 * GIB);
    put_file("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "%" PRIu64 "\n", 5 * GIB);
    put_file("sys/fs/cgroup/memory/docker/abc/memory.stat",
             "active_file %" PRIu64 "\ntotal_active_file %" PRIu64 "\ntotal_inactive_file %" PRIu64 "\n", 3 * GIB, GIB,
             GIB);
    look_at_fake();
    CHECK_EQUAL(snapshot.count, 3);
    CHECK_EQUAL(snapshot.at[1].limit_bytes, 8 * GIB);
    CHECK_EQUAL(snapshot.at[1].headroom_bytes, 5 * GIB);
    CHECK_EQUAL(snapshot.at[2].limit_bytes, 16 * GIB);
    CHECK_EQUAL(snapshot.at[2].headroom_bytes, 10 * GIB);
}

CHILD_TEST(a_container_without_a_cgroup_namespace_finds_its_group_at_the_mount)
{
    put_meminfo(128 * GIB, 100 * GIB);
    put_file("proc/self/cgroup", "0::/system.slice/docker-0123456789abcdef.scope\n");
    put_v2("", "8589934592", "max", 2 * GIB, 0, 0);
    look_at_fake();
    CHECK_EQUAL(snapshot.count, 2);
    CHECK_EQUAL(snapshot.at[1].limit_bytes, 8 * GIB);
    CHECK_EQUAL(snapshot.at[1].headroom_bytes, 6 * GIB);
}

CHILD_TEST(v1_in_a_container_finds_its_group_at_the_mount)
{
    put_meminfo(128 * GIB, 100 * GIB);
    put_file("proc/self/cgroup", "4:memory:/docker/0123\n0::/docker/0123\n");
    put_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "%" PRIu64 "\n", 8 * GIB);
    put_file("sys/fs/cgroup/memory/memory.usage_in_bytes", "%" PRIu64 "\n", GIB);
    look_at_fake();
    CHECK_EQUAL(snapshot.count, 2);
    CHECK_EQUAL(snapshot.at[1].headroom_bytes, 7 * GIB);
}

CHILD_TEST(a_group_outside_our_namespace_bounds_by_what_is_seen)
{
    put_meminfo(128 * GIB, 100 * GIB);
    put_file("proc/self/cgroup", "0::/../../other\n");
    put_v2("", "8589934592", "max", 2 * GIB, 0, 0);
    put_file("other/memory.max", "4096\n");
    look_at_fake();
    CHECK_EQUAL(snapshot.count, 2);
    CHECK_EQUAL(snapshot.at[1].limit_bytes, 8 * GIB);
}

CHILD_TEST(of_more_groups_than_can_be_counted_those_that_leave_the_least_count)
{
    char path[64] = "", line[80];
    put_meminfo(128 * GIB, 100 * GIB);
    put_v2("", "209715200", "max", 0, 0, 0); /* 200 MiB, above all others */
    for (int i = 0; i < SG_ENTRY_LEVELS + 2; i++) {
        strcat(path, "/l");
        put_v2(path, "4294967296", "max", i == 3 ? 4 * GIB : 0, 0, 0); /* 4 GiB each; one is full */
    }
    (void)snprintf(line, sizeof line, "0::%s\n", path);
    put_file("proc/self/cgroup", "%s", line);
    look_at_fake();
    CHECK_EQUAL(snapshot.count, 1 + SG_ENTRY_LEVELS);
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t i = 1; i < snapshot.count; i++) {
        least = snapshot.at[i].limit_bytes < least ? snapshot.at[i].limit_bytes : least;
        most = snapshot.at[i].used_bytes > most ? snapshot.at[i].used_bytes : most;
    }
    CHECK_EQUAL(least, 200 * MIB);
    CHECK_EQUAL(most, 4 * GIB);
    CHECK_EQUAL(snapshot.at[SG_ENTRY_LEVELS].limit_bytes, 200 * MIB); /* the lowest first */
    CHECK(strstr(sg_own->event[0].what, "cgroups: more have a limit than can be counted") != NULL);
}

CHILD_TEST(a_group_with_a_long_path_bounds)
{
    char path[800] = "", line[900];
    put_meminfo(128 * GIB, 100 * GIB);
    for (int i = 0; i < 4; i++)
        (void)sprintf(path + strlen(path), "/%0120d", i);
    put_v2(path, "1073741824", "max", MIB, 0, 0);
    (void)snprintf(line, sizeof line, "0::%s\n", path);
    put_file("proc/self/cgroup", "%s", line);
    look_at_fake();
    CHECK_EQUAL(snapshot.count, 2);
    CHECK_EQUAL(snapshot.at[1].limit_bytes, GIB);
}

CHILD_TEST(no_group_bounds_nothing)
{
    put_meminfo(128 * GIB, 100 * GIB);
    put_file("proc/self/cgroup", "0::/\n");
    look_at_fake();
    CHECK_EQUAL(snapshot.count, 1);
}

CHILD_TEST(a_limit_of_zero_is_a_limit)
{
    put_meminfo(128 * GIB, 100 * GIB);
    put_file("proc/self/cgroup", "0::/job\n");
    put_v2("/job", "0", "max", 0, 0, 0);
    look_at_fake();
    CHECK_EQUAL(snapshot.count, 2);
    CHECK_EQUAL(snapshot.at[1].headroom_bytes, 0);
}

/* Groups are looked up once a second, so each case has a process of its own. */
CHILD_TEST(garbage_of_a_group_is_survived)
{
    const char *const garbage[] = {"",           "garbage\n",     ":::\n",
                                   "0::",        "0::no-slash\n", "0:\n",
                                   "4:memory\n", "\n\n0::/x\n",   "4:memoryx,xmemory:/job\n",
                                   "0:/job\n",   "1::/job\n"};
    put_meminfo(128 * GIB, 100 * GIB);
    put_v2("/job", "1024", "max", 0, 0, 0);
    put_file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1024\n");
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        put_file("proc/self/cgroup", "%s", garbage[i]);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            look_at_fake();
            CHECK(snapshot.is_valid);
            CHECK_EQUAL(snapshot.count, 1);
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

CHILD_TEST(more_levels_than_there_is_room_for_are_survived)
{
    char group[256] = "";
    put_meminfo(128 * GIB, 100 * GIB);
    for (int i = 0; i < 12; i++) {
        strcat(group, "/a");
        put_v2(group, "1073741824", "max", MIB, 0, 0);
    }
    put_file("proc/self/cgroup", "0::%s\n", group);
    look_at_fake();
    CHECK_EQUAL(snapshot.count, SG_CONSTRAINT_CAPACITY);
}

CHILD_TEST(usage_is_read_at_every_look)
{
    put_meminfo(128 * GIB, 100 * GIB);
    put_file("proc/self/cgroup", "0::/job\n");
    put_v2("/job", "1073741824", "max", MIB, 0, 0);
    look_at_fake();
    CHECK_EQUAL(snapshot.at[1].headroom_bytes, GIB - MIB);
    put_v2("/job", "1073741824", "max", 100 * MIB, 0, 0);
    look_at_fake();
    CHECK_EQUAL(snapshot.at[1].headroom_bytes, GIB - 100 * MIB);
}

/* As after default_hugepagesz=1G on the kernel's command line. */
CHILD_TEST(huge_pages_are_of_the_kernels_default_size)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
    use_fake_root();
    put_meminfo(8 * GIB, 4 * GIB);
    uint64_t usual = sg_mapping_kind_of(1, PROT_READ | PROT_WRITE, flags, -1, 0).bytes;
    CHECK(usual > (uint64_t)sysconf(_SC_PAGESIZE) && usual < GIB);
    put_file("proc/meminfo", "MemTotal: 8388608 kB\nHugepagesize:    1048576 kB\n");
    CHECK_EQUAL(sg_mapping_kind_of(1, PROT_READ | PROT_WRITE, flags, -1, 0).bytes, GIB);
    CHECK_EQUAL(sg_mapping_kind_of(1, PROT_READ, flags | 21 << 26, -1, 0).bytes, 2 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(meminfo_is_read_in_bytes),
        cmocka_unit_test(meminfo_without_cma_has_none),
        cmocka_unit_test(available_is_never_more_than_total),
        cmocka_unit_test(missing_meminfo_falls_back_to_sysinfo),
        cmocka_unit_test(meminfo_without_available_falls_back_to_sysinfo),
        cmocka_unit_test(garbage_in_meminfo_falls_back_to_sysinfo),
        cmocka_unit_test(available_that_is_no_number_is_nothing),
        cmocka_unit_test(a_huge_cma_figure_takes_no_more_than_there_is),
        cmocka_unit_test(the_default_reserve_is_8_percent_and_the_floor_a_quarter_of_it),
        cmocka_unit_test(the_machine_keeps_at_least_512_mib_but_no_more_than_a_quarter_for_that),
        cmocka_unit_test(what_is_set_for_a_job_moves_no_line_of_the_watchdog),
        cmocka_unit_test(an_option_beyond_the_machine_moves_no_line_of_the_watchdog),
        cmocka_unit_test(a_reserve_in_percent_is_of_each_constraint),
        cmocka_unit_test(a_reserve_in_bytes_is_at_most_a_quarter_of_a_cgroup),
        cmocka_unit_test(the_floor_never_lies_above_the_reserve),
        cmocka_unit_test(a_reserve_of_nothing_is_nothing),
        cmocka_unit_test(every_level_of_v2_bounds),
        cmocka_unit_test(a_group_beyond_its_limit_has_no_headroom),
        cmocka_unit_test(more_cache_than_usage_is_no_usage),
        cmocka_unit_test(v1_counts_with_the_hierarchical_totals),
        cmocka_unit_test(a_container_without_a_cgroup_namespace_finds_its_group_at_the_mount),
        cmocka_unit_test(v1_in_a_container_finds_its_group_at_the_mount),
        cmocka_unit_test(a_group_outside_our_namespace_bounds_by_what_is_seen),
        cmocka_unit_test(of_more_groups_than_can_be_counted_those_that_leave_the_least_count),
        cmocka_unit_test(a_group_with_a_long_path_bounds),
        cmocka_unit_test(no_group_bounds_nothing),
        cmocka_unit_test(a_limit_of_zero_is_a_limit),
        cmocka_unit_test(garbage_of_a_group_is_survived),
        cmocka_unit_test(more_levels_than_there_is_room_for_are_survived),
        cmocka_unit_test(usage_is_read_at_every_look),
        cmocka_unit_test(huge_pages_are_of_the_kernels_default_size),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
