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
    char *const arguments[] = {self, inside, text_copy(launch->pressure.command, SIZE_MAX), NULL};
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
    if (pressure->command == NULL)
        return;
    if (!launch->may_guard) {
        fputs("sparkguard: --on-pressure has no effect: the program is not guarded\n", stderr);
        return;
    }
    if (pipe2(ends, O_CLOEXEC) == 0) {
        pressure->helper = fork();
        if (pressure->helper == 0)
            become_helper(launch, ends[0]);
        if (pressure->helper > 0) /* here, too: the program may end before the helper runs */
            (void)setpgid(pressure->helper, pressure->helper);
        close(ends[0]);
        pressure->to_helper = ends[1];
    }
    if (pressure->helper <= 0) {
        fprintf(stderr, "sparkguard: nobody can ask this job for memory: cannot start a process: %s\n",
                strerror(errno));
        pressure->helper = 0;
    }
}

void launch_pressure_end(struct launch *launch)
{
    struct launch_pressure *pressure = &launch->pressure;
    if (pressure->helper == 0)
        return;
    kill(-pressure->helper, SIGKILL); /* a command that hangs must not hold the launcher up */
    while (waitpid(pressure->helper, NULL, 0) < 0 && errno == EINTR)
        continue;
    close(pressure->to_helper);
    pressure->helper = 0;
}
