/*
 * plot.h - the time line of one process as a drawing: live bytes by domain above, the machine's memory below, a
 * discrete GPU's own below that, phases and refusals over all. Read without colour: areas differ by their hatching,
 * lines by their dashes.
 */
#ifndef SG_TOOLS_REPORT_PLOT_PLOT_H
#define SG_TOOLS_REPORT_PLOT_PLOT_H

#include <stdio.h>

#include "model/model.h"
#include "model/timeline_reader.h"

/* Live bytes above, the machine's memory below, and where devices have their own, that. */
enum { PLOT_FIELDS = 3 };

/* A field of the drawing: times from left to right, bytes from the bottom to the top. */
struct plot_field {
    FILE *stream;
    const char *name; /* before the names of what the drawing refers to */
    double left, right, top, bottom;
    int64_t begin_ns, end_ns; /* the first is before the second */
    uint64_t most_bytes;      /* at the top */
};

/* Where a time and a number of bytes are, inside the field. */
double plot_x(const struct plot_field *field, int64_t time_ns);
double plot_y(const struct plot_field *field, uint64_t bytes);

/* Grid and scale. */
void plot_size_axis(const struct plot_field *field);
void plot_time_axis(const struct plot_field *field, double lowest);

/* Strips above the first of some fields that name phases and refusals, with lines down through all; how high they are
 * together. */
enum { PLOT_STRIP = 18 };
double plot_strips_height(const struct model_process *process);
void plot_strips(const struct plot_field *field, size_t count, const struct model_process *process);

/* Reads the time line of a process, and says on stderr why it cannot be trusted. */
enum model_verdict plot_timeline(struct model_timeline *timeline, const struct model_process *process);

/* Adds the peak as a sample, and as the last one what is live in the end: now, or when the process was seen last. */
void plot_add_known(struct model_timeline *timeline, const struct model_process *process);

/* The whole drawing: a file of its own, or where `name` is not NULL a part of a page in which no other drawing has that
 * name. */
void report_plot(FILE *stream, const struct model_process *process, const struct model_timeline *timeline,
                 const char *name);

/* Whether a name may be drawn to: "FILE.svg", "-" for stdout, or something there that is no regular file, as
 * /dev/stdout. */
bool report_plot_may_write(const char *path);

/* Draws what `model` shows into a file: of its processes that have a time line the one whose peak was highest. Exit
 * status of the tool; talks on stderr. */
int report_plot_file(const struct model *model, const struct model_scope *scope, const char *path);

#endif
