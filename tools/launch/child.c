/*
 * child.c - runs the program as a child in the launcher's process group. The launcher forwards signals to the child,
 * stops when the child stops, and ends as the child ends.
 *
 * All signals of interest are blocked and received with sigtimedwait(2). So there are no handlers and no races with
 * SIGCHLD. Signals from the terminal (^C, ^\, ^Z, a new window size) go to the whole process group, so the child has
 * them already. Signals that the program sends to its group with kill(0) reach the child too. Neither is forwarded.
 */
#include <errno.h>
#include <fcntl.h>
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
#include "common/text.h"
#include "model/defaults.h"
#include "sparkguard_abi.h"
#include "common/tool.h"

static const int signals_taken[] = {SIGTERM, SIGINT,   SIGHUP,  SIGQUIT, SIGUSR1,
                                    SIGUSR2, SIGWINCH, SIGCONT, SIGTSTP, SIGCHLD};

enum { GENERATIONS = 64 };

struct watch {
    sigset_t taken;
    sigset_t mask_before;
    struct sigaction child_before; /* SIGCHLD may be inherited as ignored, which would break waitpid(2) */
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

/* Tells the child the job's first process, and which limit was typed or is of the user's file: by this launcher, or by
 * one around it. */
static void hand_on_first(const struct launch *launch)
{
    const char *known = getenv(SG_VARIABLE_FIRST), *limit = launch->value[SG_OPTION_LIMIT];
    const char *outer = known != NULL ? known : "", *origin = outer + strcspn(outer, " ");
    char *pid = launch->is_new_job ? text_format("%d", (int)getpid()) : text_copy(outer, strcspn(outer, " "));
    char *first = text_format("%s%s", pid, origin);
    if (limit != NULL)
        first = text_format("%s" SG_TYPED_LIMIT "%s", pid, limit);
    else if (defaults_have_set(SG_OPTION_LIMIT))
        first = text_format("%s" SG_FILE_LIMIT "%s", pid, defaults_file()->value[SG_OPTION_LIMIT]);
    setenv(SG_VARIABLE_FIRST, first, 1);
}

/* The library writes the score too, in each program, and leaves it to the launcher to tell a failure once. */
static void set_oom_score(void)
{
    const char *score = getenv(sg_option_table[SG_OPTION_OOM_SCORE_ADJ].variable);
    if (score == NULL || score[0] == '\0')
        return;
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, score, strlen(score)) < 0)
        fputs("sparkguard: cannot write /proc/self/oom_score_adj (SPARKGUARD_OOM_SCORE_ADJ)\n", stderr);
    if (fd >= 0)
        close(fd);
}

/* Runs in the child up to exec. A failed exec reports its errno through failure_pipe. */
static void become_program(struct launch *launch, const struct watch *watch, int failure_pipe)
{
    name_job(launch, getpid());
    setenv(sg_option_table[SG_OPTION_JOB].variable, launch->job, 1);
    hand_on_first(launch);
    if (launch->may_guard && (launch->is_new_job || launch->value[SG_OPTION_OOM_SCORE_ADJ] != NULL))
        set_oom_score();
    sigaction(SIGCHLD, &watch->child_before, NULL);
    sigprocmask(SIG_SETMASK, &watch->mask_before, NULL);
    if (launch->claim.is_wanted)
        launch_claim_enter(launch);
    if (launch->jail_bytes != 0)
        launch_jail_enter(launch, failure_pipe);
    execvp(launch->program[0], launch->program);
    int failure = errno;
    while (write(failure_pipe, &failure, sizeof failure) < 0 && errno == EINTR)
        continue;
    _exit(LAUNCH_NOT_FOUND);
}

/* Returns whether a process is the child or a descendant of the child. False also for a process that has ended. */
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

/* Stops the launcher as the child is stopped. In an orphaned process group the kernel drops SIGTSTP, so the launcher
 * does not stop where no shell could continue it. */
static void stop_too(void)
{
    sigset_t stop, before;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop, &before);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* Collects all pending state changes of the child. Returns true when the child has ended, with how it ended and what it
 * and the descendants that were waited for have used: nobody else's children, as RUSAGE_CHILDREN would have. */
static bool hear_of_child(struct launch *launch, bool *is_stopped)
{
    bool has_just_stopped = false;
    int news;
    struct rusage usage;
    pid_t from, child = launch->child;
    while ((from = wait4(child, &news, WNOHANG | WUNTRACED | WCONTINUED, &usage)) == child ||
           (from < 0 && errno == EINTR)) {
        if (from < 0)
            continue;
        if (WIFEXITED(news) || WIFSIGNALED(news)) {
            launch->wait_status = news;
            launch->children_bytes = (uint64_t)usage.ru_maxrss << 10;
            return true;
        }
        has_just_stopped = *is_stopped = WIFSTOPPED(news);
    }
    if (has_just_stopped)
        stop_too();
    return false;
}

static void wait_for_child(struct launch *launch, const struct watch *watch)
{
    pid_t child = launch->child;
    bool is_stopped = false;
    for (;;) {
        siginfo_t info;
        struct timespec left;
        bool has_end = launch_claim_check_use(launch, &left);
        int signal = sigtimedwait(&watch->taken, &info, has_end ? &left : NULL);
        if (signal < 0)
            continue;
        if ((signal == SIGCHLD || signal == SIGCONT) && hear_of_child(launch, &is_stopped))
            return;
        bool is_needed = signal == SIGCONT ? is_stopped : signal != SIGCHLD && is_for_child(child, &info);
        if (is_needed)
            kill(child, signal);
    }
}

/* Returns the errno of a failed exec; 0 after a successful one, which closed the pipe. */
static int read_failure(int failure_pipe)
{
    int failure = 0;
    ssize_t got;
    do
        got = read(failure_pipe, &failure, sizeof failure);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof failure ? failure : 0;
}

/* Does what there is to do while the program runs. */
static void attend(struct launch *launch, const struct watch *watch)
{
    launch_refusal_begin(launch); /* before the other helper, whose pipe it would keep open */
    launch_pressure_begin(launch);
    launch_children_begin();
    wait_for_child(launch, watch);
    launch_pressure_end(launch);
    launch_refusal_end(launch);
    launch_claim_end(launch);
    launch_children_end(launch);
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
    int no_claim = launch->claim.is_wanted ? launch_claim_prepare(launch) : 0;
    if (no_claim != 0)
        return no_claim;
    const char *start_text = launch_start_text(launch); /* before fork: the program does not wait for it */
    begin_watch(&watch);
    launch->started_ns = tool_now_ns();
    launch->oom_kills = launch_oom_kills();
    launch_children_prepare(launch);
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
    no_claim = launch->claim.is_wanted && failure == 0 ? launch_claim_wait(launch) : 0;
    if (no_claim != 0) {
        waitpid(launch->child, NULL, 0);
        return no_claim;
    }
    if (launch->claim.is_wanted && failure == 0 && !launch->claim.is_held) {
        waitpid(launch->child, &launch->wait_status, 0);
        launch->has_no_claim = true;
        return 0;
    }
    if (launch->claim.is_wanted)
        launch->started_ns = tool_now_ns(); /* the time in the queue is not the program's */
    if (failure == 0) {
        if (start_text != NULL)
            fputs(start_text, stderr);
        attend(launch, &watch);
        return 0;
    }
    waitpid(launch->child, NULL, 0);
    return launch_program_say_failed("sparkguard", launch->program[0], failure);
}

void launch_end_like(int wait_status)
{
    if (WIFEXITED(wait_status))
        exit(WEXITSTATUS(wait_status));
    int number = WTERMSIG(wait_status);
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    const struct rlimit none = {0, 0}; /* no second core file: the child's own is the useful one */
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, number);
    fflush(NULL);
    setrlimit(RLIMIT_CORE, &none);
    sigaction(number, &plain, NULL);
    sigprocmask(SIG_UNBLOCK, &mask, NULL);
    raise(number);
    exit(128 + number); /* PID 1 of a namespace survives its own signals */
}
