/*
 * pressure.c - the launcher's side of --on-pressure and --pressure-socket; see pressure.h.
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
#include "launch/pressure_socket.h"

/* Becomes the helper, in a process group of its own: ^C is for the program. */
static void become_helper(const struct launch *launch, int pipe_end)
{
    const struct launch_pressure *pressure = &launch->pressure;
    const bool has_socket = pressure->socket_path != NULL;
    char *self = launch_own_path();
    char *inside = text_format(LAUNCH_PRESSURE_INSIDE "%d,%d", pipe_end, has_socket ? pressure->listener : -1);
    char *path = text_copy(has_socket ? pressure->socket_path : "", SIZE_MAX);
    char *command = pressure->command != NULL ? text_copy(pressure->command, SIZE_MAX) : NULL;
    char *const arguments[] = {self, inside, path, command, NULL};
    setenv(sg_option_table[SG_OPTION_JOB].variable, launch->job, 1);
    setpgid(0, 0);
    fcntl(pipe_end, F_SETFD, 0);
    if (has_socket)
        fcntl(pressure->listener, F_SETFD, 0);
    execv(self, arguments);
    _exit(LAUNCH_FAILED);
}

void launch_pressure_prepare(struct launch *launch)
{
    struct launch_pressure *pressure = &launch->pressure;
    if ((pressure->is_socket_wanted || pressure->command != NULL) && !launch->may_guard)
        fprintf(stderr, "sparkguard: %s has no effect: the program is not guarded\n",
                pressure->is_socket_wanted ? "--pressure-socket" : "--on-pressure");
    if (!pressure->is_socket_wanted || !launch->may_guard)
        return;
    pressure->listener = pressure_socket_make(&pressure->socket_path);
    if (pressure->listener < 0) {
        fprintf(stderr, "sparkguard: --pressure-socket has no effect: cannot make a socket: %s\n", strerror(errno));
        return;
    }
    setenv("MEMORY_PRESSURE_WATCH", pressure->socket_path, 1);
    unsetenv("MEMORY_PRESSURE_WRITE"); /* what a service manager wants written to its own file */
}

static void close_listener(struct launch_pressure *pressure)
{
    if (pressure->socket_path != NULL && pressure->listener >= 0)
        close(pressure->listener);
    pressure->listener = -1;
}

void launch_pressure_begin(struct launch *launch)
{
    int ends[2];
    struct launch_pressure *pressure = &launch->pressure;
    if ((pressure->command == NULL && pressure->socket_path == NULL) || !launch->may_guard)
        return;
    if (pipe2(ends, O_CLOEXEC) == 0) {
        pressure->helper = fork();
        if (pressure->helper == 0)
            become_helper(launch, ends[0]);
        if (pressure->helper > 0) /* here, too: the program may end before the helper runs */
            (void)setpgid(pressure->helper, pressure->helper);
        close(ends[0]);
        pressure->to_helper = ends[1];
    }
    close_listener(pressure); /* without the helper's end, connections are refused instead of never answered */
    if (pressure->helper <= 0) {
        fprintf(stderr, "sparkguard: nobody can ask this job for memory: cannot start a process: %s\n",
                strerror(errno));
        pressure->helper = 0;
    }
}

void launch_pressure_end(struct launch *launch)
{
    struct launch_pressure *pressure = &launch->pressure;
    if (pressure->helper != 0) {
        kill(-pressure->helper, SIGKILL); /* a command that hangs must not hold the launcher up */
        while (waitpid(pressure->helper, NULL, 0) < 0 && errno == EINTR)
            continue;
        close(pressure->to_helper); /* now: the helper removes the socket, too, when this end is closed */
        pressure->helper = 0;
    }
    close_listener(pressure);
    if (pressure->socket_path != NULL) {
        pressure_socket_remove(pressure->socket_path);
        pressure->socket_path = NULL;
    }
}
