/*
 * draw.h - drawings over time, for --plot and for the page of --html. Of one process: live bytes by domain at the top,
 * the machine's memory below, a discrete GPU's memory below that, phases and refusals over all. Of a job: its processes
 * as bands. Areas also differ by their hatching and lines by their dashes, so colour is not needed.
 */
#ifndef SG_TOOLS_REPORT_DRAW_DRAW_H
#define SG_TOOLS_REPORT_DRAW_DRAW_H

#include <stdio.h>

#include "model/model.h"
#include "model/timeline_reader.h"

/* A part of the time axis: the time between two parts is left out. */
struct draw_piece {
    int64_t begin_ns, end_ns; /* begin_ns < end_ns */
    double left, right;
};

/* A field of the drawing: times from left to right, bytes from the bottom to the top. */
struct draw_field {
    FILE *stream;
    const char *name; /* prefix of the ids in the drawing */
    double left, right, top, bottom;
    int64_t begin_ns, end_ns;       /* begin_ns < end_ns */
    uint64_t most_bytes;            /* value at the top */
    const struct draw_piece *piece; /* parts of the axis, in order of time; NULL: the axis is not cut */
    size_t piece_count;
};

/* Return the position of a time and of a number of bytes inside the field. A time between two pieces is at the begin of
 * the later one. */
double draw_x(const struct draw_field *field, int64_t time_ns);
double draw_y(const struct draw_field *field, uint64_t bytes);

/* Returns the top of a scale: a little above the highest value, and above 0. */
uint64_t draw_scale_top(uint64_t bytes);

/* Returns a limit (SG_UNKNOWN: none) that the scale should reach, 0 if it should not: one far above the bytes would
 * make them flat. */
uint64_t draw_near_limit(uint64_t limit_bytes, uint64_t most_bytes);

/* Draws the line of a limit between two edges, with its words; of one above the scale the words alone. */
void draw_limit(const struct draw_field *field, double left, double right, uint64_t limit_bytes);

/* Draw the grid and the scale. */
void draw_size_axis(const struct draw_field *field);
void draw_time_axis(const struct draw_field *field, double lowest);

/* Draws strips above the first field that name phases and refusals, and lines through all fields. Returns the height of
 * the strips. */
enum { DRAW_STRIP = 18 };
double draw_strips_height(const struct model_process *process);
void draw_strips(const struct draw_field *field, size_t count, const struct model_process *process);

/* Reads the time line of a process; a message on stderr says why if it cannot be trusted. */
enum model_verdict draw_timeline(struct model_timeline *timeline, const struct model_process *process);

/* Adds the peak as a sample, and as the last sample the live bytes now or when the process was last seen. */
void draw_add_known(struct model_timeline *timeline, const struct model_process *process);

/* ---- figures over time, as lines of steps ---- */

enum draw_figure { DRAW_USABLE, DRAW_RESERVE, DRAW_FLOOR, DRAW_DEVICE, DRAW_FIGURES };

struct draw_point {
    double x, end_x; /* the figures hold from here to there; where the next point begins later, the axis is cut */
    bool is_recorded;
    uint64_t figure[DRAW_FIGURES]; /* SG_UNKNOWN: a gap in the line */
};

struct draw_points {
    struct draw_point *at;
    size_t count;
};

void draw_steps(const struct draw_field *field, const struct draw_points *points, enum draw_figure figure,
                const char *attributes);
/* Returns the most, 0 if nothing is known; the last that is known, else SG_UNKNOWN. */
uint64_t draw_highest(const struct draw_points *points, enum draw_figure figure);
uint64_t draw_last(const struct draw_points *points, enum draw_figure figure);

/* Draws the machine's memory below `top`, its legend first. Returns the field, which is `height` high. */
struct draw_field draw_machine(const struct draw_field *above, double top, double height,
                               const struct draw_points *points);

/* ---- legends ---- */

enum { DRAW_LINE = 16 }; /* the height of a line of text */

/* A row of items that continues on the next line where there is no space. */
struct draw_legend {
    const struct draw_field *field;
    double x, y;
};

struct draw_legend draw_legend_begin(const struct draw_field *field, double y, const char *title);
/* Prints the words, and leaves a space of 22 pixels before them, whose left edge it returns. */
double draw_legend_item(struct draw_legend *legend, const char *words);
void draw_legend_area(struct draw_legend *legend, const char *fill, const char *attributes, const char *words);
/* Draws a line, its words and a size, which is left out if it is SG_UNKNOWN. */
void draw_legend_line(struct draw_legend *legend, const char *attributes, const char *words, uint64_t bytes);

/* ---- the sheet: a file, or a part of a page ---- */

struct draw_sheet {
    const char *name;
    FILE *body;
    char *text;
    size_t length;
};

/* Begins a drawing: a file if `name` is NULL, else a part of a page in which the name is unique. Returns its field,
 * whose upper and lower edge, scale and times are still to be set. */
struct draw_field draw_sheet_begin(struct draw_sheet *sheet, const char *name);
/* Prints the drawing, with a title and a description for those who do not see it. */
void draw_sheet_end(struct draw_sheet *sheet, FILE *stream, double height, const char *title, const char *description);
/* Prints the definition of a fill. */
void draw_pattern(FILE *stream, const char *name, const char *id, const char *ground, const char *lines,
                  const char *colour);

/* ---- a job, as bands upon each other: a process each, and all small ones together ----
 *
 * All times are of CLOCK_REALTIME, so the records of several boots fit one axis. The axis consists of spans: the times
 * between them, in which no process of the job lived, are left out.
 *
 * In a column a process is absent (it had not begun, or had ended), recorded, or not recorded: it lived, and there is
 * no sample. A span without samples is drawn at the height of the last known figure, never zero; before the first
 * sample the height rises evenly to that sample. */

enum { BANDS_NAMED = 8, BANDS_MAX = BANDS_NAMED + 2, BANDS_SPANS_MAX = 6, BANDS_COLUMNS_MAX = 416 };

enum bands_record { BANDS_ABSENT, BANDS_NOT_RECORDED, BANDS_RECORDED };

struct bands_cell {
    uint64_t bytes; /* the most within the column */
    enum bands_record record;
};

/* A process, or several small ones. */
struct bands_band {
    const struct model_process *process; /* of several, the one with the highest peak */
    size_t process_count;
    bool has_timeline; /* without time lines, peaks are shown as long as the processes lived */
    int64_t begin_ns, end_ns;
    struct bands_cell cell[BANDS_COLUMNS_MAX];
};

struct bands_column {
    int64_t begin_ns, end_ns;
    uint64_t live_bytes; /* sum of the bands */
    bool is_recorded;    /* at least one process has a sample here */
    /* The machine, when the least was usable; SG_UNKNOWN without a sample. */
    uint64_t usable_bytes, reserve_bytes, floor_bytes;
};

struct bands_span {
    int64_t begin_ns, end_ns; /* begin_ns < end_ns */
    size_t first, count;      /* its columns */
};

struct bands {
    const struct model_job *job;
    struct bands_span span[BANDS_SPANS_MAX];
    size_t span_count;
    size_t earlier_spans; /* number of spans before the first one, which are left out */
    struct bands_column column[BANDS_COLUMNS_MAX];
    size_t column_count;
    struct bands_band band[BANDS_MAX]; /* the largest first; then the others, then those without a time line */
    size_t band_count;
    size_t timeline_count;
};

/* Reads the time lines of a job from a time on (0: all) into `columns` columns, at least 24. NULL if no process has a
 * time line that can be trusted. Unless `has_complained` is NULL, a message on stderr says if one cannot be, and
 * *has_complained is set. */
struct bands *draw_bands_read(const struct model_job *job, int64_t since_ns, size_t columns, bool *has_complained);

/* Returns what the drawing shows in a sentence. */
char *draw_bands_describe(const struct bands *bands);

/* Returns the left edge of a column, counted from the first one of its span; of span->count, the right edge of the
 * span. The pieces of the field are the spans. */
double draw_bands_x(const struct draw_field *field, const struct bands *bands, size_t span, size_t column);

/* Returns the number of columns from `first` on that show the band alike, up to the end of the span. */
size_t draw_bands_alike(const struct bands_band *band, const struct bands_span *span, size_t first);

/* Prints the definitions of the fills. */
void draw_bands_patterns(FILE *stream, const char *name, const struct bands *bands);

/* Prints the fill of a band, or of what is not recorded, as an attribute. */
void draw_bands_fill(FILE *stream, const char *name, const struct bands *bands, size_t band, enum bands_record record);

/* Prints a row for each band: its name, its life and phases, and marks for its refusals. Returns the bottom. */
double draw_bands_lanes(const struct draw_field *field, const struct bands *bands, double top);

/* ---- the drawings ---- */

/* Print the drawing of a job, or of a process. */
void draw_job(FILE *stream, const struct bands *bands, const char *name);
void draw_process(FILE *stream, const struct model_process *process, const struct model_timeline *timeline,
                  const char *name);

/* Returns whether a name may be drawn to: "FILE.svg", "-" for stdout, or an existing file that is not regular, such as
 * /dev/stdout. */
bool draw_may_write(const char *path);

/* Draws the job that the scope names, or the process of the model with the highest peak among those with a time line.
 * Returns the tool's exit status; messages go to stderr. */
int draw_file(const struct model *model, const struct model_scope *scope, const char *path);

#endif
