/*
 * main.c - sparkguard-runtime(8): an OCI runtime that prepares a container's bundle and then becomes the next runtime,
 * with the same arguments. Whatever goes wrong before, also a crash or a file system that does not answer, the next
 * runtime is executed.
 */
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
    bool is_required; /* an unguarded container or process must not start */
} next;

static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGXCPU, SIGALRM};
static struct sigaction before[sizeof faults / sizeof faults[0]], before_size;

static void tell(int fd, const char *sentence)
{
    if (write(fd, sentence, strlen(sentence)) < 0) /* a full disk: nothing is to be done about it */
        return;
}

static void release_faults(unsigned alarm_seconds)
{
    alarm(alarm_seconds);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigaction(faults[i], &before[i], NULL);
    sigaction(SIGXFSZ, &before_size, NULL);
}

/* Where the next runtime is if a fault comes before it is known. */
static const char *const usual[] = {"/usr/bin/nvidia-container-runtime", "/usr/bin/runc", "/usr/sbin/runc",
                                    "/usr/local/sbin/runc", "/usr/bin/crun"};

/* Runs in a signal handler, too. */
static void give_up(int signal)
{
    static const char sentence[] = "sparkguard-runtime: failed; the container is not started (SPARKGUARD_REQUIRED)\n";
    static const char line[] =
        "- -: sparkguard-runtime failed, or took longer than 10 s: it left a container as it was\n";
    (void)signal;
    int fd = next.log == NULL
                 ? -1
                 : open(next.log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0640);
    tell(fd, line);
    if (next.is_required) {
        tell(STDERR_FILENO, sentence);
        _exit(NOT_STARTED);
    }
    release_faults(0);
    if (next.path != NULL)
        execv(next.path, next.words);
    for (size_t i = 0; next.path == NULL && i < sizeof usual / sizeof usual[0]; i++)
        execv(usual[i], next.words);
    _exit(NOT_FOUND);
}

static void give_up_without_memory(void)
{
    give_up(0);
}

/* From here on, a fault of this tool is none of the container's. A file that may not grow (RLIMIT_FSIZE) is a failed
 * write and no signal. Returns how many seconds were left of an alarm. */
static unsigned catch_faults(void)
{
    static char stack[16384]; /* of the handler: the program's own may be what is used up */
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = give_up, .sa_flags = SA_NODEFER | SA_ONSTACK},
                     ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&action.sa_mask);
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGXFSZ, &ignore, &before_size);
    (void)sigaltstack(&other, NULL);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigaction(faults[i], &action, &before[i]);
    tool_without_memory = give_up_without_memory;
    return alarm(PATIENCE_SECONDS);
}

/* Ends the runtime with a sentence where engines look for it. */
static void refuse_container(const struct runtime_arguments *arguments, const char *reason)
{
    const char *what = arguments->command == RUNTIME_EXEC ? "a process of container" : "container";
    char *text = text_format("sparkguard-runtime: %s %s is not started: %s (SPARKGUARD_REQUIRED)", what,
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
            refuse_container(arguments, reason);
    }
}

/* Tells what is wrong with the settings. */
static void warn(const struct runtime_settings *settings, const struct runtime_arguments *arguments)
{
    char *line;
    if (settings->wrong != NULL) {
        line = text_format("%s: this line was not understood: %s", settings->conf, settings->wrong);
        runtime_log_add(settings, arguments, line);
    }
    if (settings->itself != NULL) {
        line = text_format("the next runtime %s is sparkguard-runtime or calls it: %s is used", settings->itself,
                           settings->next);
        runtime_log_add(settings, arguments, line);
    }
}

/* Returns whether words that were not understood may start a program in a container. */
static bool may_start(const struct runtime_arguments *arguments)
{
    bool is_found = false;
    for (int at = 1; at < arguments->count; at++)
        is_found = is_found || text_is_one_of(arguments->words[at], "create|run|restore|exec");
    return is_found;
}

/* A command line with an option or a command that is unknown: what it starts is not seen. */
static void pass_unread(const struct runtime_settings *settings, const struct runtime_arguments *arguments)
{
    char *line = text_format("%s is an unknown command, or the value of an unknown option: nothing is guarded",
                             arguments->command_word);
    runtime_log_add(settings, arguments, line);
    if (settings->is_required && may_start(arguments))
        refuse_container(arguments, "its command line has an unknown option or command");
}

static void exec_process(const struct runtime_settings *settings, const struct runtime_arguments *arguments)
{
    char *reason = runtime_container_exec(settings, arguments, &next.words, &next.is_required);
    if (reason == NULL)
        return;
    char *line = text_format("exec %s: %s", next.is_required ? "is not started" : "runs unguarded", reason);
    runtime_log_add(settings, arguments, line);
    if (next.is_required)
        refuse_container(arguments, reason);
}

static void prepare(const struct runtime_settings *settings, const struct runtime_arguments *arguments)
{
    if (arguments->command == RUNTIME_CREATE)
        create(settings, arguments);
    else if (arguments->command == RUNTIME_EXEC)
        exec_process(settings, arguments);
    else if (arguments->command == RUNTIME_DELETE)
        runtime_container_delete(settings, arguments);
    else
        pass_unread(settings, arguments);
    if (arguments->command == RUNTIME_CREATE)
        warn(settings, arguments);
}

int main(int argc, char **argv)
{
    struct runtime_settings settings;
    struct runtime_arguments arguments;
    next.words = argv;
    unsigned left = catch_faults();
    runtime_arguments_read(&arguments, argc, argv);
    runtime_settings_read_next(&settings);
    if (settings.next == NULL) {
        fputs("sparkguard-runtime: there is no next runtime: name one in /etc/sparkguard/runtime.conf (next = runc)\n",
              stderr);
        return NOT_FOUND;
    }
    next.path = settings.next;
    next.is_required = settings.is_required && arguments.command != RUNTIME_OTHER &&
                       arguments.command != RUNTIME_DELETE && may_start(&arguments);
    if (argc > 0)
        argv[0] = settings.next;
    runtime_settings_note_next(&settings);
    if (arguments.command != RUNTIME_OTHER) {
        runtime_settings_read_places(&settings);
        next.log = settings.log;
        prepare(&settings, &arguments);
    }
    release_faults(left);
    execv(next.path, next.words);
    fprintf(stderr, "sparkguard-runtime: cannot execute %s: %s\n", settings.next, strerror(errno));
    return NOT_FOUND;
}
