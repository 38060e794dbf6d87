/*
 * report.h - prints a model as text for people, or as JSON or CSV for programs. Renderers compute no figure that
 * another form needs too; such figures belong to the model.
 */
#ifndef SG_TOOLS_REPORT_REPORT_H
#define SG_TOOLS_REPORT_REPORT_H

#include <stdio.h>

#include "common/style.h"
#include "model/model.h"

/* Exit codes of sparkguard-report, part of the interface. */
enum { REPORT_SHOWN = 0, REPORT_NO_MATCH = 1, REPORT_USAGE = 2, REPORT_UNTRUSTED = 3 };

/* Prints the overview: machine, jobs with their processes, unguarded processes. If a PID was requested, prints its
 * processes in depth. */
void report_render_text(const struct model *model, const struct model_scope *scope, const struct style *style);
void report_render_process(const struct model_job *job, const struct model_process *process, const struct style *style);
void report_render_machine(const struct model *model, const struct style *style);
/* Prints a blank line and a table of unguarded processes, or nothing. */
void report_render_unguarded(const struct model *model, const struct style *style);
void report_render_json(const struct model *model, FILE *stream);
void report_render_csv(const struct model *model, FILE *stream);
/* Prints a whole record (is_all) in Prometheus' text format 0.0.4, for node_exporter's textfile collector. `scope`
 * selects the series of jobs and processes only; without a filter, the largest jobs that run or ran in the last five
 * minutes. The model keeps these jobs alone. */
void report_render_prometheus(struct model *model, const struct model_scope *scope, FILE *stream);

enum style_colour report_state_colour(enum sg_state state);

#endif
