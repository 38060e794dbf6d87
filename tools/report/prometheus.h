/*
 * prometheus.h - a model as metrics in Prometheus' text format 0.0.4, for node_exporter's textfile collector.
 *
 * What was refused to a process goes from the record with the process, but a counter must not fall: Prometheus takes
 * that for a new start and counts all of it again. So the file that is to be replaced is read first, and what it says of
 * each counter grows by what has been refused since. It remembers in comments what it has counted of which process.
 */
#ifndef SG_TOOLS_REPORT_PROMETHEUS_H
#define SG_TOOLS_REPORT_PROMETHEUS_H

#include <stdio.h>

#include "model/model.h"

/* A job of the whole record, chosen to be shown or not. */
struct prometheus_job {
    char *labels; /* in braces, its key */
    uint64_t refused_count;
    const struct report_job *shown; /* NULL: not to be shown */
    UT_hash_handle hh;
};

/* What was refused, to be sums that never fall. */
struct prometheus_totals {
    struct prometheus_past *past;
    struct prometheus_counted *counted;
    struct prometheus_job *jobs;
    uint64_t refused_count[SG_DOMAIN_COUNT];
    uint64_t refused_bytes;
    size_t running_count;     /* processes */
    struct report_job others; /* sums of the jobs that have no series of their own for they are too many */
    size_t other_count;
};

/* Sums over all that `report` has; `path` is the file written last, NULL: the sums are of the record alone. */
void prometheus_totals_begin(struct prometheus_totals *totals, const struct report *report, const char *path);
/* The comments for the next time. */
void prometheus_totals_put(const struct prometheus_totals *totals, FILE *stream);
void prometheus_totals_end(struct prometheus_totals *totals);

/* A text as a label's value, without the quotes. No two texts have the same, for two series of one name would cost the
 * collector the whole file. The caller frees. */
char *prometheus_label(const char *text);
/* The labels of a job, in braces. The caller frees. */
char *prometheus_job_labels(const struct report_job *job);

/* Puts a whole record (is_all) and narrows it to `scope`, which bounds the series of jobs and processes only: without a
 * filter to jobs that run, or ran in the last five minutes, and of those to the largest. */
void report_render_prometheus(struct report *report, const struct report_scope *scope, const char *path, FILE *stream);

#endif
