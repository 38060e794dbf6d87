/*
 * pressure.c - the launcher's side of --on-pressure; see pressure.h.
 */
#define _GNU_SOURCE
#include "launch/pressure.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/text.h"
#include "launch/inside.h"
#include "launch/launch.h"
#include "launch/pressure_inside.h"

/* Becomes the helper, in a process group of its own: ^C is for the program. */
static void become_helper(const struct launch *launch, int pipe_end)
{
    char *self = launch_own_path();
    char *inside = text_format(LAUNCH_PRESSURE_INSIDE "%d", pipe_end);
    char *command = text_copy(launch->pressure.command, SIZE_MAX);
    char *const arguments[] = {self, inside, command, NULL};
    setenv(sg_option_table[SG_OPTION_JOB].variable, launch->job, 1);
    setpgid(0, 0);
    fcntl(pipe_end, F_SETFD, 0);
    execv(self, arguments);
    _exit(LAUNCH_FAILED);
}

void launch_pressure_begin(struct launch *launch)
{
    int ends[2];
    struct launch_pressure *pressure = &launch->pressure;
    if (pressure->command == NULL || !launch->is_guarded)
        return;
    if (pipe2(ends, O_CLOEXEC) == 0) {
        pressure->helper = fork();
        if (pressure->helper == 0)
            become_helper(launch, ends[0]);
        close(ends[0]);
        pressure->to_helper = ends[1];
    }
    if (pressure->helper <= 0) {
        fprintf(stderr, "sparkguard: --on-pressure has no effect: cannot start a process: %s\n", strerror(errno));
        pressure->helper = 0;
    }
}

void launch_pressure_end(struct launch *launch)
{
    if (launch->pressure.helper == 0)
        return;
    close(launch->pressure.to_helper);
    kill(-launch->pressure.helper, SIGKILL); /* a command that hangs must not hold the launcher up */
    while (waitpid(launch->pressure.helper, NULL, 0) < 0 && errno == EINTR)
        continue;
    launch->pressure.helper = 0;
}
