/*
 * main.c - sparkguard-runtime(8): an OCI runtime that prepares a container's bundle and then becomes the next runtime, with the
 * same arguments. Whatever goes wrong before, also a crash or a file system that does not answer, the next runtime is executed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"
#include "runtime/runtime.h"

enum { NOT_STARTED = 1, NOT_FOUND = 127, PATIENCE_SECONDS = 10 };

static struct {
    char *path;
    char **words;
    const char *log;
    bool is_required; /* an unguarded container must not start */
} next;

static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
static struct sigaction before[sizeof faults / sizeof faults[0]];

static void tell(int fd, const char *sentence)
{
    if (write(fd, sentence, strlen(sentence)) < 0) /* a full disk: nothing is to be done about it */
        return;
}

/* Runs in a signal handler, too. */
static void give_up(int signal)
{
    static const char sentence[] = "sparkguard-runtime: failed; the container is not started (SPARKGUARD_REQUIRED)\n";
    static const char line[] =
        "- -: sparkguard-runtime failed, or took longer than 10 s: it left a container as it was\n";
    (void)signal;
    int fd = open(next.log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0640);
    tell(fd, line);
    if (next.is_required) {
        tell(STDERR_FILENO, sentence);
        _exit(NOT_STARTED);
    }
    execv(next.path, next.words);
    _exit(NOT_FOUND);
}

static void give_up_without_memory(void)
{
    give_up(0);
}

/* From here on, a fault of this tool is none of the container's. Returns how many seconds were left of an alarm. */
static unsigned catch_faults(void)
{
    struct sigaction action = {.sa_handler = give_up, .sa_flags = SA_NODEFER};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigaction(faults[i], &action, &before[i]);
    tool_without_memory = give_up_without_memory;
    return alarm(PATIENCE_SECONDS);
}

static void release_faults(unsigned alarm_seconds)
{
    alarm(alarm_seconds);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigaction(faults[i], &before[i], NULL);
}

/* Ends the runtime with a sentence where engines look for it. */
static void refuse(const struct runtime_arguments *arguments, const char *reason)
{
    char *text = text_format("sparkguard-runtime: container %s is not started: %s (SPARKGUARD_REQUIRED)",
                             arguments->id != NULL ? arguments->id : "-", reason);
    runtime_log_tell_engine(arguments, text);
    fprintf(stderr, "%s\n", text);
    exit(NOT_STARTED);
}

static void create(const struct runtime_settings *settings, const struct runtime_arguments *arguments)
{
    char *reason = runtime_container_create(settings, arguments, &next.is_required);
    if (reason != NULL) {
        char *line = text_format("%s: %s", next.is_required ? "not started" : "unguarded", reason);
        runtime_log_add(settings, arguments, line);
        if (next.is_required)
            refuse(arguments, reason);
        free(line);
    }
    free(reason);
}

/* Tells what is wrong with the settings. */
static void warn(const struct runtime_settings *settings, const struct runtime_arguments *arguments)
{
    char *line;
    if (settings->wrong != NULL) {
        line = text_format("%s: this line was not understood: %s", settings->conf, settings->wrong);
        runtime_log_add(settings, arguments, line);
        free(line);
    }
    if (settings->itself != NULL) {
        line = text_format("the next runtime %s is sparkguard-runtime or calls it: %s is used", settings->itself,
                           settings->next);
        runtime_log_add(settings, arguments, line);
        free(line);
    }
}

static void prepare(const struct runtime_settings *settings, const struct runtime_arguments *arguments)
{
    char *line = NULL;
    if (arguments->command == RUNTIME_CREATE)
        create(settings, arguments);
    else if (arguments->command == RUNTIME_EXEC)
        line = runtime_container_exec(settings, arguments, &next.words);
    else if (arguments->command == RUNTIME_DELETE)
        runtime_container_delete(settings, arguments);
    else if (arguments->command == RUNTIME_UNKNOWN)
        line = text_format("%s is an unknown command, or the value of an unknown option: nothing is guarded",
                           arguments->command_word);
    if (arguments->command == RUNTIME_CREATE)
        warn(settings, arguments);
    if (line != NULL)
        runtime_log_add(settings, arguments, line);
    free(line);
}

int main(int argc, char **argv)
{
    struct runtime_settings settings;
    struct runtime_arguments arguments;
    runtime_settings_read(&settings);
    runtime_arguments_read(&arguments, argc, argv);
    if (settings.next == NULL) {
        fputs("sparkguard-runtime: there is no next runtime: name one in /etc/sparkguard/runtime.conf (next = runc)\n",
              stderr);
        return NOT_FOUND;
    }
    next.path = settings.next;
    next.words = argv;
    next.log = settings.log;
    next.is_required = settings.is_required && arguments.command == RUNTIME_CREATE;
    if (argc > 0)
        argv[0] = settings.next;
    runtime_settings_note_next(&settings);
    if (arguments.command != RUNTIME_OTHER) {
        unsigned left = catch_faults();
        prepare(&settings, &arguments);
        release_faults(left);
    }
    execv(next.path, next.words);
    fprintf(stderr, "sparkguard-runtime: cannot execute %s: %s\n", settings.next, strerror(errno));
    return NOT_FOUND;
}
