/*
 * run.c - executes one run in its own process group, so that all of it can be ended: by a signal to the sweep, by the
 * time limit, or by the kernel if the sweep itself is killed (the program then gets SIGTERM).
 *
 * The program's output goes to STATE.log. Its last line becomes the note of a failed run. Signals are blocked and
 * received with sigtimedwait(2): there are no handlers and no races with SIGCHLD.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/procfs.h"
#include "sweep/sweep.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

#define SECOND_NS INT64_C(1000000000)
#define SAMPLE_EVERY_NS SECOND_NS
#define TICK_NS (SECOND_NS / 4)
enum { SHOWN_LINES = 10 };
#define GRACE_NS (10 * SECOND_NS) /* between SIGTERM and SIGKILL, so that the program can save */

static sigset_t taken, mask_before;

/* A signal that the caller has set to be ignored, as nohup(1) does, stays ignored: if it were blocked, the sweep would
 * receive it. */
void sweep_signals_begin(void)
{
    static const int ending[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    struct sigaction before;
    sigemptyset(&taken);
    sigaddset(&taken, SIGCHLD);
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++)
        if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaddset(&taken, ending[i]);
    sigprocmask(SIG_BLOCK, &taken, &mask_before);
    sigaction(SIGCHLD, &plain, NULL); /* the caller may have set it to be ignored, and waitpid(2) must work */
}

int sweep_signal_within(int64_t wait_ns)
{
    const struct timespec wait = {.tv_sec = wait_ns / SECOND_NS, .tv_nsec = wait_ns % SECOND_NS};
    int number = sigtimedwait(&taken, NULL, &wait);
    return number < 0 || number == SIGCHLD ? 0 : number;
}

struct attempt {
    struct sweep *sweep;
    struct sweep_run *run;
    struct sweep_progress *progress;
    struct launch launch;
    char *container;          /* the name of its container */
    int64_t newest_before_ns; /* of a container: sweep_newest_start() before the run */
    int log;
    off_t log_start;
    uint64_t least_headroom, most_held, held;
    int64_t sampled_ns, ending_ns; /* ending_ns: when SIGTERM was sent, 0: not yet */
};

static void open_log(struct attempt *attempt)
{
    struct stat status;
    char *path = attempt->sweep->state != NULL ? text_format("%s.log", attempt->sweep->state) : text_copy("/tmp", 4);
    int flags = attempt->sweep->state != NULL ? O_CREAT | O_NOFOLLOW : O_TMPFILE;
    attempt->log = attempt->sweep->is_showing_output
                       ? -1
                       : open(path, flags | O_RDWR | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
    if (attempt->log < 0)
        return;
    dprintf(attempt->log, "=== %s, attempt %u\n", sweep_run_text(attempt->sweep, attempt->run), attempt->run->attempts);
    attempt->log_start = fstat(attempt->log, &status) == 0 ? status.st_size : 0;
}

/* Makes the last non-empty line of the output the note of the run. */
static void note_last_line(struct attempt *attempt)
{
    char text[4096];
    struct stat status;
    if (attempt->log < 0 || fstat(attempt->log, &status) != 0)
        return;
    off_t start = status.st_size - (off_t)sizeof text + 1;
    if (start < attempt->log_start)
        start = attempt->log_start;
    ssize_t length = pread(attempt->log, text, sizeof text - 1, start);
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' ' || text[length - 1] == '\r'))
        length--;
    if (length <= 0)
        return;
    text[length] = '\0';
    const char *line = memrchr(text, '\n', (size_t)length);
    char *note = text_printable(line != NULL ? line + 1 : text, false);
    text_shorten(note, 100);
    sweep_set_note(attempt->run, note);
}

/* In the child until exec. If exec fails, the errno goes through the pipe. */
static void become_program(const struct attempt *attempt, pid_t parent, int failure_pipe)
{
    char first[16];
    int nothing = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(LAUNCH_FAILED);
    snprintf(first, sizeof first, "%d", (int)getpid());
    if (attempt->sweep->client.run_at == 0) { /* a client is no part of the job */
        setenv(sg_option_table[SG_OPTION_JOB].variable, attempt->launch.job, 1);
        setenv(SG_VARIABLE_FIRST, first, 1);
        setenv(SG_VARIABLE_RECORD, "1", 1);
    }
    dup2(nothing, STDIN_FILENO);
    int output = attempt->log >= 0 ? attempt->log : attempt->sweep->is_showing_output ? STDERR_FILENO : nothing;
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    if (nothing > STDERR_FILENO)
        close(nothing);
    sigprocmask(SIG_SETMASK, &mask_before, NULL);
    execvp(attempt->launch.program[0], attempt->launch.program);
    int failure = errno;
    while (write(failure_pipe, &failure, sizeof failure) < 0 && errno == EINTR)
        continue;
    _exit(LAUNCH_NOT_FOUND);
}

/* Names the job: all runs of a sweep are of one, also those after a reboot. */
static void name_job(struct launch *launch, const struct sweep *sweep)
{
    struct tm parts = {0};
    const time_t begun = (time_t)(sweep->begun_ns / SECOND_NS);
    gmtime_r(&begun, &parts);
    size_t length = strftime(launch->job, sizeof launch->job, "sweep-%Y%m%dT%H%M%S", &parts);
    snprintf(launch->job + length, sizeof launch->job - length, "-%04x",
             (unsigned)(sg_hash_text(sweep->identity) & 0xffff)); /* two sweeps may begin in one second */
}

/* Gives the command of a container client what the container needs. */
static void enter_container(struct attempt *attempt)
{
    struct launch *launch = &attempt->launch;
    attempt->container =
        text_format("%s-%zu-%u", launch->job, (size_t)(attempt->run - attempt->sweep->run), attempt->run->attempts);
    attempt->newest_before_ns = sweep_newest_start(launch->job);
    launch->program =
        sweep_container_command(launch->program, &attempt->sweep->client, launch->job, attempt->container);
}

static int start(struct attempt *attempt)
{
    int ends[2], failure = 0;
    struct procfs_stat stat = {0};
    const pid_t self = getpid();
    struct launch *launch = &attempt->launch;
    name_job(launch, attempt->sweep);
    if (attempt->sweep->client.run_at > 0)
        enter_container(attempt);
    launch_children_prepare(launch);
    if (pipe2(ends, O_CLOEXEC) != 0 || (launch->child = fork()) < 0) {
        fprintf(stderr, "sparkguard-sweep: cannot start a process: %s\n", strerror(errno));
        return LAUNCH_FAILED;
    }
    if (launch->child == 0)
        become_program(attempt, self, ends[1]);
    close(ends[1]);
    setpgid(launch->child, launch->child);
    launch->started_ns = tool_now_ns();
    if (procfs_stat((uint32_t)launch->child, &stat) == 0)
        launch->child_ticks = stat.start_ticks;
    while (read(ends[0], &failure, sizeof failure) < 0 && errno == EINTR)
        continue;
    close(ends[0]);
    if (failure == 0) {
        launch_children_begin();
        return 0;
    }
    waitpid(launch->child, NULL, 0);
    launch_children_end(launch);
    return launch_program_say_failed("sparkguard-sweep", launch->program[0], failure);
}

/* Discards a pending SIGCHLD, which would end the next wait early. */
static void forget_news_of_children(void)
{
    const struct timespec at_once = {0};
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    while (sigtimedwait(&child, NULL, &at_once) == SIGCHLD)
        continue;
}

static bool has_ended(pid_t child)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child;
}

/* Sends SIGTERM at the first call, SIGKILL at the next. */
static void end_group(struct attempt *attempt, int64_t now_ns)
{
    kill(-attempt->launch.child, attempt->ending_ns == 0 ? SIGTERM : SIGKILL);
    kill(-attempt->launch.child, SIGCONT);
    if (attempt->ending_ns != 0 && attempt->sweep->client.run_at > 0)
        sweep_container_kill(attempt->launch.program, &attempt->sweep->client, attempt->container);
    attempt->ending_ns = now_ns;
}

static void take_sample(struct attempt *attempt, int64_t now_ns)
{
    if (now_ns - attempt->sampled_ns < SAMPLE_EVERY_NS)
        return;
    struct sweep_sample seen = sweep_take_sample(attempt->launch.job, attempt->sweep->client.run_at > 0);
    attempt->sampled_ns = now_ns;
    attempt->held = seen.held_bytes;
    attempt->least_headroom = bytes_min(attempt->least_headroom, seen.headroom_bytes);
    attempt->most_held = bytes_max(attempt->most_held, seen.held_bytes);
}

static void wait_for_end(struct attempt *attempt, int *ended_by)
{
    const int64_t began_ns = tool_clock_ns(CLOCK_BOOTTIME), timeout_ns = attempt->sweep->timeout_ns;
    attempt->sampled_ns = began_ns - SAMPLE_EVERY_NS + TICK_NS; /* take the first sample soon */
    while (!has_ended(attempt->launch.child)) {
        size_t mark = tool_arena_mark();
        int number = sweep_signal_within(TICK_NS);
        int64_t now_ns = tool_clock_ns(CLOCK_BOOTTIME);
        if (number != 0) {
            *ended_by = *ended_by == 0 ? number : *ended_by;
            attempt->run->status = SWEEP_INTERRUPTED;
            end_group(attempt, now_ns);
        } else if (attempt->ending_ns == 0 && timeout_ns > 0 && now_ns - began_ns >= timeout_ns) {
            attempt->run->status = SWEEP_TIMED_OUT;
            end_group(attempt, now_ns);
        } else if (attempt->ending_ns > 0 && now_ns - attempt->ending_ns >= GRACE_NS) {
            end_group(attempt, now_ns);
        }
        take_sample(attempt, now_ns);
        sweep_progress_run(attempt->progress, attempt->sweep, attempt->run, now_ns - began_ns, attempt->held);
        tool_arena_release(mark);
    }
    attempt->run->duration_ns = tool_clock_ns(CLOCK_BOOTTIME) - began_ns;
    if (attempt->ending_ns == 0) /* a process that would leave the group, as setsid(1) does, shows what it becomes */
        sweep_await_records(&attempt->launch);
    kill(-attempt->launch.child,
         SIGKILL); /* ends remaining processes of the group, whose number is not reused before the child is reaped */
    struct rusage usage = {0};
    while (wait4(attempt->launch.child, &attempt->launch.wait_status, 0, &usage) < 0 && errno == EINTR)
        continue;
    attempt->launch.children_bytes = (uint64_t)usage.ru_maxrss << 10;
    launch_children_end(&attempt->launch);
    forget_news_of_children();
}

/* Prints the last lines of a text, indented. */
static void show_lines(struct sweep_progress *progress, char *text)
{
    size_t length = strlen(text);
    while (length > 0 && strchr(" \r\n", text[length - 1]) != NULL)
        text[--length] = '\0';
    const char *start = text + length;
    for (int lines = 0; start > text && lines < SHOWN_LINES; lines++)
        do
            start--;
        while (start > text && start[-1] != '\n');
    char *rest = text + (start - text), *line;
    while ((line = strsep(&rest, "\n")) != NULL)
        sweep_progress_say(progress, "    %s", text_printable(line, true));
}

void sweep_show_output(const struct sweep *sweep, const struct sweep_run *run, struct sweep_progress *progress)
{
    char text[4096];
    struct stat status;
    if (sweep->state == NULL || sweep->is_showing_output)
        return;
    char *path = text_format("%s.log", sweep->state);
    int log = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (log >= 0 && fstat(log, &status) == 0) {
        off_t start = status.st_size > (off_t)sizeof text - 1 ? status.st_size - (off_t)sizeof text + 1 : 0;
        ssize_t length = pread(log, text, sizeof text - 1, start);
        text[length > 0 ? length : 0] = '\0';
        char *name = sweep_run_text(sweep, run), *title = text_format("=== %s, attempt %u\n", name, run->attempts);
        char *output = strstr(text, title) != NULL ? strstr(text, title) + strlen(title) : text;
        sweep_progress_say(progress, "  %s %s%s",
                           *output != '\0' ? "the end of its output, in" : "it said nothing; its log is", path,
                           *output != '\0' ? ":" : "");
        if (*output != '\0')
            show_lines(progress, output);
    }
    if (log >= 0)
        close(log);
}

/* Returns LAUNCH_FAILED after a message if a container has ended well and left no record: then nothing has guarded it,
 * and the next, larger one would take the machine down. */
static int check_container(const struct sweep *sweep, const struct sweep_run *run)
{
    if (sweep->client.run_at == 0 || run->status != SWEEP_OK || run->peak_bytes != SG_UNKNOWN)
        return 0;
    fputs("sparkguard-sweep: the container is not on record: it ran unguarded, does not share this directory, or took "
          "less "
          "than 16 MiB; sparkguard-report lists unguarded containers\n",
          stderr);
    return LAUNCH_FAILED;
}

int sweep_execute(struct sweep *sweep, struct sweep_run *run, struct sweep_progress *progress, int *ended_by)
{
    struct attempt attempt = {
        .sweep = sweep,
        .run = run,
        .progress = progress,
        .least_headroom = SG_UNKNOWN,
        .launch = {.is_new_job = true,
                   .program = sweep_command_of(sweep, run),
                   .directory = model_default_directory(),
                   .library_name = sweep->library_name,
                   .is_guarded = sweep->library_name != NULL},
    };
    open_log(&attempt);
    int failure = start(&attempt);
    run->started_ns = attempt.launch.started_ns;
    if (failure == 0) {
        wait_for_end(&attempt, ended_by);
        launch_record(&attempt.launch);
        note_last_line(&attempt);
        sweep_measure(run, &attempt.launch, sweep->client.run_at > 0 ? &attempt.newest_before_ns : NULL,
                      attempt.least_headroom, attempt.most_held);
        failure = check_container(sweep, run);
        if (failure == 0)
            failure = sweep_check_guarded(sweep, run, &attempt.launch);
    }
    if (attempt.log >= 0)
        close(attempt.log);
    return failure;
}
