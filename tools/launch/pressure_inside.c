/*
 * pressure_inside.c - --on-pressure, in the helper process: runs the command when the library asks. See pressure.h.
 */
#include "launch/pressure_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/inside.h"
#include "launch/launch.h"
#include "common/text.h"
#include "sparkguard_abi.h"

#define VARIABLE_WANTED "SPARKGUARD_WANTED_BYTES"

/* Says once that the command fails: it may never have worked. */
static void complain_once(int status)
{
    static bool has_complained;
    char signal_text[TEXT_TIME_CAPACITY];
    if (!has_complained && WIFEXITED(status) && WEXITSTATUS(status) != 0)
        fprintf(stderr, "sparkguard: the command of --on-pressure ended with exit status %d\n", WEXITSTATUS(status));
    else if (!has_complained && WIFSIGNALED(status))
        fprintf(stderr, "sparkguard: the command of --on-pressure was killed by %s\n",
                text_signal(signal_text, WTERMSIG(status)));
    has_complained = has_complained || status != 0;
}

/* Runs the command in a shell and waits for it. */
static void run_command(uint64_t wanted_bytes, const char *command)
{
    char wanted[32];
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        snprintf(wanted, sizeof wanted, "%" PRIu64, wanted_bytes);
        setenv(VARIABLE_WANTED, wanted, 1);
        launch_become_shell(command);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    complain_once(status);
}

/* Called on the library's thread. Returns how long the program still has: it has answered when the command ends. */
static uint64_t answer(uint64_t wanted_bytes, void *command)
{
    run_command(wanted_bytes, command);
    return 0;
}

void launch_pressure_inside(char **argv)
{
    int pipe_end;
    char byte;
    int (*help)(uint64_t(*)(uint64_t, void *), void *) = NULL;
    if (argv[1] == NULL || sscanf(argv[1], LAUNCH_PRESSURE_INSIDE "%d", &pipe_end) != 1 || argv[2] == NULL)
        return;
    fcntl(pipe_end, F_SETFD, FD_CLOEXEC); /* a command may outlive this process */
    launch_find_export("sparkguard_help", &help, sizeof help);
    int result = help != NULL ? help(answer, argv[2]) : -ENOSYS;
    if (result != 0)
        fprintf(stderr, "sparkguard: this job has no give-back callback: %s\n", strerror(-result));
    while (result == 0 && read(pipe_end, &byte, 1) < 0 && errno == EINTR)
        continue;
    _exit(0);
}
