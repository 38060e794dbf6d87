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

enum { SPARK_CAPACITY = 320 };

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

/* Returns the most within each of `cells` times of equal length that end now; SG_UNKNOWN where there is no figure. The
 * length is the shortest round one for which all figures have space. The caller frees. */
uint64_t *spark_values(const struct spark *spark, int64_t now_ns, size_t cells);

/* Returns `rows` lines of a chart, the highest first, joined by newlines; with one row it is a line for a table. The
 * full height is `most_bytes`, or the highest figure if that is 0. Blank: no figure. The caller frees. */
char *spark_text(const struct spark *spark, int64_t now_ns, size_t cells, size_t rows, uint64_t most_bytes,
                 bool is_utf8);

/* Returns the time that `cells` cells cover, in nanoseconds. */
int64_t spark_covers(const struct spark *spark, int64_t now_ns, size_t cells);

#endif
