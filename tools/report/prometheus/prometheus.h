/*
 * prometheus.h - prints a model as metrics in Prometheus' text format 0.0.4, for node_exporter's textfile collector.
 *
 * Refusals of a process disappear with its record, but a counter must not fall: Prometheus would take that for a
 * restart and count everything again. So the file that will be replaced is read first, and each counter continues from
 * its value there. Comments in the file list the processes that were counted.
 */
#ifndef SG_TOOLS_REPORT_PROMETHEUS_PROMETHEUS_H
#define SG_TOOLS_REPORT_PROMETHEUS_PROMETHEUS_H

#include <stdio.h>

#include "model/model.h"

/* Prints a whole record (is_all). `scope` selects the series of jobs and processes only; without a filter, the largest
 * jobs that run or ran in the last five minutes. */
void report_render_prometheus(struct model *model, const struct model_scope *scope, const char *path, FILE *stream);

#endif
