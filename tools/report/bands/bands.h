/*
 * bands.h - what the processes of one job held over time: a band for each of the largest processes, cut into columns.
 *
 * All times are of CLOCK_REALTIME, so the records of several boots fit one axis. The axis consists of spans: the times
 * between them, in which no process of the job lived, are left out.
 *
 * In a column a process is absent (it had not begun, or had ended), recorded, or not recorded: it lived, and there is no
 * sample. A span without samples is drawn at the height of the last known figure, never zero; before the first sample the height
 * rises evenly to that sample.
 */
#ifndef SG_TOOLS_REPORT_BANDS_BANDS_H
#define SG_TOOLS_REPORT_BANDS_BANDS_H

#include <stdio.h>

#include "model/model.h"
#include "report/plot/plot.h"

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

/* Reads the time lines of a job from a time on (0: all) into `columns` columns, at least 24. NULL if no process has a time
 * line that can be trusted. Unless `has_complained` is NULL, a message on stderr says if one cannot be, and
 * *has_complained is set. */
struct bands *bands_read(const struct model_job *job, int64_t since_ns, size_t columns, bool *has_complained);

/* Prints the drawing, `width` pixels wide: a file if `name` is NULL, else a part of a page in which the name is unique. */
enum { BANDS_WIDTH = 960, BANDS_NARROW = 360 };
void bands_draw(FILE *stream, const struct bands *bands, int width, const char *name);

/* Returns what the drawing shows in a sentence. */
char *bands_describe(const struct bands *bands);

/* ---- for the files of the drawing -------------------------------------------------------------------------------- */

/* Returns the left edge of a column, counted from the first one of its span; of span->count, the right edge of the
 * span. The pieces of the field are the spans. */
double bands_x(const struct plot_field *field, const struct bands *bands, size_t span, size_t column);

/* Returns the number of columns from `first` on that show the band alike, up to the end of the span. */
size_t bands_alike(const struct bands_band *band, const struct bands_span *span, size_t first);

/* Prints the definitions of the fills. */
void bands_put_patterns(FILE *stream, const char *name, const struct bands *bands);

/* Prints the fill of a band, or of what is not recorded, as an attribute. */
void bands_fill(FILE *stream, const char *name, const struct bands *bands, size_t band, enum bands_record record);

/* Prints a row for each band: its name, its life and phases, and marks for its refusals. Returns the bottom. */
double bands_lanes(const struct plot_field *field, const struct bands *bands, double top);

#endif
