/*
 * counters.h - sums of refusals that never fall, and the labels of their series.
 */
#ifndef SG_TOOLS_REPORT_PROMETHEUS_COUNTERS_H
#define SG_TOOLS_REPORT_PROMETHEUS_COUNTERS_H

#include <stdio.h>

#include "model/model.h"

/* A job of the whole record, whether shown or not. */
struct prometheus_job {
    char *labels; /* in braces; the hash key */
    uint64_t refused_count;
    const struct model_job *shown; /* NULL: not to be shown */
    UT_hash_handle hh;
};

/* Sums of refusals that never fall. */
struct prometheus_totals {
    struct prometheus_past *past;
    struct prometheus_counted *counted;
    struct prometheus_job *jobs;
    uint64_t refused_count[SG_DOMAIN_COUNT];
    uint64_t refused_bytes;
    size_t running_count;    /* processes */
    struct model_job others; /* sums of the jobs without their own series */
    size_t other_count;
};

/* Sums up the whole model. `path` is the last file; NULL: the sums include records only. */
void prometheus_totals_begin(struct prometheus_totals *totals, const struct model *model, const char *path);
/* Prints the comments for the next run. */
void prometheus_totals_put(const struct prometheus_totals *totals, FILE *stream);
void prometheus_totals_end(struct prometheus_totals *totals);

/* Returns a text as a label's value, without the quotes. Different texts give different values, because the collector
 * rejects a file with two equal series. */
char *prometheus_label(const char *text);
/* Returns the labels of a job, in braces. */
char *prometheus_job_labels(const struct model_job *job);

#endif
