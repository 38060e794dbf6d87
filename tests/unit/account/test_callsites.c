/*
 * test_callsites.c - call sites get their names when that is possible.
 */
#include "fixture.h"

#include "account/callsites.h"
#include "shared/segment.h"

#include <sys/resource.h>

static const struct rlimit no_file = {0, 1024}, files = {1024, 1024};

static bool is_named(uint32_t number)
{
    return sg_own->site[SG_CALLSITES_CUDA][number].is_named != 0;
}

CHILD_TEST(site_that_could_not_be_named_is_named_by_a_child_that_can)
{
    CHECK(setrlimit(RLIMIT_NOFILE, &no_file) == 0);
    uint32_t number = sg_callsites_enter(SG_CALLSITES_CUDA, SG_DOMAIN_DEVICE, (const void *)(uintptr_t)is_named, MIB);
    sg_callsites_name_late();
    CHECK(!is_named(number));
    sg_callsites_before_fork();
    pid_t child = fork();
    if (child == 0) {
        sg_callsites_atfork_child();
        (void)setrlimit(RLIMIT_NOFILE, &files);
        sg_callsites_name_late();
        _exit(is_named(number) ? 0 : 1);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(site_that_could_not_be_named_is_named_by_a_child_that_can),
    };
    return cmocka_run_group_tests_name("call sites", tests, NULL, NULL);
}
