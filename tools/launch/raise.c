/*
 * raise.c - see launch.h.
 */
#include "launch/launch.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/text.h"
#include "sparkguard_abi.h"
#include "sparkguard_options.h"

/* How long requests that are under way are waited for. */
#define UNDER_WAY_NS UINT64_C(900000000)

/* The first argument of the process that raises the claim, with the claim's new size and launch_set_name. */
#define RAISE_INSIDE "--in-raise="

/* Runs in the child. */
static void become_raiser(const struct launch *launch, uint64_t bytes)
{
    char *why, *library = launch_find_library(launch, &why);
    if (library == NULL) {
        fprintf(stderr, "sparkguard: %s: %s\n", launch_set_name, why);
        _exit(SET_NOT_ALLOWED);
    }
    char *arguments[] = {launch_own_path(), text_format(RAISE_INSIDE "%" PRIu64 ",%s", bytes, launch_set_name), NULL};
    unsetenv(sg_option_table[SG_OPTION_LIMIT].variable); /* this process's, not the job's */
    unsetenv(sg_option_table[SG_OPTION_MODE].variable);
    setenv(sg_option_table[SG_OPTION_JOB].variable, launch->set_job, 1);
    setenv(sg_option_table[SG_OPTION_DIR].variable, launch->directory, 1);
    launch_preload(library);
    execv(arguments[0], arguments);
    fprintf(stderr, "sparkguard: %s: cannot run %s: %s\n", launch_set_name, arguments[0], strerror(errno));
    _exit(SET_NOT_ALLOWED);
}

int launch_raise(const struct launch *launch, uint64_t bytes)
{
    int status;
    fflush(NULL);
    signal(SIGCHLD, SIG_DFL); /* it may be inherited as ignored: then no status would come */
    pid_t child = fork();
    if (child == 0)
        become_raiser(launch, bytes);
    while (child > 0 && waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            child = -1;
    if (child < 0)
        fprintf(stderr, "sparkguard: %s: cannot start a process: %s\n", launch_set_name, strerror(errno));
    else if (!WIFEXITED(status))
        fprintf(stderr, "sparkguard: %s: the process that raises the claim was killed\n", launch_set_name);
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : SET_NOT_ALLOWED;
}

static int raise_claim(uint64_t bytes)
{
    struct sg_claim_order order = {.bytes = bytes, .wait_ns = UNDER_WAY_NS};
    int (*attempt)(struct sg_claim_order *) = NULL;
    launch_find_export("sparkguard_raise_claim", &attempt, sizeof attempt);
    int failure = attempt != NULL ? -attempt(&order) : ENOSYS;
    const char *size = text_size(bytes);
    if (failure == 0)
        return 0;
    if (failure == EAGAIN)
        fprintf(stderr, "sparkguard: %s: the claim cannot be raised to %s now: %s more can be claimed; ",
                launch_set_name, size, text_size(bytes_less(order.usable_bytes, order.reserve_bytes)));
    else if (failure == E2BIG)
        fprintf(stderr, "sparkguard: %s: %s can never be claimed here, at most %s; ", launch_set_name, size,
                text_size(order.most_bytes));
    else if (failure == EXDEV)
        fprintf(stderr,
                "sparkguard: %s: the job claims in a cgroup that this process is not in, and only from there can the "
                "claim be raised; ",
                launch_set_name);
    else
        fprintf(stderr, "sparkguard: %s: the claim cannot be raised: %s; ", launch_set_name,
                failure == ENOENT      ? "the job has none any more"
                : failure == ECANCELED ? "others keep changing it"
                : failure == ENOLCK    ? "the processes here share no memory (see sparkguard-doctor)"
                : failure == ENOSYS    ? "the guard is disabled"
                                       : strerror(failure));
    fputs("nothing is changed\n", stderr);
    return SET_NOT_ALLOWED;
}

void launch_raise_inside(char **argv)
{
    static char name[8];
    uint64_t bytes;
    if (argv[1] == NULL || sscanf(argv[1], RAISE_INSIDE "%" SCNu64 ",%7s", &bytes, name) != 2)
        return;
    launch_set_name = name;
    _exit(raise_claim(bytes));
}
