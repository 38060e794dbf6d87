/*
 * render.h - a model as text for people, or as JSON or CSV for programs. Renderers compute nothing that a reader could want from
 * the other form as well: that belongs to the model.
 */
#ifndef SG_TOOLS_REPORT_RENDER_H
#define SG_TOOLS_REPORT_RENDER_H

#include <stdio.h>

#include "common/style.h"
#include "model/model.h"

/* The overview: machine, jobs with their processes, unguarded processes; or, if a pid was asked for, the processes in
 * depth. */
void report_render_text(const struct report *report, const struct report_scope *scope,
                        const struct report_style *style);
void report_render_process(const struct report_job *job, const struct report_process *process,
                           const struct report_style *style);
void report_render_machine(const struct report *report, const struct report_style *style);
/* A blank line and a table, or nothing. */
void report_render_unguarded(const struct report *report, const struct report_style *style);
void report_render_json(const struct report *report, FILE *stream);
void report_render_csv(const struct report *report, FILE *stream);

enum report_colour report_state_colour(enum sg_state state);

#endif
