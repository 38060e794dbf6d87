/*
 * prometheus.h - a model as metrics in Prometheus' text format 0.0.4, for node_exporter's textfile collector.
 *
 * What was refused to a process goes from the record with the process, but a counter must not fall: Prometheus takes
 * that for a new start and counts all of it again. So the file that is to be replaced is read first, and what it says
 * of each counter grows by what has been refused since. It remembers in comments what it has counted of which process.
 */
#ifndef SG_TOOLS_REPORT_PROMETHEUS_PROMETHEUS_H
#define SG_TOOLS_REPORT_PROMETHEUS_PROMETHEUS_H

#include <stdio.h>

#include "model/model.h"

/* Puts a whole record (is_all) and narrows it to `scope`, which bounds the series of jobs and processes only: without a
 * filter to jobs that run, or ran in the last five minutes, and of those to the largest. */
void report_render_prometheus(struct model *model, const struct model_scope *scope, const char *path, FILE *stream);

#endif
