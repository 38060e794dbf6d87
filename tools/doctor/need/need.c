/*
 * need.c - the gate itself: reads the machine's figures as the report does, waits, prints on stderr what the gate waits
 * for, and becomes the command. stdout belongs to the command, or to the verdict where there is none.
 *
 * SIGINT, SIGTERM, SIGHUP and SIGQUIT are blocked and taken while the gate waits: the progress line is removed, and the
 * gate ends by that signal.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/json.h"
#include "common/procfs.h"
#include "common/style.h"
#include "common/command.h"
#include "common/text.h"
#include "doctor/need/need.h"
#include "model/model.h"

/* Share of time in which some process waited for memory (/proc/pressure/memory, avg10), above which the gate
 * should rarely read the figures. */
#define PRESSED_PERCENT 10

struct view {
    uint64_t usable_bytes, reserve_bytes;
    uint64_t free_bytes; /* what would be granted: usable less reserve */
    uint64_t most_bytes; /* what would be granted if all else were free */
    uint64_t ordinary_bytes;
    bool is_known;
};

static const int signals_taken[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

static int64_t monotonic_ns(void)
{
    struct timespec time = {0};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static const char *system_root(void)
{
    const char *root = getenv("SPARKGUARD_SYSTEM_ROOT");
    return root == NULL || strcmp(root, "/") == 0 ? "" : root;
}

static struct view read_view(void)
{
    const struct model_scope scope = {.directory_count = 0};
    struct model *model = model_build(&scope);
    const struct model_machine *machine = &model->machine;
    struct view view = {.usable_bytes = machine->usable_bytes,
                        .reserve_bytes = machine->reserve_bytes,
                        .ordinary_bytes = machine->ordinary_bytes};
    view.is_known = view.usable_bytes != SG_UNKNOWN && view.reserve_bytes != SG_UNKNOWN;
    if (view.is_known) {
        view.free_bytes = bytes_less(view.usable_bytes, view.reserve_bytes);
        view.most_bytes = machine->most_bytes;
    }
    return view;
}

static bool is_pressed(void)
{
    char path[4096], text[512];
    double percent = 0;
    snprintf(path, sizeof path, "%s/proc/pressure/memory", system_root());
    return procfs_read_text(path, text, sizeof text) > 0 && sscanf(text, "some avg10=%lf", &percent) == 1 &&
           percent >= PRESSED_PERCENT;
}

/* ---- what it says ------------------------------------------------------------------------------------------------ */

static void clear_progress(const struct style *style)
{
    if (style->is_terminal)
        fputs("\r\033[K", style->stream);
}

static void put_progress(const struct style *style, const struct view *view, uint64_t need_bytes, int64_t waited_ns)
{
    char size[TEXT_SIZE_CAPACITY], need[TEXT_SIZE_CAPACITY], lasted[TEXT_TIME_CAPACITY];
    if (!style->is_terminal)
        return;
    char *line = text_format("%s of %s, %s", text_size(size, view->free_bytes), text_size(need, need_bytes),
                             text_duration(lasted, waited_ns));
    text_shorten(line, style->columns - 1);
    fprintf(style->stream, "\r\033[K%s", line);
    fflush(style->stream);
}

static void put_holder(const struct style *style, const struct need_holder *holder)
{
    char size[TEXT_SIZE_CAPACITY], pid[16] = "";
    char *name = text_printable(holder->name, style->is_utf8), *user = text_printable(holder->user, style->is_utf8);
    text_shorten(name, 40);
    if (holder->pid != 0)
        snprintf(pid, sizeof pid, "%u ", (unsigned)holder->pid);
    char *line = text_format("%s%s%s%s%s", name, holder->pid != 0 ? " of " : "", holder->pid != 0 ? user : "",
                             holder->why != NULL ? ", " : "", holder->why != NULL ? holder->why : "");
    fprintf(style->stream, "  %10s  %s", text_size(size, holder->bytes), pid);
    style_words(style, 14 + strlen(pid), STYLE_PLAIN, line);
    fprintf(style->stream, "              %s$ %s%s\n", style_colour_on(style, STYLE_BOLD), holder->end,
            style_colour_off(style, STYLE_BOLD));
}

static void put_holders(const struct style *style, const struct need_holders *holders)
{
    for (size_t i = 0; i < holders->count; i++) {
        if (i == 0 || (holders->at[i].kind == NEED_LARGE && holders->at[i - 1].kind != NEED_LARGE))
            fprintf(style->stream, "sparkguard-doctor: %s:\n",
                    holders->at[i].kind == NEED_LARGE ? "these hold memory"
                                                      : "these look left behind by an earlier job");
        put_holder(style, &holders->at[i]);
    }
}

static void put_shortage(const struct style *style, const struct need_request *request, const struct view *view,
                         uint64_t need_bytes)
{
    char size[TEXT_SIZE_CAPACITY], need[TEXT_SIZE_CAPACITY], lasted[TEXT_TIME_CAPACITY];
    fprintf(style->stream, "sparkguard-doctor: %s of the %s needed could be had now", text_size(size, view->free_bytes),
            text_size(need, need_bytes));
    if (request->wait_ns == NEED_ENDLESS)
        fputs("; waiting\n", style->stream);
    else if (request->wait_ns > 0)
        fprintf(style->stream, "; waiting up to %s\n", text_duration(lasted, request->wait_ns));
    else
        fputc('\n', style->stream);
}

static void put_json(const struct view *view, uint64_t need_bytes, int status, int64_t waited_ns,
                     const struct need_holders *holders)
{
    static const char *const kinds[] = {"leftover", "file", "large"};
    json_t *root = json_object(), *list = json_array();
    json_object_set_new(root, "schema", json_integer(1));
    json_object_set_new(root, "exit_status", json_integer(status));
    json_object_set_new(root, "enough", json_boolean(status == NEED_EXIT_ENOUGH));
    json_object_set_new(root, "need_bytes", json_of_number(need_bytes));
    json_object_set_new(root, "free_bytes", json_of_number(view->is_known ? view->free_bytes : SG_UNKNOWN));
    json_object_set_new(root, "usable_bytes", json_of_number(view->usable_bytes));
    json_object_set_new(root, "reserve_bytes", json_of_number(view->reserve_bytes));
    json_object_set_new(root, "waited_seconds", json_of_real((double)waited_ns / 1e9));
    json_object_set_new(root, "holders", list);
    for (size_t i = 0; i < holders->count; i++) {
        const struct need_holder *holder = &holders->at[i];
        json_t *object = json_object();
        json_object_set_new(object, "kind", json_of_text(kinds[holder->kind]));
        json_object_set_new(object, "pid", holder->pid != 0 ? json_of_number(holder->pid) : json_null());
        json_object_set_new(object, "bytes", json_of_number(holder->bytes));
        json_object_set_new(object, "user", json_of_text(holder->user));
        json_object_set_new(object, "name", json_of_text(holder->name));
        json_object_set_new(object, "end", json_of_text(holder->end));
        json_array_append_new(list, object);
    }
    json_print(root, stdout);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static sigset_t block_signals(sigset_t *before)
{
    sigset_t taken;
    struct sigaction action;
    sigemptyset(&taken);
    for (size_t i = 0; i < sizeof signals_taken / sizeof signals_taken[0]; i++)
        if (sigaction(signals_taken[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) /* nohup */
            sigaddset(&taken, signals_taken[i]);
    sigprocmask(SIG_BLOCK, &taken, before);
    return taken;
}

/* Waits. Returns the signal that came, or 0. */
static int pause_for(const sigset_t *taken, int64_t pause_ns)
{
    const struct timespec time = {pause_ns / 1000000000, pause_ns % 1000000000};
    int number = sigtimedwait(taken, NULL, &time);
    return number > 0 ? number : 0;
}

static void end_by(int number, const sigset_t *before) __attribute__((noreturn));
static void end_by(int number, const sigset_t *before)
{
    fflush(NULL);
    sigprocmask(SIG_SETMASK, before, NULL);
    raise(number);
    exit(128 + number);
}

struct wait {
    const struct need_request *request;
    const struct style *style;
    struct need_holders holders;
    struct view view;
    uint64_t need_bytes;
    int64_t start_ns;
    bool has_told;
};

/* Tells once what is missing and who holds it. */
static void tell(struct wait *wait)
{
    if (wait->has_told)
        return;
    wait->has_told = true;
    need_holders_find(&wait->holders);
    if (wait->request->is_json)
        return;
    put_shortage(wait->style, wait->request, &wait->view, wait->need_bytes);
    put_holders(wait->style, &wait->holders);
}

static int wait_until_enough(struct wait *wait, const sigset_t *taken, const sigset_t *before)
{
    struct need_gate gate = {
        .need_bytes = wait->need_bytes, .start_ns = wait->start_ns, .wait_ns = wait->request->wait_ns};
    for (;;) {
        int64_t now_ns = monotonic_ns(), pause_ns;
        enum need_verdict verdict = need_gate_look(&gate, wait->view.free_bytes, now_ns, is_pressed(), &pause_ns);
        if (verdict == NEED_ENOUGH)
            return NEED_EXIT_ENOUGH;
        tell(wait);
        if (verdict == NEED_LATE)
            return NEED_EXIT_LATE;
        put_progress(wait->style, &wait->view, wait->need_bytes, now_ns - wait->start_ns);
        int number = pause_for(taken, pause_ns);
        if (number != 0) {
            clear_progress(wait->style);
            end_by(number, before);
        }
        wait->view = read_view();
        if (!wait->view.is_known)
            return NEED_EXIT_UNKNOWN;
    }
}

/* Says how the wait ended. */
static void put_verdict(const struct wait *wait, int status)
{
    char size[TEXT_SIZE_CAPACITY], need[TEXT_SIZE_CAPACITY], lasted[TEXT_TIME_CAPACITY], most[TEXT_SIZE_CAPACITY];
    const char *not_started = wait->request->command != NULL ? "; the command was not started" : "";
    text_size(size, wait->view.free_bytes);
    text_size(need, wait->need_bytes);
    text_size(most, wait->view.most_bytes);
    text_duration(lasted, monotonic_ns() - wait->start_ns);
    clear_progress(wait->style);
    if (status == NEED_EXIT_UNKNOWN)
        fprintf(stderr, "sparkguard-doctor: /proc/meminfo does not say what is available%s\n", not_started);
    else if (status == NEED_EXIT_NEVER)
        fprintf(stderr, "sparkguard-doctor: %s can never be had here: all memory less the reserve is %s%s\n", need,
                most, not_started);
    else if (status == NEED_EXIT_LATE)
        fprintf(stderr, "sparkguard-doctor: %s of the %s needed could be had after %s%s\n", size, need, lasted,
                not_started);
    else if (wait->has_told)
        fprintf(stderr, "sparkguard-doctor: %s could be had after %s\n", size, lasted);
    else if (wait->request->command == NULL)
        printf("%s could be had, %s needed\n", size, need);
}

/* Says that the command runs without the guard, unless it is the launcher or has the library from the environment. */
static void tell_unguarded(const char *command)
{
    const char *slash = strrchr(command, '/'), *preload = getenv("LD_PRELOAD");
    bool is_launcher = strcmp(slash != NULL ? slash + 1 : command, "sparkguard") == 0;
    if (is_launcher || (preload != NULL && strstr(preload, "libsparkguard") != NULL))
        return;
    char *name = text_printable(command, false);
    fprintf(stderr, "sparkguard-doctor: %s runs without the guard; to guard it, put sparkguard in front of it\n", name);
}

/* Becomes the command. Returns the exit status of a failure. */
static int become(const struct need_request *request)
{
    char *name, **command = request->command;
    tell_unguarded(command[0]);
    fflush(NULL);
    signal(SIGPIPE, request->inherited_sigpipe);
    execvp(command[0], command);
    int failure = errno;
    name = text_printable(command[0], false);
    char *beside = command_of_tool("sparkguard");
    bool is_launcher = strcmp(command[0], "sparkguard") == 0 && strcmp(beside, "sparkguard") != 0;
    fprintf(stderr, "sparkguard-doctor: cannot run %s: %s%s%s\n", name, strerror(failure),
            is_launcher ? "; there is one beside this tool: " : "", is_launcher ? beside : "");
    return failure == ENOENT ? NEED_EXIT_NOT_FOUND : NEED_EXIT_NOT_EXECUTABLE;
}

int need_run(const struct need_request *request)
{
    sigset_t before, taken = block_signals(&before);
    struct style style = style_of(stderr);
    struct wait wait = {.request = request, .style = &style, .view = read_view(), .start_ns = monotonic_ns()};
    int status;
    wait.need_bytes = sg_size_of(request->size, wait.view.ordinary_bytes);
    if (request->is_json)
        style.is_terminal = false; /* no progress */
    if (!wait.view.is_known)
        status = NEED_EXIT_UNKNOWN;
    else if (wait.need_bytes > wait.view.most_bytes)
        status = NEED_EXIT_NEVER;
    else
        status = wait_until_enough(&wait, &taken, &before);
    if (request->is_json)
        put_json(&wait.view, wait.need_bytes, status, monotonic_ns() - wait.start_ns, &wait.holders);
    else
        put_verdict(&wait, status);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status == NEED_EXIT_ENOUGH && request->command != NULL ? become(request) : status;
}
