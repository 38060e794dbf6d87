/*
 * child.c - runs the program as a child in our own process group and stands in for it: signals sent to us reach
 * it, its stops are ours, its end is ours.
 *
 * All signals of interest are blocked and taken with sigtimedwait(2), so there are no handlers and no races with
 * SIGCHLD. What the kernel sends from the terminal (^C, ^\, ^Z, a new size) goes to the whole group and has reached the
 * child already; the same holds for what the program itself sends to its group with kill(0). Neither is passed on.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launch/launch.h"
#include "common/procfs.h"
#include "sparkguard_abi.h"
#include "common/text.h"
#include "common/tool.h"

static const int signals_taken[] = {SIGTERM, SIGINT,   SIGHUP,  SIGQUIT, SIGUSR1,
                                    SIGUSR2, SIGWINCH, SIGCONT, SIGTSTP, SIGCHLD};

enum { GENERATIONS = 64 };

struct watch {
    sigset_t taken;
    sigset_t mask_before;
    struct sigaction child_before; /* SIGCHLD may come to us ignored, and waitpid(2) must work */
};

static void begin_watch(struct watch *watch)
{
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    sigemptyset(&watch->taken);
    for (size_t i = 0; i < sizeof signals_taken / sizeof signals_taken[0]; i++)
        sigaddset(&watch->taken, signals_taken[i]);
    sigprocmask(SIG_BLOCK, &watch->taken, &watch->mask_before);
    sigaction(SIGCHLD, &plain, &watch->child_before);
}

static void name_job(struct launch *launch, pid_t first)
{
    struct tm parts;
    time_t now = (time_t)(launch->started_ns / 1000000000);
    if (launch->job[0] != '\0' || gmtime_r(&now, &parts) == NULL)
        return;
    size_t length = strftime(launch->job, sizeof launch->job, "%Y%m%dT%H%M%S", &parts);
    snprintf(launch->job + length, sizeof launch->job - length, "-%d", (int)first);
}

/* The child until exec; what keeps it from that goes through the pipe as an errno. */
static void become_program(struct launch *launch, const struct watch *watch, int failure_pipe)
{
    char first[16];
    name_job(launch, getpid());
    setenv(sg_option_table[SG_OPTION_JOB].variable, launch->job, 1);
    snprintf(first, sizeof first, "%d", (int)getpid());
    if (launch->is_new_job)
        setenv(SG_VARIABLE_FIRST, first, 1);
    sigaction(SIGCHLD, &watch->child_before, NULL);
    sigprocmask(SIG_SETMASK, &watch->mask_before, NULL);
    if (launch->jail_bytes != 0)
        launch_jail_enter(launch, failure_pipe);
    execvp(launch->program[0], launch->program);
    int failure = errno;
    while (write(failure_pipe, &failure, sizeof failure) < 0 && errno == EINTR)
        continue;
    _exit(LAUNCH_NOT_FOUND);
}

/* Whether a process is the child or descends from it. A sender may have ended since: then nothing is known of it. */
static bool is_of_child(pid_t child, pid_t pid)
{
    struct procfs_stat stat;
    for (int depth = 0; pid != child; depth++) {
        if (pid <= 1 || depth == GENERATIONS || procfs_stat((uint32_t)pid, &stat) != 0)
            return false;
        pid = (pid_t)stat.parent_pid;
    }
    return true;
}

static bool is_for_child(pid_t child, const siginfo_t *info)
{
    bool is_from_process = info->si_code == SI_USER || info->si_code == SI_QUEUE || info->si_code == SI_TKILL;
    return is_from_process && !is_of_child(child, info->si_pid);
}

/* Stops as the child did, unless nobody could wake us: the kernel drops SIGTSTP in an orphaned group. */
static void stop_too(void)
{
    sigset_t stop, before;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop, &before);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* Takes all news of the child. True when it has ended, with its status. */
static bool hear_of_child(pid_t child, bool *is_stopped, int *status)
{
    bool has_just_stopped = false;
    int news;
    pid_t from;
    while ((from = waitpid(child, &news, WNOHANG | WUNTRACED | WCONTINUED)) == child || (from < 0 && errno == EINTR)) {
        if (from < 0)
            continue;
        if (WIFEXITED(news) || WIFSIGNALED(news)) {
            *status = news;
            return true;
        }
        has_just_stopped = *is_stopped = WIFSTOPPED(news);
    }
    if (has_just_stopped)
        stop_too();
    return false;
}

/* The next signal, or -1 when it is time to look at the children. */
static int wait_for_signal(struct launch *launch, const struct watch *watch, siginfo_t *info)
{
    int64_t wait_ns = launch_children_look(launch);
    const struct timespec wait = {wait_ns / 1000000000, wait_ns % 1000000000};
    return wait_ns == INT64_MAX ? sigwaitinfo(&watch->taken, info) : sigtimedwait(&watch->taken, info, &wait);
}

static int wait_for_child(struct launch *launch, const struct watch *watch)
{
    const pid_t child = launch->child;
    bool is_stopped = false;
    int status = 0;
    for (;;) {
        siginfo_t info;
        int signal = wait_for_signal(launch, watch, &info);
        if (signal < 0)
            continue;
        if ((signal == SIGCHLD || signal == SIGCONT) && hear_of_child(child, &is_stopped, &status))
            return status;
        bool is_needed = signal == SIGCONT ? is_stopped : signal != SIGCHLD && is_for_child(child, &info);
        if (is_needed)
            kill(child, signal);
    }
}

/* The errno with which exec failed, 0 if it did not. */
static int read_failure(int failure_pipe)
{
    int failure = 0;
    ssize_t got;
    do
        got = read(failure_pipe, &failure, sizeof failure);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof failure ? failure : 0;
}

static uint64_t read_children_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_CHILDREN, &usage) == 0 ? (uint64_t)usage.ru_maxrss << 10 : SG_UNKNOWN;
}

int launch_run(struct launch *launch)
{
    int ends[2];
    struct watch watch;
    struct procfs_stat stat = {0};
    if (pipe2(ends, O_CLOEXEC) != 0) {
        fprintf(stderr, "sparkguard: cannot make a pipe: %s\n", strerror(errno));
        return LAUNCH_FAILED;
    }
    if (launch->jail_bytes != 0 && !launch_jail_prepare(launch))
        return LAUNCH_FAILED;
    begin_watch(&watch);
    launch->started_ns = tool_now_ns();
    launch->oom_kills = launch_oom_kills();
    launch->child = fork();
    if (launch->child == 0)
        become_program(launch, &watch, ends[1]);
    if (launch->child < 0) {
        fprintf(stderr, "sparkguard: cannot start a process: %s\n", strerror(errno));
        return LAUNCH_FAILED;
    }
    close(ends[1]);
    name_job(launch, launch->child);
    if (procfs_stat((uint32_t)launch->child, &stat) == 0)
        launch->child_ticks = stat.start_ticks;
    if (launch->jail_bytes != 0 && !launch_jail_wait(launch, ends[0])) {
        waitpid(launch->child, NULL, 0);
        return LAUNCH_FAILED;
    }
    int failure = read_failure(ends[0]);
    close(ends[0]);
    if (failure == 0) {
        launch->wait_status = wait_for_child(launch, &watch);
        launch->children_bytes = read_children_bytes();
        return 0;
    }
    waitpid(launch->child, NULL, 0);
    fprintf(stderr, "sparkguard: cannot run %s: %s\n", launch->program[0], strerror(failure));
    return failure == ENOENT ? LAUNCH_NOT_FOUND : LAUNCH_NOT_EXECUTABLE;
}

void launch_end_like(int wait_status)
{
    if (WIFEXITED(wait_status))
        exit(WEXITSTATUS(wait_status));
    int number = WTERMSIG(wait_status);
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    const struct rlimit none = {0, 0}; /* the child's core, if any, is the one that tells something */
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, number);
    fflush(NULL);
    setrlimit(RLIMIT_CORE, &none);
    sigaction(number, &plain, NULL);
    sigprocmask(SIG_UNBLOCK, &mask, NULL);
    raise(number);
    exit(128 + number); /* a namespace's first process survives its own signals */
}
