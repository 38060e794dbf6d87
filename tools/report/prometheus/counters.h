/*
 * counters.h - sums of what was refused that never fall, and the labels that name their series.
 */
#ifndef SG_TOOLS_REPORT_PROMETHEUS_COUNTERS_H
#define SG_TOOLS_REPORT_PROMETHEUS_COUNTERS_H

#include <stdio.h>

#include "model/model.h"

/* A job of the whole record, chosen to be shown or not. */
struct prometheus_job {
    char *labels; /* in braces, its key */
    uint64_t refused_count;
    const struct model_job *shown; /* NULL: not to be shown */
    UT_hash_handle hh;
};

/* What was refused, to be sums that never fall. */
struct prometheus_totals {
    struct prometheus_past *past;
    struct prometheus_counted *counted;
    struct prometheus_job *jobs;
    uint64_t refused_count[SG_DOMAIN_COUNT];
    uint64_t refused_bytes;
    size_t running_count;    /* processes */
    struct model_job others; /* sums of the jobs that have no series of their own for they are too many */
    size_t other_count;
};

/* Sums over all that `model` has; `path` is the file written last, NULL: the sums are of the record alone. */
void prometheus_totals_begin(struct prometheus_totals *totals, const struct model *model, const char *path);
/* The comments for the next time. */
void prometheus_totals_put(const struct prometheus_totals *totals, FILE *stream);
void prometheus_totals_end(struct prometheus_totals *totals);

/* A text as a label's value, without the quotes. No two texts have the same, for two series of one name would cost the
 * collector the whole file. The caller frees. */
char *prometheus_label(const char *text);
/* The labels of a job, in braces. The caller frees. */
char *prometheus_job_labels(const struct model_job *job);

#endif
