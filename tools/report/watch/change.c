/*
 * change.c - what the live screen changes, each time after a question: it sends SIGTERM to the chosen process or job,
 * and sets the limit of a job by sparkguard --set.
 *
 * Pasted text is no answer: what was typed before the question is on the screen is discarded, and an answer with more
 * behind it changes nothing.
 *
 * Processes are held by descriptors (pidfd) from before the question on, so a number that the kernel gives to another
 * process meanwhile is not hit.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/procfs.h"
#include "common/text.h"
#include "common/tool.h"
#include "launch/launch.h"
#include "report/watch/terminal.h"
#include "report/watch/watch.h"
#include "sparkguard_options.h"

/* How long sparkguard --set may take: it takes milliseconds. */
enum { SET_SECONDS = 10 };

static void say(struct watch *watch, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct watch *watch, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *text = text_formatv(format, arguments);
    va_end(arguments);
    text_shorten(text, sizeof watch->change.said / 4 - 1); /* a character has 4 bytes at most */
    snprintf(watch->change.said, sizeof watch->change.said, "%s", text);
}

/* ---- what is chosen ---------------------------------------------------------------------------------------------- */

/* What a key means: a process, or a job as a whole (process is NULL). */
struct choice {
    const struct model_job *job;
    const struct model_process *process;
    size_t count; /* of those that the row may stand for: several if two directories or containers have the same */
};

static struct choice find_chosen(const struct watch *watch)
{
    struct choice choice = {.count = 0};
    const struct model_job *job;
    const struct model_process *process;
    bool has_list = !watch_has_no_list(watch);
    if (has_list && watch->chosen >= watch->rows.count)
        return choice;
    DL_FOREACH (watch->model->jobs, job) {
        struct watch_key key = watch_key_of_job(job);
        if (has_list && watch_keys_are_equal(&key, &watch->rows.key[watch->chosen])) {
            choice = (struct choice){job, NULL, choice.count + 1};
            continue;
        }
        DL_FOREACH (job->processes, process) {
            key = watch_key_of_process(process);
            bool is_it = has_list ? watch_keys_are_equal(&key, &watch->rows.key[watch->chosen])
                                  : watch_is_in_depth(watch, process);
            if (is_it && process->state == SG_STATE_RUNNING)
                choice = (struct choice){job, process, choice.count + 1};
        }
    }
    return choice;
}

/* Returns the chosen process or job; its count is 1. Otherwise says why there is none. */
static bool choose_target(struct watch *watch, struct choice *choice)
{
    *choice = find_chosen(watch);
    if (choice->count == 0)
        say(watch, "it does not run any more");
    else if (choice->count > 1)
        say(watch, "several of this name run in different directories; sparkguard-report --dir=DIR shows one");
    return choice->count == 1;
}

static char *job_label(const struct model_job *job)
{
    return text_printable(job->name[0] != '\0' ? job->name : "-", style_of(stdout).is_utf8);
}

/* ---- SIGTERM ----------------------------------------------------------------------------------------------------- */

static int send_signal(int target, int number)
{
    return syscall(SYS_pidfd_send_signal, target, number, NULL, 0) == 0 ? 0 : -errno;
}

/* Returns whether the process maps the record, as the guard in it does. Without that a record, which its owner or a
 * container may fill with anything, could name any process, and root may signal all of them. Who may not see which
 * files a process maps compares their names. */
static bool wrote_record(const struct model_process *process, uint32_t pid)
{
    char path[PROCFS_PATH_CAPACITY];
    bool is_it = false;
    snprintf(path, sizeof path, "%s/proc/%" PRIu32 "/map_files", procfs_live_root, pid);
    DIR *files = opendir(path);
    if (files == NULL)
        return errno == EACCES || errno == EPERM ? procfs_maps(pid, process->record_name) : false;
    const struct dirent *entry;
    while (!is_it && (entry = readdir(files)) != NULL) {
        struct stat file;
        if (entry->d_name[0] == '.')
            continue;
        if (fstatat(dirfd(files), entry->d_name, &file, 0) == 0)
            is_it = file.st_dev == process->record_device && file.st_ino == process->record_inode;
        else if (errno == EACCES || errno == EPERM) {
            is_it = procfs_maps(pid, process->record_name);
            break;
        }
    }
    closedir(files);
    return is_it;
}

/* Opens a process that may be signalled. Returns NULL, or why it cannot be. The descriptor comes first: if the process
 * with that number has the start of the record afterwards, it is the one that was opened. */
static const char *aim(const struct model_process *process, int *target)
{
    struct procfs_stat stat;
    uint32_t pid = process->host_pid;
    const char *why = NULL;
    if (pid == 0)
        return "cannot be seen from here";
    *target = (int)syscall(SYS_pidfd_open, pid, 0);
    if (*target < 0)
        return errno == ESRCH ? "does not run any more" : text_format("cannot be opened (%s)", strerror(errno));
    int failure = send_signal(*target, 0);
    if (failure == -EPERM)
        why = "belongs to another user";
    else if (failure != 0 && failure != -ESRCH)
        why = text_format("cannot be signalled (%s)", strerror(-failure));
    else if (!wrote_record(process, pid))
        why = "is not the process that wrote this record";
    if (failure == -ESRCH || procfs_stat(pid, &stat) != 0 || stat.start_ticks != process->start_ticks || stat.is_ending)
        why = "does not run any more";
    if (why != NULL)
        close(*target);
    return why;
}

/* A job may have more processes than a program may have files open by default. */
static void allow_many_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* Opens all processes of a job that run. Returns why the first of those that cannot be signalled cannot. */
static const char *aim_at_job(struct watch *watch, const struct model_job *job)
{
    struct watch_change *change = &watch->change;
    const struct model_process *process;
    const char *why = NULL;
    change->target = reallocarray(NULL, job->process_count, sizeof *change->target);
    if (change->target == NULL)
        tool_end_without_memory();
    allow_many_files();
    DL_FOREACH (job->processes, process) {
        if (process->state != SG_STATE_RUNNING)
            continue;
        const char *failure = aim(process, &change->target[change->target_count]);
        change->running_count++;
        change->target_count += failure == NULL;
        why = why == NULL ? failure : why;
    }
    return change->running_count == 0 ? "does not run any more" : why;
}

static void let_go(struct watch_change *change)
{
    for (size_t i = 0; i < change->target_count; i++)
        close(change->target[i]);
    free(change->target);
    change->target = NULL;
    change->target_count = change->running_count = 0;
    change->asks = WATCH_ASKS_NOTHING;
    change->is_on_screen = false;
}

static void ask_to_end(struct watch *watch)
{
    struct watch_change *change = &watch->change;
    struct choice choice;
    const char *why;
    if (!choose_target(watch, &choice))
        return;
    char *job = job_label(choice.job);
    if (choice.process == NULL) {
        why = aim_at_job(watch, choice.job);
        snprintf(change->whom, sizeof change->whom, "job %s", job);
    } else {
        change->target = malloc(sizeof *change->target);
        if (change->target == NULL)
            tool_end_without_memory();
        why = aim(choice.process, change->target);
        change->running_count = 1;
        change->target_count = why == NULL;
        snprintf(change->whom, sizeof change->whom, "%" PRIu32, model_process_number(choice.process));
    }
    if (change->target_count == 0) {
        say(watch, "%s %s: no signal is sent", change->whom, why);
        let_go(change);
        return;
    }
    change->asks = WATCH_ASKS_TO_END;
    if (choice.process != NULL) {
        char *command = text_printable(text_command(choice.process->command), style_of(stdout).is_utf8);
        text_shorten(command, 80);
        say(watch, "Send SIGTERM to %s (%s, job %s)?", change->whom, command, job);
    } else if (change->target_count == change->running_count) {
        say(watch, "Send SIGTERM to all %zu processes of job %s?", change->target_count, job);
    } else {
        say(watch, "Send SIGTERM to %zu of the %zu processes of job %s? Of the others the first %s.",
            change->target_count, change->running_count, job, why);
    }
}

static void end_targets(struct watch *watch)
{
    struct watch_change *change = &watch->change;
    size_t sent = 0;
    int failure = 0;
    for (size_t i = 0; i < change->target_count; i++) {
        int answer = send_signal(change->target[i], SIGTERM);
        sent += answer == 0;
        failure = answer != 0 ? answer : failure;
    }
    if (sent == 0)
        say(watch, "%s: no signal is sent: %s", change->whom,
            failure == -ESRCH ? "it has ended meanwhile" : strerror(-failure));
    else if (change->running_count == 1)
        say(watch, "SIGTERM is sent to %s", change->whom);
    else
        say(watch, "SIGTERM is sent to %zu processes of %s", sent, change->whom);
    let_go(change);
}

/* ---- a new limit ------------------------------------------------------------------------------------------------- */

/* Returns whether sparkguard --set NAME would change this job and no other. */
static bool is_meant_by_name(const struct watch *watch, const struct model_job *job)
{
    const struct model_job *other;
    if (job->hash == model_own_job(job->name, false))
        return true;
    DL_FOREACH (watch->model->jobs, other)
        if (other != job && strcmp(other->name, job->name) == 0 && strcmp(other->directory, job->directory) == 0)
            return false;
    return geteuid() == 0;
}

static void ask_for_limit(struct watch *watch)
{
    struct watch_change *change = &watch->change;
    struct choice choice;
    if (!choose_target(watch, &choice))
        return;
    char *job = job_label(choice.job);
    if (!is_meant_by_name(watch, choice.job)) {
        say(watch, "job %s belongs to another user: its limit stays", job);
        return;
    }
    snprintf(change->job, sizeof change->job, "%s", choice.job->name);
    snprintf(change->directory, sizeof change->directory, "%s", choice.job->directory);
    change->typed[0] = '\0';
    change->asks = WATCH_ASKS_FOR_LIMIT;
    bool has_limit = choice.job->limit_bytes != SG_UNKNOWN;
    say(watch, "New limit of job %s? Now %s; for example 64G, or none.", job,
        has_limit ? text_size(choice.job->limit_bytes) : "none");
}

/* Becomes sparkguard --set. Its lines go to `output`. */
static void become_setter(const struct watch_change *change, int output) __attribute__((noreturn));
static void become_setter(const struct watch_change *change, int output)
{
    char folder[PATH_MAX];
    sigset_t none;
    int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    launch_own_folder(folder);
    char *program = text_format("%s/sparkguard", folder), *limit = text_format("limit=%s", change->typed);
    char *arguments[] = {program, text_copy("--set", SIZE_MAX), text_copy(change->job, SIZE_MAX), limit, NULL};
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setenv(sg_option_table[SG_OPTION_DIR].variable, change->directory, 1);
    if (input >= 0 && dup2(input, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 &&
        dup2(output, STDERR_FILENO) >= 0)
        execv(program, arguments);
    dprintf(output, "cannot run %s: %s\n", program, strerror(errno));
    _exit(LAUNCH_FAILED);
}

/* Reads what the child says until it ends. Returns false if it does not end. */
static bool read_answer(int input, char *text, size_t capacity)
{
    int64_t end_ns = tool_clock_ns(CLOCK_MONOTONIC) + SET_SECONDS * INT64_C(1000000000), left_ns;
    size_t length = 0;
    while ((left_ns = end_ns - tool_clock_ns(CLOCK_MONOTONIC)) > 0) {
        struct pollfd ready = {.fd = input, .events = POLLIN};
        struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
        char more[512];
        if (ppoll(&ready, 1, &left, NULL) <= 0)
            continue;
        ssize_t count = read(input, more, sizeof more);
        if (count <= 0)
            return true;
        size_t kept = bytes_min((size_t)count, capacity - 1 - length);
        memcpy(text + length, more, kept);
        text[length += kept] = '\0';
    }
    return false;
}

static void set_limit(struct watch *watch)
{
    static const char prefix[] = "sparkguard: --set: ";
    struct watch_change *change = &watch->change;
    char answer[sizeof change->said] = "";
    int ends[2];
    pid_t child = -1;
    if (pipe2(ends, O_CLOEXEC) == 0) {
        child = fork();
        if (child == 0)
            become_setter(change, ends[1]);
        close(ends[1]);
    }
    if (child < 0) {
        say(watch, "sparkguard --set cannot be started: %s", strerror(errno));
        return;
    }
    if (!read_answer(ends[0], answer, sizeof answer)) {
        kill(child, SIGKILL);
        snprintf(answer, sizeof answer, "sparkguard --set does not answer");
    }
    close(ends[0]);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    answer[strcspn(answer, "\n")] = '\0';
    bool has_prefix = strncmp(answer, prefix, sizeof prefix - 1) == 0;
    say(watch, "%s", text_printable(has_prefix ? answer + sizeof prefix - 1 : answer, style_of(stdout).is_utf8));
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

bool watch_change_begin(struct watch *watch, int key)
{
    watch->change.said[0] = '\0';
    if (key == TERMINAL_F9 || key == 'e')
        ask_to_end(watch);
    else if (key == 'L')
        ask_for_limit(watch);
    else
        return false;
    return true;
}

void watch_change_show(struct watch *watch)
{
    struct watch_change *change = &watch->change;
    if (change->asks == WATCH_ASKS_NOTHING || change->is_on_screen)
        return;
    terminal_discard_input();
    change->is_on_screen = true;
}

void watch_change_answer(struct watch *watch, int key)
{
    struct watch_change *change = &watch->change;
    bool is_for_limit = change->asks == WATCH_ASKS_FOR_LIMIT, is_enter = key == '\n' || key == '\r';
    if (is_for_limit && key != TERMINAL_ESCAPE && !is_enter) {
        watch_type(change->typed, sizeof change->typed, key);
        return;
    }
    change->said[0] = '\0';
    if (terminal_has_input())
        terminal_discard_input();
    else if (is_for_limit && is_enter && change->typed[0] != '\0')
        set_limit(watch);
    else if (!is_for_limit && (key == 'y' || key == 'Y'))
        end_targets(watch);
    let_go(change);
}
