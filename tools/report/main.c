/*
 * sparkguard-report - shows running and ended programs under the guard, and what was refused. Data goes to stdout,
 * messages to stderr. Exit status: 0 shown, 1 nothing matches, 2 usage, 3 a file cannot be trusted (the others are
 * shown all the same) or the output cannot be written.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "report/html/html.h"
#include "report/output.h"
#include "report/draw/draw.h"
#include "report/report.h"
#include "model/model.h"
#include "report/since.h"
#include "common/bad_value.h"
#include "launch/check/check.h"
#include "model/defaults.h"
#include "common/env_check.h"
#include "common/option.h"
#include "common/suggest.h"
#include "common/text.h"
#include "common/tool.h"
#include "report/watch/watch.h"

const char *argp_program_version = "sparkguard-report " SG_VERSION_TEXT;

struct request {
    struct model_scope scope;
    char **directories; /* directories of the scope, with space for one per argument */
    int64_t watch_ns;   /* the interval; 0: once */
    bool is_json, is_csv, is_prometheus;
    const char *plot_path;   /* NULL: no plot */
    const char *html_path;   /* NULL: no page */
    const char *output_path; /* NULL: stdout */
};

#define SET_FLAG(member) OPTION_FLAG(struct request, member)

enum { KEY_OUTPUT = 256, KEY_SINCE, KEY_DIR, KEY_WATCH, KEY_PLOT, KEY_HTML };

static const struct argp_option options[] = {
    {"json", SET_FLAG(is_json), NULL, 0, "print JSON, for programs", 0},
    {"csv", SET_FLAG(is_csv), NULL, 0, "print CSV, a row for each process", 0},
    {"prometheus", SET_FLAG(is_prometheus), NULL, 0, "print metrics for node_exporter's textfile collector", 0},
    {"output", KEY_OUTPUT, "FILE", 0, "write to FILE, which appears when it is complete", 0},
    {"job", OPTION_TEXT(struct request, scope.job), "NAME", 0, "one job, running or ended", 0},
    {"last", SET_FLAG(scope.is_last), NULL, 0, "the job that started last", 0},
    {"since", KEY_SINCE, "WHEN", 0, "jobs from WHEN on: 2h, 30min, 13:06, yesterday, 2026-11-20T13:06, @EPOCH", 0},
    {"all", SET_FLAG(scope.is_all), NULL, 0, "every job and process on record", 0},
    {"watch", KEY_WATCH, "TIME", OPTION_ARG_OPTIONAL, "live view, refreshed every TIME (1s)", 0},
    {"dir", KEY_DIR, "DIR", 0, "read DIR: another user's, a container's, a copy; may be repeated, or a pattern", 0},
    {"plot", KEY_PLOT, "FILE.svg", 0, "draw the time line of a job (--job, --last), or of one process", 0},
    {"html", KEY_HTML, "FILE.html", 0, "write the same as one HTML page, for a bug report", 0},
    {0},
};

static error_t refuse_argument(const char *argument, const char *why)
{
    fprintf(stderr, "sparkguard-report: %s %s\n", text_printable(argument, false), why);
    return EINVAL;
}

static error_t refuse_value(const char *name, const char *value, const char *fault, const char *example)
{
    bad_value_say("sparkguard-report", name, value, fault, example, "nothing is shown");
    return EINVAL;
}

/* Accepts "--watch 5" as well as "--watch=5". In "--watch 4711" the number is a PID, because after a blank the interval
 * is at most 60 s. */
static error_t parse_interval(const char *argument, struct argp_state *state, int64_t *interval_ns)
{
    char *end;
    const char *next = argument == NULL && state->next < state->argc ? state->argv[state->next] : "";
    if (next[0] != '\0' && strspn(next, ".0123456789") == strlen(next) && strtod(next, &end) <= 60) {
        argument = next;
        state->next++;
    }
    uint64_t ns = UINT64_C(1000000000);
    bool is_time = argument == NULL || sg_parse_time(argument, &ns) == 0;
    if (!is_time || ns < UINT64_C(100000000) || ns > UINT64_C(3600000000000))
        return refuse_value("--watch", argument, "not a time from 0.1 s to 1 h", "2");
    *interval_ns = (int64_t)ns;
    return 0;
}

/* A number is a process, any other word is a job. --job names a job that is called as a number. */
static error_t parse_selection(const char *argument, struct model_scope *scope)
{
    bool is_number = argument[0] != '\0' && strspn(argument, "0123456789") == strlen(argument);
    unsigned long number = is_number ? strtoul(argument, NULL, 10) : 0;
    if (!is_number && argument[0] != '\0') {
        if (scope->job != NULL)
            return refuse_argument(argument, "is a second job; give one at a time");
        scope->job = argument;
        return 0;
    }
    if (scope->pid != 0)
        return refuse_argument(argument, "is a second PID; give one at a time");
    if (number == 0 || number > INT32_MAX)
        return refuse_value("PID", argument, "not the number of a process", "4711");
    scope->pid = (uint32_t)number;
    return 0;
}

static error_t check_forms(const struct request *request)
{
    bool is_watch = request->watch_ns != 0, is_plot = request->plot_path != NULL, is_page = request->html_path != NULL;
    if (request->is_json + request->is_csv + request->is_prometheus + is_watch + is_plot + is_page > 1)
        return refuse_argument("--json, --csv, --prometheus, --watch, --plot and --html", "exclude each other");
    if (request->output_path != NULL && (is_watch || is_plot || is_page))
        return refuse_argument("--output", "cannot be used with --watch, --plot or --html");
    if (request->scope.job != NULL && request->scope.job[0] == '\0')
        return refuse_value("--job", "", "not a name", "train-7b");
    return 0;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_OUTPUT:
        if (argument[0] == '\0')
            return refuse_value("--output", argument, "not a file name", "report.json");
        request->output_path = argument;
        return 0;
    case KEY_WATCH:
        return parse_interval(argument, state, &request->watch_ns);
    case KEY_SINCE:
        if (!report_since_parse(argument, tool_now_ns(), &request->scope.since_ns))
            return refuse_value("--since", argument, "not a time",
                                "2h, or 30min, 13:06, yesterday, 2026-11-20T13:06, @1795180000");
        return 0;
    case KEY_DIR:
        if (argument[0] == '\0')
            return refuse_value("--dir", argument, "not a directory", "/dev/shm/sparkguard-1000");
        request->directories[request->scope.directory_count++] = argument;
        return 0;
    case KEY_PLOT:
        if (!draw_may_write(argument))
            return refuse_value("--plot", argument, "the name must end in .svg, or be -", "run.svg");
        request->plot_path = argument;
        return 0;
    case KEY_HTML:
        if (!report_output_may_write(argument, ".html"))
            return refuse_value("--html", argument, "the name must end in .html, or be -", "report.html");
        request->html_path = argument;
        return 0;
    case ARGP_KEY_ARG:
        return parse_selection(argument, &request->scope);
    case ARGP_KEY_INIT:
        state->err_stream = NULL; /* print getopt's message only, without argp's two lines about --help */
        return 0;
    case ARGP_KEY_END:
        return check_forms(request);
    default:
        return option_set(request, key, argument);
    }
}

static const struct argp parser = {
    .options = options,
    .parser = parse_option,
    .args_doc = "[JOB|PID]",
    .doc = "Shows what runs under sparkguard now and what ran last, one job, or one process in depth, alive or dead.\v"
           "Exit status: 0 shown, 1 nothing matches, 2 usage, 3 a file cannot be trusted or the output "
           "not written.",
};

/* Returns whether a word is that of an option, without its dashes: "last". */
static bool is_option(const char *word)
{
    for (const struct argp_option *option = options; option->name != NULL; option++)
        if (word != NULL && strcmp(option->name, word) == 0)
            return true;
    return false;
}

static void say_nothing_matches(const struct model *model, const struct model_scope *scope)
{
    fputs("sparkguard-report: ", stderr);
    if (scope->pid != 0)
        fprintf(stderr, "no process %" PRIu32, scope->pid);
    else
        fputs("no job", stderr);
    if (scope->job != NULL)
        fprintf(stderr, scope->pid != 0 ? " of a job %s" : " %s", scope->job);
    fprintf(stderr, "%s on record in %s%s%s; ", scope->since_ns != 0 ? " since then" : "",
            scope->directory_count > 0 ? scope->directories[0] : model->directories[0].path,
            scope->directory_count > 1 ? " and the others"
            : model->history != NULL   ? " or "
                                       : "",
            model->history != NULL ? model->history : "");
    if (is_option(scope->job))
        fprintf(stderr, "did you mean --%s?\n", scope->job);
    else
        fputs("sparkguard-report --all shows what is\n", stderr);
}

/* Returns the exit status, after messages about what could not be shown. */
static int conclude(struct model *model, const struct model_scope *scope)
{
    model_say_complaints(model);
    bool is_missing = false, is_unread = false;
    for (size_t i = 0; i < model->directory_count; i++) {
        const struct model_directory *directory = &model->directories[i];
        if (!model_directory_is_faulty(directory))
            continue;
        char *path = text_printable(directory->path, false);
        fprintf(stderr, "sparkguard-report: %s: %s\n", path, strerror(directory->error));
        is_missing = true;
        is_unread = is_unread || directory->error != ENOENT;
    }
    if (!is_missing && model->jobs == NULL && model_scope_is_narrow(scope))
        say_nothing_matches(model, scope);
    bool has_no_history = model->history_error != 0 && model->history_error != ENOENT;
    if (has_no_history)
        fprintf(stderr, "sparkguard-report: %s: %s\n", model->history, strerror(model->history_error));
    if (model->complaint_count > 0 || is_unread || has_no_history)
        return REPORT_UNTRUSTED;
    if (is_missing || (model->jobs == NULL && model_scope_is_narrow(scope)))
        return REPORT_NO_MATCH;
    return REPORT_SHOWN;
}

static struct model *gather(const struct request *request)
{
    struct model_scope scope = request->scope;
    if (request->watch_ns != 0)
        return report_watch(&request->scope, request->watch_ns);
    if (request->is_prometheus) { /* counters include all processes */
        scope.pid = 0;
        scope.job = NULL;
        scope.is_last = false;
        scope.since_ns = 0;
        scope.is_all = true;
    }
    return model_build(&scope);
}

struct shown {
    struct model *model;
    const struct request *request;
};

static void put_report(FILE *stream, void *content)
{
    const struct shown *shown = content;
    const struct request *request = shown->request;
    const struct model_scope *scope = &request->scope;
    struct model *model = shown->model;
    if (request->is_json) {
        report_render_json(model, stream);
    } else if (request->is_csv) {
        report_render_csv(model, stream);
    } else if (request->is_prometheus) {
        report_render_prometheus(model, scope, stream);
    } else if (request->watch_ns == 0 && (model->jobs != NULL || !model_scope_is_narrow(scope))) {
        struct style style = style_of(stream);
        report_render_text(model, scope, &style);
    }
}

static int write_report(struct model *model, const struct request *request)
{
    struct shown shown = {model, request};
    const char *path = request->output_path != NULL ? request->output_path : "-";
    int written = report_output_write(path, "the report", put_report, &shown), status = REPORT_SHOWN;
    /* Otherwise another user could make the collector for all users fail and fill the journal. The number of these
     * files is a metric. */
    if (request->is_prometheus && model_directories_found_amiss(model))
        model_say_complaints_shortly(model);
    else
        status = conclude(model, &request->scope);
    return written != REPORT_SHOWN ? written : status;
}

/* Writes a plot or a page; a page also lists what could not be read. */
static int write_document(struct model *model, const struct request *request)
{
    int status = conclude(model, &request->scope), written = REPORT_SHOWN;
    if (request->html_path != NULL && status != REPORT_NO_MATCH)
        written = report_html_file(model, &request->scope, request->html_path);
    else if (request->plot_path != NULL && (model->jobs != NULL || status == REPORT_SHOWN))
        written = draw_file(model, &request->scope, request->plot_path);
    return written != REPORT_SHOWN ? written : status;
}

/* Returns whether the output has the list of unguarded processes. Without it NVML need not be asked. */
static bool shows_unguarded(const struct request *request)
{
    bool has_form = request->is_json || request->is_csv || request->is_prometheus;
    bool is_in_depth = request->scope.pid != 0 && !has_form && request->html_path == NULL;
    return request->plot_path == NULL && !request->is_csv && !is_in_depth;
}

int main(int argc, char **argv)
{
    struct request request = {.scope.wants_unguarded = true};
    check_answer_inside(argv); /* a page has what sparkguard-doctor finds of the library */
    tool_begin(argv, REPORT_USAGE);
    style_wrap_messages();
    tool_memory_status = REPORT_UNTRUSTED;
    request.directories = tool_allocate((size_t)argc, sizeof *request.directories);
    request.scope.directories = request.directories;
    if (tool_parse(&parser, argc, argv, 0, &request) != 0) {
        suggest_option("sparkguard-report", &parser, 0, argv);
        return REPORT_USAGE;
    }
    defaults_take("sparkguard-report");
    env_check_warn_of_sizes("sparkguard-report");
    request.scope.wants_verdicts =
        request.watch_ns == 0 && request.plot_path == NULL && !request.is_csv && !request.is_prometheus;
    request.scope.wants_devices = shows_unguarded(&request);
    request.scope.wants_history = request.scope.directory_count == 0 && request.watch_ns == 0;
    struct model *model = gather(&request);
    bool is_document = request.plot_path != NULL || request.html_path != NULL;
    return is_document ? write_document(model, &request) : write_report(model, &request);
}
