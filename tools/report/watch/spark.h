/*
 * spark.h - keeps what a job held over the last minutes, and draws it as a line of blocks. Pure functions: they use no
 * clock and only the caller's memory. Any thread may call them.
 */
#ifndef SG_TOOLS_REPORT_WATCH_SPARK_H
#define SG_TOOLS_REPORT_WATCH_SPARK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPARK_WINDOW_NS INT64_C(300000000000) /* five minutes */
#define SPARK_SPACING_NS INT64_C(1000000000)  /* figures closer together become one, the larger */

enum { SPARK_CAPACITY = 320, SPARK_LEVELS = 8 };

/* Figures with their times, oldest first. All zero: none. */
struct spark {
    struct {
        int64_t time_ns;
        uint64_t bytes;
    } point[SPARK_CAPACITY];
    size_t count;
    int64_t spacing_ns; /* usual distance of figures; a figure holds for three times as long */
};

/* Adds a figure with a later time than the last one. */
void spark_add(struct spark *spark, int64_t time_ns, uint64_t bytes);

/* Times of equal length that end now. They begin at round times, so that a figure stays in its cell while the line
 * moves. */
struct spark_axis {
    int64_t now_ns, step_ns;
    size_t cells;
};

/* Returns the axis with the shortest round length for which all figures have space. */
struct spark_axis spark_axis_of(const struct spark *spark, int64_t now_ns, size_t cells);

/* Returns the cell of a time; negative, or beyond the last cell, if the axis does not have it. */
int64_t spark_cell(const struct spark_axis *axis, int64_t time_ns);

/* Returns the most within each cell; SG_UNKNOWN where there is no figure. */
uint64_t *spark_values(const struct spark *spark, const struct spark_axis *axis);

/* Returns the block of `height` eighths of a row: blank for 0, full for 8 and more. */
const char *spark_glyph(size_t height, bool is_utf8);

/* Returns a line of `cells` blocks. The full height is the highest figure. Blank: no figure. */
char *spark_text(const struct spark *spark, int64_t now_ns, size_t cells, bool is_utf8);

#endif
