/*
 * process.c - prints one process in depth: its time line, state or end, memory, and refusals.
 */
#include <inttypes.h>
#include <string.h>

#include "report/html/html.h"
#include "report/draw/draw.h"
#include "common/procfs.h"
#include "report/report.h"
#include "common/text.h"
#include "common/tool.h"

const char *report_html_state_class(const struct model_process *process)
{
    if (process->watchdog_event != NULL || process->state == SG_STATE_KILLED)
        return "class=\"bad\"";
    return process->state == SG_STATE_RUNNING ? "class=\"good\"" : "class=\"dim\"";
}

static const char *yes_or_no(bool is_so)
{
    return is_so ? "yes" : "no";
}

/* Prints a paragraph. */
static void put_note(FILE *stream, const char *attributes, char *text)
{
    report_html_element(stream, "p", attributes, text);
    fputc('\n', stream);
}

static void put_notes(FILE *stream, const struct model_process *process)
{
    if (process->watchdog_event != NULL)
        put_note(stream, "class=\"bad\"", model_fate_text(process, true));
    if (model_process_is_alone(process))
        put_note(stream, "class=\"warn\"", text_format("Decides alone: %s.", model_process_alone_reason(process)));
    if (!process->is_guarding)
        put_note(stream, "class=\"warn\"", text_format("Not guarding: its requests were not judged."));
    if (process->is_observing)
        put_note(stream, "", text_format("Observe mode: nothing was refused, only recorded."));
    if (process->faults > 0)
        put_note(stream, "class=\"warn\"",
                 text_format("%" PRIu64 " internal faults: those calls were let through uncounted.", process->faults));
}

static void put_drawing(FILE *stream, const struct report_html_entry *entry, size_t number)
{
    char name[32];
    snprintf(name, sizeof name, "drawing-%zu-", number);
    switch (entry->drawing) {
    case REPORT_HTML_DRAWN:
        fputs("<figure>\n", stream);
        draw_process(stream, entry->process, &entry->timeline, name);
        fputs("</figure>\n", stream);
        return;
    case REPORT_HTML_LEFT_OUT:
        put_note(stream, "class=\"dim\"",
                 text_format("Not drawn, because others held more; sparkguard-report --plot run.svg %" PRIu32
                             " draws its time line if it has one.",
                             entry->process->pid));
        return;
    case REPORT_HTML_NO_TIMELINE:
        put_note(stream, "class=\"dim\"",
                 text_format("No time line: one begins with CUDA, 256 MiB, a phase or a refusal."));
        return;
    case REPORT_HTML_BAD_TIMELINE:
        put_note(stream, "class=\"bad\"", text_format("Its time line cannot be trusted and is not drawn."));
    }
}

/* ---- what it held, and under which options ----------------------------------------------------------------------- */

static void put_process_table(FILE *stream, const struct model_process *process)
{
    struct report_html_table table;
    char state[MODEL_END_TEXT];
    bool is_running = process->state == SG_STATE_RUNNING;
    int64_t until_ns = is_running ? tool_now_ns() : process->ended_ns;
    bool has_span = process->started_ns > 0 && until_ns >= process->started_ns;
    report_html_table_begin(&table, stream, "Figures", NULL, 0);
    report_html_fact(&table, "State", model_end_text(process, state));
    report_html_fact_time(&table, "Started", process->started_ns);
    report_html_fact_time(&table, "Ended", process->ended_ns);
    report_html_fact_time(&table, "Last seen", is_running ? 0 : process->last_seen_ns);
    report_html_fact(&table, "Duration", has_span ? text_duration(until_ns - process->started_ns) : "-");
    report_html_fact_bytes(&table, is_running ? "Live" : "Held at its end", process->live_bytes);
    report_html_fact_bytes(&table, "Peak", process->peak_bytes);
    report_html_fact_time(&table, "Time of the peak", process->peak_ns);
    char *refused = text_format("%" PRIu64 ", %s in all", process->refused_count, text_size(process->refused_bytes));
    report_html_fact(&table, process->is_observing ? "Would be refused" : "Refused requests", refused);
    report_html_fact_bytes(&table, "Promised, not resident yet", is_running ? process->promised_bytes : SG_UNKNOWN);
    report_html_fact_bytes(&table, "Unaccounted (CUDA contexts and the like)", process->unaccounted_bytes);
    report_html_fact_bytes(&table, "Inherited by fork", process->inherited_bytes);
    report_html_fact_bytes(&table, "Registered with CUDA (counted elsewhere)", process->registered_bytes);
    report_html_fact_bytes(&table, "Resident of MAP_NORESERVE (in the limit only)", process->sparse_resident_bytes);
    report_html_fact_count(&table, "Frees of blocks not seen allocated", process->unmatched_frees);
    report_html_table_end(&table);
}

/* Prints the variables with which a running process was started. Those of ended processes are not known. */
static void put_variables(struct report_html_table *table, const struct model_process *process)
{
    enum { ENVIRONMENT_CAPACITY = 1 << 18 };
    struct procfs_stat stat;
    if (process->state != SG_STATE_RUNNING || procfs_stat(process->host_pid, &stat) != 0 ||
        stat.start_ticks != process->start_ticks)
        return;
    char *text = tool_allocate(ENVIRONMENT_CAPACITY, 1);
    long length = procfs_read(process->host_pid, "environ", text, ENVIRONMENT_CAPACITY);
    for (const char *entry = text; entry - text < length; entry += strlen(entry) + 1)
        report_html_variable(table, entry);
}

static void put_settings(FILE *stream, const struct model_process *process)
{
    struct report_html_table table;
    char parent[16] = "-";
    const struct sg_machine *seen = &process->machine;
    bool has_looked = seen->time_ns > 0;
    if (process->parent_pid != 0)
        snprintf(parent, sizeof parent, "%" PRIu32, process->parent_pid);
    report_html_table_begin(&table, stream, "Options in force, as the process noted them", NULL, 0);
    report_html_fact(&table, "Job", process->job);
    report_html_fact(&table, "User", host_user_name(process->user));
    report_html_fact(&table, "Container", process->container != NULL ? process->container : "-");
    report_html_fact(&table, "Parent process", parent);
    report_html_fact(&table, "Library", process->library_version);
    report_html_fact(&table, "Guarding", yes_or_no(process->is_guarding));
    report_html_fact(&table, "Mode", process->is_observing ? "observe" : "enforce");
    report_html_fact(&table, "Limit of the job",
                     process->limit_bytes == SG_UNKNOWN ? "none" : text_size(process->limit_bytes));
    report_html_fact_bytes(&table, "Reserve", has_looked ? seen->reserve_bytes : SG_UNKNOWN);
    report_html_fact_bytes(&table, "Floor", has_looked ? seen->floor_bytes : SG_UNKNOWN);
    report_html_fact_bytes(&table, "Smallest cgroup limit", has_looked ? seen->cgroup_limit_bytes : SG_UNKNOWN);
    report_html_fact_bytes(&table, "Usable at its last snapshot", has_looked ? seen->usable_bytes : SG_UNKNOWN);
    report_html_fact(&table, "Unified memory", seen->unified == 1 ? "yes" : seen->unified == 0 ? "no" : "-");
    report_html_fact(&table, "Decides with the others", yes_or_no(process->is_sharing));
    report_html_fact(&table, "Watchdog thread", yes_or_no(process->is_watched));
    put_variables(&table, process);
    report_html_table_end(&table);
}

static void put_domains(FILE *stream, const struct model_process *process)
{
    static const struct report_html_column columns[] = {
        {"Domain", REPORT_HTML_NAME},         {"Live", REPORT_HTML_NUMBERS},      {"Peak", REPORT_HTML_NUMBERS},
        {"Of the peak", REPORT_HTML_NUMBERS}, {"Share of it", REPORT_HTML_WORDS}, {"Allocations", REPORT_HTML_NUMBERS},
        {"Frees", REPORT_HTML_NUMBERS},       {"Refused", REPORT_HTML_NUMBERS},
    };
    struct report_html_table table;
    report_html_table_begin(&table, stream, "Memory by domain", columns, sizeof columns / sizeof columns[0]);
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        const struct model_domain *domain = &process->domain[i];
        double part = process->peak_bytes == 0 ? 0 : (double)domain->at_peak_bytes / (double)process->peak_bytes;
        int percent = (int)((part < 1 ? part : 1) * 100 + 0.5);
        report_html_row(&table, "");
        report_html_cell(&table, model_domain_name[i]);
        report_html_cell_bytes(&table, domain->live_bytes);
        report_html_cell_bytes(&table, domain->peak_bytes);
        report_html_cell_bytes(&table, domain->at_peak_bytes);
        report_html_cell_begin(&table, "class=\"share\"");
        fprintf(stream,
                "<svg class=\"part\" width=\"100\" height=\"9\" aria-hidden=\"true\"><rect width=\"%d\" height=\"9\" "
                "fill=\"#6f93b5\"/></svg>%d %%",
                percent, percent);
        report_html_cell_end(&table);
        report_html_cell_count(&table, domain->allocations);
        report_html_cell_count(&table, domain->frees);
        report_html_cell_count(&table, domain->refused_count);
    }
    report_html_table_end(&table);
}

static void put_sites(FILE *stream, const struct model_process *process)
{
    static const struct report_html_column columns[] = {
        {"Place in the code", REPORT_HTML_NAME}, {"Domain", REPORT_HTML_WORDS},
        {"Live", REPORT_HTML_NUMBERS},           {"Blocks", REPORT_HTML_NUMBERS},
        {"At the peak", REPORT_HTML_NUMBERS},    {"At the last refusal", REPORT_HTML_NUMBERS},
    };
    struct report_html_table table;
    if (process->site_count == 0)
        return;
    report_html_table_begin(&table, stream, "Where large blocks were requested", columns,
                            sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < process->site_count; i++) {
        const struct model_site *site = &process->sites[i];
        char *place =
            site->is_named ? text_format("%s+0x%" PRIx64, site->library, site->offset) : text_format("elsewhere");
        report_html_row(&table, "");
        report_html_cell_begin(&table, "");
        report_html_element(stream, site->is_named ? "code" : "span", "", place);
        report_html_cell_end(&table);
        report_html_cell(&table, site->domain >= 0 ? model_domain_name[site->domain] : "-");
        report_html_cell_bytes(&table, site->live_bytes);
        report_html_cell_count(&table, site->live_count);
        report_html_cell_bytes(&table, site->at_peak_bytes);
        report_html_cell_bytes(&table, process->refusal_count > 0 ? site->at_refusal_bytes : SG_UNKNOWN);
    }
    report_html_table_end(&table);
}

/* ---- what happened to it ----------------------------------------------------------------------------------------- */

static void put_refusal_table(FILE *stream, const struct model_process *process)
{
    static const struct report_html_column columns[] = {
        {"Time", REPORT_HTML_NAME},    {"Call", REPORT_HTML_WORDS},   {"Domain", REPORT_HTML_WORDS},
        {"Size", REPORT_HTML_NUMBERS}, {"Reason", REPORT_HTML_WORDS}, {"Left then", REPORT_HTML_NUMBERS},
    };
    struct report_html_table table;
    const char *words = process->is_observing ? "Requests that would have been refused" : "Refused requests";
    if (process->refusal_count == 0)
        return;
    char *caption =
        process->refused_count > process->refusal_count
            ? text_format("%s: the last %zu of %" PRIu64, words, process->refusal_count, process->refused_count)
            : text_format("%s", words);
    report_html_table_begin(&table, stream, caption, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < process->refusal_count; i++) {
        const struct model_refusal *refusal = &process->refusals[i];
        report_html_row(&table, "");
        report_html_cell_time(&table, refusal->time_ns);
        report_html_cell_begin(&table, "");
        report_html_element(stream, "code", "", refusal->call);
        report_html_cell_end(&table);
        report_html_cell(&table, model_domain_name[refusal->domain]);
        report_html_cell_bytes(&table, refusal->size_bytes);
        report_html_cell(&table, model_reason_name[refusal->reason]);
        report_html_cell_bytes(&table, refusal->usable_bytes);
    }
    report_html_table_end(&table);
}

static void put_phase_table(FILE *stream, const struct model_process *process)
{
    static const struct report_html_column columns[] = {{"Began", REPORT_HTML_NAME},
                                                        {"Phase", REPORT_HTML_WORDS},
                                                        {"Live in the end", REPORT_HTML_NUMBERS},
                                                        {"Peak", REPORT_HTML_NUMBERS}};
    struct report_html_table table;
    if (process->phase_count == 0)
        return;
    report_html_table_begin(&table, stream, "Phases", columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < process->phase_count; i++) {
        const struct model_phase *phase = &process->phases[i];
        report_html_row(&table, "");
        report_html_cell_time(&table, phase->time_ns);
        report_html_cell(&table, phase->name);
        report_html_cell_bytes(&table, phase->live_bytes);
        report_html_cell_bytes(&table, phase->peak_bytes);
    }
    report_html_table_end(&table);
}

static void put_events(FILE *stream, const struct model_process *process)
{
    static const struct report_html_column columns[] = {{"Time", REPORT_HTML_NAME}, {"Event", REPORT_HTML_WORDS}};
    struct report_html_table table;
    if (process->event_count == 0 || process->events == NULL)
        return;
    report_html_table_begin(&table, stream, "Events", columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < process->event_count; i++) {
        report_html_row(&table, &process->events[i] == process->watchdog_event ? "class=\"bad\"" : "");
        report_html_cell_time(&table, process->events[i].time_ns);
        report_html_cell(&table, process->events[i].what);
    }
    report_html_table_end(&table);
}

/* Prints a line that lists the missing tables. */
static void put_absences(FILE *stream, const struct model_process *process)
{
    const struct {
        size_t count;
        const char *words;
    } lists[] = {
        {process->site_count, "call sites of large blocks"},
        {process->refusal_count, "refusals"},
        {process->phase_count, "phases"},
        {process->event_count, "events"},
    };
    const char *separator = "<p class=\"dim\">None on record: ";
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (lists[i].count == 0) {
            fprintf(stream, "%s%s", separator, lists[i].words);
            separator = ", ";
        }
    fputs(separator[0] == ',' ? ".</p>\n" : "", stream);
}

void report_html_process(FILE *stream, const struct report_html_page *page, const struct report_html_entry *entry)
{
    const struct model_process *process = entry->process;
    size_t number = (size_t)(entry - page->entries) + 1;
    fprintf(stream, "<section id=\"process-%zu\">\n<h3>Process %" PRIu32 ": ", number, model_process_number(process));
    report_html_element(stream, "bdi", "", process->command[0] ? process->command : "-");
    fputs("</h3>\n", stream);
    put_notes(stream, process);
    put_drawing(stream, entry, number);
    fputs("<div class=\"pair\">\n", stream);
    put_process_table(stream, process);
    put_settings(stream, process);
    fputs("</div>\n", stream);
    put_domains(stream, process);
    put_sites(stream, process);
    put_refusal_table(stream, process);
    put_phase_table(stream, process);
    put_events(stream, process);
    put_absences(stream, process);
    fputs("</section>\n", stream);
}
