/*
 * pressure_inside.c - --on-pressure, in the helper process: runs the command when the library calls. See pressure.h.
 */
#define _GNU_SOURCE
#include "launch/pressure_inside.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/inside.h"
#include "launch/launch.h"
#include "sparkguard_abi.h"

#define VARIABLE_WANTED "SPARKGUARD_WANTED_BYTES"

/* Runs the command in a shell and waits for it. The command is not guarded: it must not be refused memory now. */
static void run_command(uint64_t wanted_bytes, void *command)
{
    char wanted[32];
    pid_t child = fork();
    if (child == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        snprintf(wanted, sizeof wanted, "%" PRIu64, wanted_bytes);
        setenv(VARIABLE_WANTED, wanted, 1);
        setenv(sg_option_table[SG_OPTION_DISABLE].variable, "1", 1);
        execl("/bin/sh", "sh", "-c", (const char *)command, (char *)NULL);
        _exit(LAUNCH_NOT_FOUND);
    }
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        continue;
}

void launch_pressure_inside(char **argv)
{
    int pipe_end;
    char byte;
    int (*help)(void (*)(uint64_t, void *), void *) = NULL;
    if (argv[1] == NULL || sscanf(argv[1], LAUNCH_PRESSURE_INSIDE "%d", &pipe_end) != 1 || argv[2] == NULL)
        return;
    launch_find_export("sparkguard_help", &help, sizeof help);
    int result = help != NULL ? help(run_command, argv[2]) : -ENOSYS;
    if (result != 0)
        fprintf(stderr, "sparkguard: --on-pressure has no effect: %s\n", strerror(-result));
    while (result == 0 && read(pipe_end, &byte, 1) < 0 && errno == EINTR)
        continue;
    _exit(0);
}
