/*
 * pressure_inside.c - --on-pressure and --pressure-socket, in the helper process: runs the command and tells the
 * programs at the socket when the library asks. See pressure.h.
 */
#define _GNU_SOURCE
#include "launch/pressure_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/inside.h"
#include "launch/launch.h"
#include "launch/pressure_socket.h"
#include "common/text.h"
#include "common/tool.h"
#include "sparkguard_abi.h"

/* How long programs at the socket have to free memory. They do not say when they are done. */
#define ANSWER_NS UINT64_C(1000000000)

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

/* Runs the command in a shell and waits for it. The command is not guarded: it must not be refused memory now. */
static void run_command(uint64_t wanted_bytes, const char *command)
{
    char wanted[32];
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        snprintf(wanted, sizeof wanted, "%" PRIu64, wanted_bytes);
        setenv(VARIABLE_WANTED, wanted, 1);
        setenv(sg_option_table[SG_OPTION_DISABLE].variable, "1", 1);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(LAUNCH_NOT_FOUND);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    complain_once(status);
}

/* The tasks of the helper. */
struct helper {
    const char *command;         /* NULL: none */
    int asked;                   /* an eventfd, raised when the library has asked; -1: there is no socket */
    atomic_size_t program_count; /* connections at the socket */
};

/* Called on the library's thread. Returns how long the programs at the socket still have: the request that waits is
 * refused then, if it does not fit. */
static uint64_t answer(uint64_t wanted_bytes, void *data)
{
    struct helper *helper = data;
    const bool is_told = helper->asked >= 0 && atomic_load(&helper->program_count) != 0;
    const uint64_t begin_ns = launch_now_ns();
    if (is_told)
        (void)eventfd_write(helper->asked, 1);
    if (helper->command != NULL)
        run_command(wanted_bytes, helper->command);
    const uint64_t taken_ns = launch_now_ns() - begin_ns;
    return is_told && taken_ns < ANSWER_NS ? ANSWER_NS - taken_ns : 0;
}

/* Serves the socket until the launcher has ended. */
static void serve(struct helper *helper, int pipe_end, int listener)
{
    enum { PIPE, ASKED, LISTENER, OWN, PAUSE_US = 100000 };
    struct pressure_listeners listeners = {tool_allocate(OWN, sizeof(struct pollfd)), OWN, OWN};
    listeners.of[PIPE] = (struct pollfd){pipe_end, POLLIN, 0};
    listeners.of[ASKED] = (struct pollfd){helper->asked, POLLIN, 0};
    listeners.of[LISTENER] = (struct pollfd){listener, POLLIN, 0};
    while (listeners.of[PIPE].revents == 0) {
        eventfd_t count;
        if (poll(listeners.of, listeners.count, -1) < 0) {
            (void)usleep(errno == EINTR ? 0 : PAUSE_US); /* more connections than RLIMIT_NOFILE allows */
            continue;
        }
        bool is_asked = listeners.of[ASKED].revents != 0;
        pressure_socket_serve(&listeners);
        atomic_store(&helper->program_count, listeners.count - OWN);
        if (is_asked && eventfd_read(helper->asked, &count) == 0)
            pressure_socket_tell(&listeners);
    }
}

void launch_pressure_inside(char **argv)
{
    int pipe_end, listener;
    char byte;
    int (*help)(uint64_t(*)(uint64_t, void *), void *) = NULL;
    if (argv[1] == NULL || sscanf(argv[1], LAUNCH_PRESSURE_INSIDE "%d,%d", &pipe_end, &listener) != 2 ||
        argv[2] == NULL)
        return;
    fcntl(pipe_end, F_SETFD, FD_CLOEXEC); /* a command may outlive this process */
    if (listener >= 0)
        fcntl(listener, F_SETFD, FD_CLOEXEC);
    static struct helper helper; /* the library's thread reads it */
    helper.command = argv[3];
    helper.asked = listener >= 0 ? eventfd(0, EFD_CLOEXEC) : -1;
    launch_find_export("sparkguard_help", &help, sizeof help);
    int result = listener >= 0 && helper.asked < 0 ? -errno : help != NULL ? help(answer, &helper) : -ENOSYS;
    if (result != 0)
        fprintf(stderr, "sparkguard: nobody can ask this job for memory: %s\n", strerror(-result));
    else if (helper.asked >= 0)
        serve(&helper, pipe_end, listener);
    else
        while (read(pipe_end, &byte, 1) < 0 && errno == EINTR)
            continue;
    if (listener >= 0)
        pressure_socket_remove(argv[2]); /* a killed launcher has not done it */
    _exit(0);
}
