/*
 * plot.h - draws the time line of one process: live bytes by domain at the top, the machine's memory below, a discrete
 * GPU's memory below that, phases and refusals over all. Areas also differ by their hatching and lines by their dashes,
 * so colour is not needed.
 */
#ifndef SG_TOOLS_REPORT_PLOT_PLOT_H
#define SG_TOOLS_REPORT_PLOT_PLOT_H

#include <stdio.h>

#include "model/model.h"
#include "model/timeline_reader.h"

/* Live bytes, the machine's memory, and device memory if devices have their own. */
enum { PLOT_FIELDS = 3 };

/* A part of the time axis: the time between two parts is left out. */
struct plot_piece {
    int64_t begin_ns, end_ns; /* begin_ns < end_ns */
    double left, right;
};

/* A field of the drawing: times from left to right, bytes from the bottom to the top. */
struct plot_field {
    FILE *stream;
    const char *name; /* prefix of the ids in the drawing */
    double left, right, top, bottom;
    int64_t begin_ns, end_ns;       /* begin_ns < end_ns */
    uint64_t most_bytes;            /* value at the top */
    const struct plot_piece *piece; /* parts of the axis, in order of time; NULL: the axis is not cut */
    size_t piece_count;
};

/* Return the position of a time and of a number of bytes inside the field. A time between two pieces is at the begin of
 * the later one. */
double plot_x(const struct plot_field *field, int64_t time_ns);
double plot_y(const struct plot_field *field, uint64_t bytes);

/* Returns the top of a scale: a little above the highest value, and above 0. */
uint64_t plot_scale_top(uint64_t bytes);

/* Draw the grid and the scale. */
void plot_size_axis(const struct plot_field *field);
void plot_time_axis(const struct plot_field *field, double lowest);

/* Draws strips above the first field that name phases and refusals, and lines through all fields. Returns the height of
 * the strips. */
enum { PLOT_STRIP = 18 };
double plot_strips_height(const struct model_process *process);
void plot_strips(const struct plot_field *field, size_t count, const struct model_process *process);

/* Reads the time line of a process; a message on stderr says why if it cannot be trusted. */
enum model_verdict plot_timeline(struct model_timeline *timeline, const struct model_process *process);

/* Adds the peak as a sample, and as the last sample the live bytes now or when the process was last seen. */
void plot_add_known(struct model_timeline *timeline, const struct model_process *process);

/* Prints the whole drawing: a file if `name` is NULL, else a part of a page in which the name is unique. */
void report_plot(FILE *stream, const struct model_process *process, const struct model_timeline *timeline,
                 const char *name);

/* Returns whether a name may be drawn to: "FILE.svg", "-" for stdout, or an existing file that is not regular, such as
 * /dev/stdout. */
bool report_plot_may_write(const char *path);

/* Draws the job that the scope names, or the process of the model with the highest peak among those with a time line.
 * Returns the tool's exit status; messages go to stderr. */
int report_plot_file(const struct model *model, const struct model_scope *scope, const char *path);

#endif
