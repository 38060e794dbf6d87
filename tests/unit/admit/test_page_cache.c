/*
 * test_page_cache.c - what the kernel is asked for before the driver is called, and when that ends.
 *
 * The system calls that matter are answered here: a filter turns them into SIGSYS, and the handler notes them and plays
 * the kernel: an old one, a slow one, one whose files lie on a server. The rest is real.
 */
#include "fixture.h"

#include "base/atomics.h"
#include "base/options.h"
#include "admit/reclaim/page_cache.h"
#include "shared/own_entry.h"
#include "base/seccomp.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/text.h"

#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

enum { POPULATE_WRITE = 23, WISHES_MAX = 64, WISH_CAPACITY = 48, OWN_WAY = 77 };
#define REQUEST (512 * MIB)
#define FREE (100 * MIB)
#define NEEDED (REQUEST + 8 * MIB - FREE) /* with what is spared for others */

static struct {
    char wish[WISHES_MAX][WISH_CAPACITY];
    uint64_t wished_bytes, dropped;
    uint64_t now_ns;  /* the clock: time passes in calls only */
    uint64_t call_ns; /* that each takes */
    uint32_t wishes, identified;
    bool is_old;       /* knows no swappiness= */
    bool is_populated; /* memory was populated, or a process made */
} kernel;

/* In the place of the library's, which reads the vDSO: there nobody can answer for the kernel. */
uint64_t sg_clock_ns(int clock)
{
    struct timespec now = {0, 0};
    (void)sg_sys_clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* In the place of the library's, for this filter is no sandbox but the kernel. */
bool sg_seccomp_is_on(void)
{
    return false;
}

bool sg_seccomp_is_strict(void)
{
    return false;
}

static long take_wish(const char *text, size_t length)
{
    char *wish = kernel.wish[kernel.wishes++ % WISHES_MAX];
    memcpy(wish, text, length < WISH_CAPACITY ? length : WISH_CAPACITY - 1);
    if (kernel.is_old && strstr(wish, "swappiness") != NULL)
        return -EINVAL;
    kernel.wished_bytes += strtoull(wish, NULL, 10);
    return (long)length;
}

/* Of a regular file of 1 MiB or more. */
static bool is_fdinfo(const char *path)
{
    struct stat info = {0};
    const char *name = strstr(path, "/fdinfo/");
    return name != NULL && fstat(atoi(name + sizeof "/fdinfo/" - 1), &info) == 0 && S_ISREG(info.st_mode) &&
           info.st_size >= (off_t)MIB;
}

/* Opens in this test's own way, which the filter lets pass. The mounts are invented. */
static long open_for(long directory, const char *path, long flags)
{
    kernel.identified += is_fdinfo(path);
    if (strstr(path, "/mountinfo") != NULL)
        path = in_folder("mountinfo");
    return sg_syscall(SYS_openat, directory, (long)path, flags, 0, 0, OWN_WAY);
}

static long answer(long number, long first, long second, long third)
{
    if (number == SYS_clock_gettime) {
        *(struct timespec *)second =
            (struct timespec){(time_t)(kernel.now_ns / 1000000000), (long)(kernel.now_ns % 1000000000)};
        return 0;
    }
    if (number == SYS_openat) {
        kernel.now_ns += is_fdinfo((const char *)second) ? kernel.call_ns : 0;
        return open_for(first, (const char *)second, third);
    }
    kernel.now_ns += kernel.call_ns;
    if (number == SYS_madvise) {
        kernel.is_populated = true;
        return 0;
    }
    if (number == SYS_write)
        return take_wish((const char *)second, (size_t)third);
    kernel.dropped += number == SYS_fadvise64;
    return 0;
}

static void handle(int signal, siginfo_t *info, void *context)
{
    mcontext_t *machine = &((ucontext_t *)context)->uc_mcontext;
    (void)signal;
#if defined(__x86_64__)
    machine->gregs[REG_RAX] =
        answer(info->si_syscall, machine->gregs[REG_RDI], machine->gregs[REG_RSI], machine->gregs[REG_RDX]);
#else
    machine->regs[0] =
        (uint64_t)answer(info->si_syscall, (long)machine->regs[0], (long)machine->regs[1], (long)machine->regs[2]);
#endif
}

/* From now on the kernel is ours: what is written anywhere but to the standard streams is a wish. The clock is read
 * under the decision lock too, where SIGSYS must not be blocked. */
static bool play_kernel(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigprocmask, 13, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 10, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fadvise64, 9, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[5])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN_WAY, 7, 6),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 2, 3, 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, POPULATE_WRITE, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO), /* done, says the kernel, and blocks no signal */
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    return sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 &&
           syscall(SYS_fadvise64, -1, 0, 0, 0) == 0; /* from an invented kernel */
}

/* The mount of the test's file, as the kernel shows it, with a file system of this type. */
static void put_mount(int fd, const char *type)
{
    char path[64], info[256] = "";
    CHECK(snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd) > 0);
    CHECK(sg_text_read_file(path, info, sizeof info) > 0);
    put_file("mountinfo",
             "1 0 0:1 / / rw - tmpfs - rw\n"
             "%" PRIu64 " 1 8:1 /a\\040-\\040b /mnt\\040- rw,noatime shared:1 master:2 - %s /dev/sda1 rw\n",
             sg_text_read_field(info, "mnt_id:", 0), type);
}

/* 100 MiB are free of 10 GiB that are available; in a cgroup with as much room as said. A file is open, on a file
 * system of type `type`. */
static void begin_on(const char *type, uint64_t cgroup_room, uint64_t swap)
{
    strcpy(sg_options.system_root, fixture_folder);
    put_file("proc/meminfo",
             "MemTotal: %" PRIu64 " kB\nMemFree: %" PRIu64 " kB\nMemAvailable: %" PRIu64 " kB\nSwapFree: %" PRIu64
             " kB\n",
             64 * GIB / KIB, FREE / KIB, 10 * GIB / KIB, swap / KIB);
    put_file("proc/self/cgroup", "0::/job\n");
    put_file("sys/fs/cgroup/job/memory.max", "%" PRIu64 "\n", 8 * GIB);
    put_file("sys/fs/cgroup/job/memory.current", "%" PRIu64 "\n", 8 * GIB - cgroup_room);
    put_file("sys/fs/cgroup/job/memory.reclaim", "%s", "");
    int fd = open(in_folder("weights"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)(2 * MIB)) == 0);
    put_mount(fd, type);
}

static void begin(uint64_t cgroup_room, uint64_t swap)
{
    begin_on("ext4", cgroup_room, swap);
}

/* Answers how long it took. */
static uint64_t reclaim_for(uint64_t bytes)
{
    kernel.now_ns = clock_ns();
    if (!play_kernel())
        SKIP("no seccomp here (qemu-user)");
    uint64_t begin_ns = kernel.now_ns;
    kernel.identified = 0;
    kernel.dropped = 0;
    sg_page_cache_reclaim(bytes);
    return kernel.now_ns - begin_ns;
}

/* ---- memory.reclaim ---------------------------------------------------------------------------------------------- */

CHILD_TEST(the_cgroup_is_asked_for_files_only_and_in_steps)
{
    begin(0, 8 * GIB);
    (void)reclaim_for(REQUEST);
    CHECK_EQUAL(kernel.wished_bytes, NEEDED);
    CHECK_EQUAL(kernel.wishes, 4);
    for (uint32_t i = 0; i < kernel.wishes; i++) {
        CHECK(strtoull(kernel.wish[i], NULL, 10) <= 128 * MIB);
        CHECK_TEXT(strchr(kernel.wish[i], ' '), " swappiness=0\n");
    }
}

CHILD_TEST(an_old_kernel_is_asked_plainly_where_there_is_no_swap)
{
    begin(0, 0);
    kernel.is_old = true;
    (void)reclaim_for(REQUEST);
    CHECK_EQUAL(kernel.wished_bytes, NEEDED);
    CHECK_EQUAL(kernel.wishes, 1 + 4);
    CHECK_TEXT(kernel.wish[1], "134217728\n");
}

CHILD_TEST(an_old_kernel_is_asked_plainly_where_the_cgroup_may_not_swap)
{
    begin(0, 8 * GIB);
    put_file("sys/fs/cgroup/job/memory.swap.max", "0\n");
    kernel.is_old = true;
    (void)reclaim_for(REQUEST);
    CHECK_EQUAL(kernel.wished_bytes, NEEDED);
}

CHILD_TEST(an_old_kernel_that_may_swap_is_not_asked)
{
    begin(0, 8 * GIB);
    put_file("sys/fs/cgroup/job/memory.swap.max", "max\n");
    kernel.is_old = true;
    (void)reclaim_for(REQUEST);
    CHECK_EQUAL(kernel.wished_bytes, 0);
    CHECK_EQUAL(kernel.wishes, 1);
    CHECK(kernel.dropped != 0);
}

/* ---- the files of this process ----------------------------------------------------------------------------------- */

CHILD_TEST(the_cache_of_files_on_local_file_systems_goes)
{
    begin_on("btrfs", 0, 0);
    (void)reclaim_for(REQUEST);
    CHECK(kernel.dropped != 0);
}

static void check_left_alone(const char *type)
{
    begin_on(type, 0, 0);
    (void)reclaim_for(REQUEST);
    CHECK_EQUAL(kernel.dropped, 0);
}

CHILD_TEST(files_on_a_server_are_left_alone)
{
    check_left_alone("nfs4");
}

CHILD_TEST(files_of_another_process_are_left_alone)
{
    check_left_alone("fuse.sshfs");
}

CHILD_TEST(files_that_are_memory_are_left_alone)
{
    check_left_alone("tmpfs");
}

/* ---- how long it takes: 3 s, and the call under way then --------------------------------------------------------- */

#define CALL_NS UINT64_C(400000000)
#define LONGEST_NS (8 * CALL_NS)

CHILD_TEST(a_slow_cgroup_is_not_asked_for_more_than_three_seconds)
{
    begin(4 * GIB, 0);
    kernel.call_ns = CALL_NS;
    CHECK_EQUAL(reclaim_for(3 * GIB), LONGEST_NS);
    CHECK_EQUAL(kernel.wishes, 8);
}

CHILD_TEST(files_are_not_looked_at_for_more_than_three_seconds)
{
    begin_on("nfs4", 4 * GIB, 0);
    for (int i = 0; i < 20; i++)
        CHECK(open(in_folder("weights"), O_RDONLY | O_CLOEXEC) >= 0);
    kernel.call_ns = CALL_NS;
    CHECK_EQUAL(reclaim_for(REQUEST), LONGEST_NS);
    CHECK_EQUAL(kernel.wishes, 4);
    CHECK_EQUAL(kernel.identified, 4);
}

CHILD_TEST(the_cache_of_a_large_file_is_not_dropped_for_more_than_three_seconds)
{
    begin(4 * GIB, 0);
    CHECK(truncate(in_folder("weights"), (off_t)(20 * GIB)) == 0);
    kernel.call_ns = CALL_NS;
    CHECK_EQUAL(reclaim_for(REQUEST), LONGEST_NS);
    CHECK_EQUAL(kernel.dropped, 3);
}

/* 4 steps in the cgroup and 2 calls for the file. Nothing that the kernel could end this process for follows. */
CHILD_TEST(no_memory_is_populated_where_all_that_was_not_enough)
{
    begin(4 * GIB, 0);
    kernel.call_ns = CALL_NS;
    CHECK_EQUAL(reclaim_for(REQUEST), 6 * CALL_NS);
    CHECK_EQUAL(kernel.wishes, 4);
    CHECK_EQUAL(kernel.dropped, 1);
    CHECK(!kernel.is_populated);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cgroup_is_asked_for_files_only_and_in_steps),
        cmocka_unit_test(an_old_kernel_is_asked_plainly_where_there_is_no_swap),
        cmocka_unit_test(an_old_kernel_is_asked_plainly_where_the_cgroup_may_not_swap),
        cmocka_unit_test(an_old_kernel_that_may_swap_is_not_asked),
        cmocka_unit_test(the_cache_of_files_on_local_file_systems_goes),
        cmocka_unit_test(files_on_a_server_are_left_alone),
        cmocka_unit_test(files_of_another_process_are_left_alone),
        cmocka_unit_test(files_that_are_memory_are_left_alone),
        cmocka_unit_test(a_slow_cgroup_is_not_asked_for_more_than_three_seconds),
        cmocka_unit_test(files_are_not_looked_at_for_more_than_three_seconds),
        cmocka_unit_test(the_cache_of_a_large_file_is_not_dropped_for_more_than_three_seconds),
        cmocka_unit_test(no_memory_is_populated_where_all_that_was_not_enough),
    };
    return cmocka_run_group_tests_name("reclaim", tests, NULL, NULL);
}
