/*
 * trial.c - see check.h. A trial's stdout and stderr are a memory file, so that neither can fill up and block it. Its
 * copy of the answers' pipe stays open until it ends. So its end is seen even if it never answers.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launch/check/check.h"
#include "common/tool.h"

#define PATIENCE_NS INT64_C(10000000000) /* by default */

enum { WORDS_MAX = 65536 };

static void become(const char *library, const char *path, char *const *arguments,
                   const struct check_variable *variables, int words)
{
    const struct rlimit none = {0, 0};
    int nowhere = open("/dev/null", O_RDONLY);
    for (; variables->name != NULL; variables++)
        if (variables->value != NULL)
            setenv(variables->name, variables->value, 1);
        else
            unsetenv(variables->name);
    setrlimit(RLIMIT_CORE, &none);
    launch_preload(library);
    if (dup2(nowhere, STDIN_FILENO) >= 0 && dup2(words, STDOUT_FILENO) >= 0 && dup2(words, STDERR_FILENO) >= 0)
        execv(path, arguments);
    dprintf(words, "%s\n", strerror(errno));
    _exit(LAUNCH_FAILED);
}

/* Opens what a trial needs. The child's ends of the pipes are returned. */
static bool open_ends(struct check_trial *trial, int *answers, int *hold)
{
    int answer_ends[2], hold_ends[2];
    *trial = (struct check_trial){
        .words = memfd_create("sparkguard", MFD_CLOEXEC), .answers = -1, .hold = -1, .patience_ns = PATIENCE_NS};
    if (trial->words < 0 || pipe2(answer_ends, O_CLOEXEC) != 0)
        return false;
    trial->answers = answer_ends[0];
    *answers = answer_ends[1];
    if (pipe2(hold_ends, O_CLOEXEC) != 0) {
        close(*answers);
        return false;
    }
    trial->hold = hold_ends[1];
    *hold = hold_ends[0];
    return true;
}

bool check_trial_start_probe(struct check_trial *trial, const char *library, enum check_probe kind,
                             const struct check_variable *variables)
{
    int answers, hold;
    char first[96];
    char *const arguments[] = {(char[]){"sparkguard"}, first, NULL};
    if (!open_ends(trial, &answers, &hold))
        return false;
    snprintf(first, sizeof first, CHECK_INSIDE_OPTION "%d,%d,%d", answers, hold, (int)kind);
    trial->pid = fork();
    if (trial->pid == 0) {
        fcntl(answers, F_SETFD, 0);
        fcntl(hold, F_SETFD, 0);
        become(library, "/proc/self/exe", arguments, variables, trial->words);
    }
    close(answers);
    close(hold);
    return trial->pid > 0;
}

/* Waits until the pipe has an answer or the trial has ended. Returns false if neither happens in time. */
static bool wait_for_news(const struct check_trial *trial)
{
    int64_t end_ns = tool_clock_ns(CLOCK_MONOTONIC) + trial->patience_ns, left_ns;
    struct pollfd news = {.fd = trial->answers, .events = POLLIN};
    while ((left_ns = end_ns - tool_clock_ns(CLOCK_MONOTONIC)) > 0) {
        int count = poll(&news, 1, (int)(left_ns / 1000000) + 1);
        if (count > 0 || (count < 0 && errno != EINTR))
            return count > 0;
    }
    return false;
}

bool check_trial_hear(struct check_trial *trial, struct check_answer *answer)
{
    return wait_for_news(trial) && read(trial->answers, answer, sizeof *answer) == (ssize_t)sizeof *answer;
}

char *check_trial_words(const struct check_trial *trial)
{
    char *text = tool_allocate(WORDS_MAX, 1);
    ssize_t length = trial->words >= 0 ? pread(trial->words, text, WORDS_MAX - 1, 0) : 0;
    text[length > 0 ? length : 0] = '\0';
    return text;
}

char *check_trial_end(struct check_trial *trial, int *status)
{
    struct check_answer late;
    bool is_in_time = true;
    *status = -1;
    if (trial->hold >= 0)
        close(trial->hold);
    while (trial->pid > 0 && (is_in_time = wait_for_news(trial)) && read(trial->answers, &late, sizeof late) > 0)
        continue;
    if (!is_in_time)
        kill(trial->pid, SIGKILL);
    while (trial->pid > 0 && waitpid(trial->pid, status, 0) < 0 && errno == EINTR)
        continue;
    if (trial->answers >= 0)
        close(trial->answers);
    char *text = check_trial_words(trial);
    if (trial->words >= 0)
        close(trial->words);
    return text;
}
