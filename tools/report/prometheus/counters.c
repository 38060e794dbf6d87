/*
 * counters.c - keeps counters that never fall, although records of ended processes are removed after a while. The
 * output file has these comments:
 *
 *   # counted HEAP MAPPED PINNED MANAGED DEVICE BYTES RUNS FILE    refusals counted so far for the process of that
 *                                                                segment, and for how many runs it had no record
 *   # kept SERIES NUMBER                                           a job's counter that is not shown at present
 *
 * A segment that cannot be read in one run is not counted again in a later one. The counters of a job without any
 * record, and those that a damaged file lacks, start anew.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "report/atomic_file.h"
#include "report/prometheus/counters.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

#define COUNTED "# counted "
#define KEPT "# kept "

/* Counters are doubles in Prometheus; beyond this they stop growing. */
#define MOST (UINT64_C(1) << 53)

enum { BYTES = SG_DOMAIN_COUNT, COUNTS };

/* Segments without a record are remembered for this many runs: an hour at one run per 15 s. */
enum { ABSENT_RUNS_MAX = 240 };

/* A series of the last file. */
struct prometheus_past {
    char *series;
    uint64_t value;
    UT_hash_handle hh;
};

/* Refusals of one process: when the last file was written, and now. */
struct prometheus_counted {
    char *segment; /* escaped as a label */
    uint64_t before[COUNTS];
    uint64_t now[COUNTS];
    uint64_t absent_runs;
    UT_hash_handle hh;
};

char *prometheus_label(const char *text)
{
    size_t left = strlen(text);
    char *label = tool_allocate(left * strlen("\\\\x5c") + 1, 1), *out = label;
    while (left > 0) {
        uint32_t code;
        size_t length = text_utf8_next(text, left, &code);
        if (code == TEXT_NO_CODE || text_is_control(code) || code == '\\')
            for (size_t i = 0; i < length; i++)
                out += sprintf(out, "\\\\x%02x", (unsigned char)text[i]);
        else if (code == '"')
            out = stpcpy(out, "\\\"");
        else
            out = mempcpy(out, text, length);
        text += length;
        left -= length;
    }
    *out = '\0';
    return label;
}

char *prometheus_job_labels(const struct model_job *job)
{
    char *name = prometheus_label(job->name), *directory = prometheus_label(job->directory);
    char *user = model_job_user(job), *user_label = user != NULL ? prometheus_label(user) : NULL;
    return text_format("{sparkguard_job=\"%s\",directory=\"%s\"%s%s%s}", name, directory,
                       user != NULL ? ",user=\"" : "", user != NULL ? user_label : "", user != NULL ? "\"" : "");
}

static struct prometheus_counted *find_counted(struct prometheus_totals *totals, const char *segment)
{
    struct prometheus_counted *counted;
    HASH_FIND_STR(totals->counted, segment, counted);
    if (counted == NULL) {
        counted = tool_allocate(1, sizeof *counted);
        counted->segment = text_copy(segment, strlen(segment));
        HASH_ADD_KEYPTR(hh, totals->counted, counted->segment, strlen(counted->segment), counted);
    }
    return counted;
}

static void read_counted(struct prometheus_totals *totals, char *line)
{
    uint64_t counts[COUNTS + 1];
    for (int i = 0; i < COUNTS + 1; i++) {
        char *end;
        counts[i] = bytes_min(strtoull(line, &end, 10), MOST);
        if (end == line || *end != ' ')
            return;
        line = end + 1;
    }
    struct prometheus_counted *counted = find_counted(totals, line);
    memcpy(counted->before, counts, sizeof counted->before);
    memcpy(counted->now, counts, sizeof counted->now);
    counted->absent_runs = counts[COUNTS] + 1;
}

static void read_series(struct prometheus_totals *totals, char *line)
{
    struct prometheus_past *past;
    char *blank = strrchr(line, ' '), *end;
    if (blank == NULL)
        return;
    *blank = '\0';
    uint64_t value = bytes_min(strtoull(blank + 1, &end, 10), MOST);
    HASH_FIND_STR(totals->past, line, past);
    if (past != NULL || end == blank + 1 || *end != '\0')
        return;
    past = tool_allocate(1, sizeof *past);
    past->series = text_copy(line, strlen(line));
    past->value = value;
    HASH_ADD_KEYPTR(hh, totals->past, past->series, strlen(past->series), past);
}

static void read_past(struct prometheus_totals *totals, const char *path)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    int fd =
        report_output_is_in_place(path) ? -1 : open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC); /* no terminal, no link */
    FILE *stream = fd >= 0 ? fdopen(fd, "r") : NULL;
    while (stream != NULL && (length = getline(&line, &capacity, stream)) > 0) {
        if (line[length - 1] == '\n')
            line[length - 1] = '\0';
        if (strncmp(line, COUNTED, strlen(COUNTED)) == 0)
            read_counted(totals, line + strlen(COUNTED));
        else if (strncmp(line, KEPT, strlen(KEPT)) == 0)
            read_series(totals, line + strlen(KEPT));
        else if (strncmp(line, "sparkguard_", strlen("sparkguard_")) == 0 && strstr(line, "_total") != NULL)
            read_series(totals, line);
    }
    free(line);
    if (stream != NULL)
        fclose(stream);
}

/* Returns a counter: the value of the last file plus the growth since; if the file had none, all that is on record. */
static uint64_t grown(const struct prometheus_totals *totals, const char *series, uint64_t all, uint64_t since)
{
    struct prometheus_past *past;
    HASH_FIND_STR(totals->past, series, past);
    return bytes_min(past != NULL ? bytes_add(past->value, since) : all, MOST);
}

/* Counts a process. Its copy in the history may be some seconds older, so its counters never go down. */
static void count_process(struct prometheus_totals *totals, const struct model_job *job,
                          const struct model_process *process, uint64_t all[COUNTS], uint64_t since[COUNTS])
{
    char *path = text_format("%s%s", job->directory, strrchr(process->segment_path, '/'));
    char *segment = prometheus_label(path);
    struct prometheus_counted *counted = find_counted(totals, segment);
    counted->absent_runs = 0;
    for (int i = 0; i < COUNTS; i++) {
        uint64_t now = i == BYTES ? process->refused_bytes : process->domain[i].refused_count;
        counted->now[i] = bytes_max(bytes_min(now, MOST), counted->before[i]);
        all[i] = bytes_add(all[i], counted->now[i]);
        since[i] = bytes_add(since[i], counted->now[i] - counted->before[i]);
    }
}

static uint64_t sum(const uint64_t counts[COUNTS])
{
    uint64_t count = 0;
    for (int i = 0; i < SG_DOMAIN_COUNT; i++)
        count = bytes_add(count, counts[i]);
    return count;
}

static void add_job(struct prometheus_totals *totals, char *labels, uint64_t all, uint64_t since)
{
    struct prometheus_job *job = tool_allocate(1, sizeof *job);
    char *series = text_format("sparkguard_job_refusals_total%s", labels);
    job->labels = labels;
    job->refused_count = grown(totals, series, all, since);
    HASH_ADD_KEYPTR(hh, totals->jobs, job->labels, strlen(job->labels), job);
}

void prometheus_totals_begin(struct prometheus_totals *totals, const struct model *model, const char *path)
{
    uint64_t all[COUNTS] = {0}, since[COUNTS] = {0};
    const struct model_job *job;
    const struct model_process *process;
    *totals = (struct prometheus_totals){0};
    if (path != NULL)
        read_past(totals, path);
    DL_FOREACH (model->jobs, job) {
        uint64_t job_all[COUNTS] = {0}, job_since[COUNTS] = {0};
        DL_FOREACH (job->processes, process)
            count_process(totals, job, process, job_all, job_since);
        add_job(totals, prometheus_job_labels(job), sum(job_all), sum(job_since));
        totals->running_count += job->running_count;
        for (int i = 0; i < COUNTS; i++) {
            all[i] = bytes_add(all[i], job_all[i]);
            since[i] = bytes_add(since[i], job_since[i]);
        }
    }
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        char *series = text_format("sparkguard_refusals_total{domain=\"%s\"}", model_domain_name[i]);
        totals->refused_count[i] = grown(totals, series, all[i], since[i]);
    }
    totals->refused_bytes = grown(totals, "sparkguard_refused_bytes_total", all[BYTES], since[BYTES]);
}

void prometheus_totals_put(const struct prometheus_totals *totals, FILE *stream)
{
    const struct prometheus_counted *counted;
    const struct prometheus_job *job;
    for (job = totals->jobs; job != NULL; job = job->hh.next)
        if (job->shown == NULL && job->refused_count > 0)
            fprintf(stream, KEPT "sparkguard_job_refusals_total%s %" PRIu64 "\n", job->labels, job->refused_count);
    for (counted = totals->counted; counted != NULL; counted = counted->hh.next) {
        if (counted->absent_runs > ABSENT_RUNS_MAX || sum(counted->now) == 0)
            continue;
        fputs(COUNTED, stream);
        for (int i = 0; i < COUNTS; i++)
            fprintf(stream, "%" PRIu64 " ", counted->now[i]);
        fprintf(stream, "%" PRIu64 " %s\n", counted->absent_runs, counted->segment);
    }
}

void prometheus_totals_end(struct prometheus_totals *totals)
{
    HASH_CLEAR(hh, totals->past);
    HASH_CLEAR(hh, totals->counted);
    HASH_CLEAR(hh, totals->jobs);
}
