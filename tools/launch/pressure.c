/*
 * pressure.c - the launcher's side of --on-pressure; see pressure.h.
 */
#include "launch/pressure.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/text.h"
#include "launch/launch.h"
#include "model/model.h"

/* Becomes the helper, in a process group of its own: ^C is for the program. */
static void become_helper(const struct launch *launch, int pipe_end)
{
    char *self = launch_own_path();
    char *const arguments[] = {self,
                               text_format(LAUNCH_PRESSURE_INSIDE "%d", pipe_end),
                               text_copy(launch->pressure.command, SIZE_MAX),
                               text_copy(launch->directory, SIZE_MAX),
                               text_format("%" PRIx64, model_own_job(launch->job, launch->is_new_job)),
                               NULL};
    setenv(sg_option_table[SG_OPTION_JOB].variable, launch->job, 1);
    setpgid(0, 0);
    fcntl(pipe_end, F_SETFD, 0);
    execv(self, arguments);
    _exit(LAUNCH_FAILED);
}

/* Only a first word without any sign of the shell's is looked at: the shell itself says whether it would find it. */
bool launch_pressure_is_command(const char *command)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    const char *word = command + strspn(command, " \t\n");
    size_t length = strspn(word, plain);
    int status = 0;
    if (length == 0 || (word[length] != '\0' && strchr(" \t\n;&|<>", word[length]) == NULL))
        return word[0] != '\0';
    pid_t child = fork();
    if (child == 0) {
        int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(nothing, STDOUT_FILENO);
        dup2(nothing, STDERR_FILENO);
        execl("/bin/sh", "sh", "-c", "command -v -- \"$1\"", "sh", text_copy(word, length), (char *)NULL);
        _exit(0);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return !WIFEXITED(status) || WEXITSTATUS(status) == 0;
}

void launch_helper_start(struct launch *launch, struct launch_helper *helper, const char *option, const char *lost,
                         void (*run)(const struct launch *launch, int pipe_end))
{
    int ends[2];
    if (helper->command == NULL)
        return;
    if (!launch->may_guard) {
        fprintf(stderr, "sparkguard: %s has no effect: the program is not guarded\n", option);
        return;
    }
    if (pipe2(ends, O_CLOEXEC) == 0) {
        helper->pid = fork();
        if (helper->pid == 0) {
            close(ends[1]);
            run(launch, ends[0]);
        }
        if (helper->pid > 0) /* here, too: the program may end before the helper runs */
            (void)setpgid(helper->pid, helper->pid);
        close(ends[0]);
        helper->to_helper = ends[1];
    }
    if (helper->pid <= 0) {
        fprintf(stderr, "sparkguard: %s: cannot start a process: %s\n", lost, strerror(errno));
        helper->pid = 0;
    }
}

void launch_pressure_begin(struct launch *launch)
{
    launch_helper_start(launch, &launch->pressure, "--on-pressure", "this job has no give-back callback",
                        become_helper);
}

void launch_pressure_end(struct launch *launch)
{
    struct launch_helper *helper = &launch->pressure;
    if (helper->pid == 0)
        return;
    kill(-helper->pid, SIGKILL); /* a command that hangs must not hold the launcher up */
    while (waitpid(helper->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    close(helper->to_helper);
    helper->pid = 0;
}
