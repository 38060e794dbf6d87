/*
 * test_seccomp.c - what the library calls under a filter of system calls.
 */
#include "fixture.h"

#include "base/seccomp.h"
#include "base/syscall.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum { MADE = 77, CALLS = 512 };

#ifdef __SANITIZE_ADDRESS__
#define NO_FILTER "AddressSanitizer itself makes calls at the end of a process"
#else
#define NO_FILTER "no seccomp here (qemu-user)"
#endif

/* Every call is answered at once, apart from those that read what the kernel says of filters. Without `is_own` the
 * filter is an administrator's, which needs the right to install filters. */
static bool answer_calls(bool is_own)
{
#ifdef __SANITIZE_ADDRESS__
    return false;
#endif
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | MADE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    if (is_own && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return false;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 && syscall(SYS_getpid) == -1;
}

static const long never_made[] = {
    SYS_mincore,
    SYS_fstatfs,
    SYS_rt_sigpending,
    SYS_msync,
    SYS_tkill,
    SYS_tgkill,
    SYS_process_vm_readv,
    SYS_sched_getscheduler,
    SYS_sched_setscheduler,
    SYS_getrusage,
    SYS_ptrace,
    SYS_mount,
    SYS_sync_file_range,
};

CHILD_TEST(calls_that_few_programs_need_are_not_made_under_a_filter)
{
    if (!answer_calls(true))
        SKIP(NO_FILTER);
    for (size_t i = 0; i < sizeof never_made / sizeof never_made[0]; i++)
        CHECK_EQUAL(sg_syscall(never_made[i], 0, 0, 0, 0, 0, 0), -EPERM);
}

/* A call that is new in the library belongs to the rare ones until somebody says otherwise. */
CHILD_TEST(unknown_calls_are_not_made_under_a_filter)
{
    long made = 0;
    if (!answer_calls(true))
        SKIP(NO_FILTER);
    for (long number = 0; number < CALLS; number++)
        made += !sg_is_ordinary_call(number) && sg_syscall(number, 0, 0, 0, 0, 0, 0) != -EPERM;
    CHECK_EQUAL(made, 0);
    CHECK_EQUAL(sg_syscall(SYS_munmap, 0, 0, 0, 0, 0, 0), -MADE);
}

CHILD_TEST(all_calls_are_made_where_there_is_no_filter)
{
    unsigned char resident = 0;
    void *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    CHECK_EQUAL(sg_syscall(SYS_mincore, (long)page, 1, (long)&resident, 0, 0, 0), 0);
}

CHILD_TEST(filter_of_the_program_itself_is_told_from_an_administrators)
{
    if (!answer_calls(false))
        SKIP("no right to install filters");
    CHECK(sg_seccomp_is_on());
    CHECK(!sg_seccomp_is_strict());
}

CHILD_TEST(filter_with_no_new_privs_is_the_programs_own)
{
    if (!answer_calls(true))
        SKIP(NO_FILTER);
    CHECK(sg_seccomp_is_on());
    CHECK(sg_seccomp_is_strict());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_few_programs_need_are_not_made_under_a_filter),
        cmocka_unit_test(unknown_calls_are_not_made_under_a_filter),
        cmocka_unit_test(all_calls_are_made_where_there_is_no_filter),
        cmocka_unit_test(filter_of_the_program_itself_is_told_from_an_administrators),
        cmocka_unit_test(filter_with_no_new_privs_is_the_programs_own),
    };
    return cmocka_run_group_tests_name("seccomp", tests, NULL, NULL);
}
