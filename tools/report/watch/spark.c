/*
 * spark.c - see spark.h.
 */
#define _GNU_SOURCE
#include "report/watch/spark.h"

#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/tool.h"
#include "sparkguard_abi.h"

enum { LEVELS = 8, GLYPH_BYTES = 3 };

void spark_add(struct spark *spark, int64_t time_ns, uint64_t bytes)
{
    size_t last = spark->count - 1;
    if (spark->count > 0 && time_ns - spark->point[last].time_ns < SPARK_SPACING_NS) {
        spark->point[last].bytes = bytes_max(spark->point[last].bytes, bytes);
        return;
    }
    size_t old = 0;
    while (old < spark->count &&
           (time_ns - spark->point[old].time_ns > SPARK_WINDOW_NS || spark->count - old == SPARK_CAPACITY))
        old++;
    memmove(spark->point, spark->point + old, (spark->count - old) * sizeof spark->point[0]);
    spark->count -= old;
    spark->point[spark->count].time_ns = time_ns;
    spark->point[spark->count++].bytes = bytes;
}

/* Returns the length of a cell. */
static int64_t step_of(const struct spark *spark, int64_t now_ns, size_t cells)
{
    static const int64_t round_seconds[] = {1, 2, 5, 10, 15, 30, 60, 120, 300};
    int64_t age_ns = spark->count > 0 ? now_ns - spark->point[0].time_ns : 0;
    size_t i = 0;
    while (i + 1 < sizeof round_seconds / sizeof round_seconds[0] &&
           (age_ns > round_seconds[i] * SPARK_SPACING_NS * (int64_t)cells ||
            round_seconds[i] * SPARK_SPACING_NS < spark->spacing_ns))
        i++;
    return round_seconds[i] * SPARK_SPACING_NS;
}

int64_t spark_covers(const struct spark *spark, int64_t now_ns, size_t cells)
{
    return cells == 0 ? 0 : step_of(spark, now_ns, cells) * (int64_t)cells;
}

/* Returns the end of the time for which a figure holds: until the next one, but not for long. */
static int64_t holds_until(const struct spark *spark, size_t i, int64_t now_ns)
{
    int64_t next_ns = i + 1 < spark->count ? spark->point[i + 1].time_ns : now_ns;
    int64_t spacing_ns = spark->spacing_ns > SPARK_SPACING_NS ? spark->spacing_ns : SPARK_SPACING_NS;
    bool is_near = next_ns - spark->point[i].time_ns <= 3 * spacing_ns;
    return is_near ? next_ns : spark->point[i].time_ns;
}

/* Cells begin at round times, so that a figure stays in its cell while the line moves. */
uint64_t *spark_values(const struct spark *spark, int64_t now_ns, size_t cells)
{
    uint64_t *values = tool_allocate(cells + 1, sizeof *values);
    for (size_t i = 0; i < cells; i++)
        values[i] = SG_UNKNOWN;
    if (cells == 0)
        return values;
    int64_t step_ns = step_of(spark, now_ns, cells), first = now_ns / step_ns - (int64_t)cells + 1;
    for (size_t i = 0; i < spark->count; i++) {
        int64_t cell = spark->point[i].time_ns / step_ns - first, end = holds_until(spark, i, now_ns) / step_ns - first;
        for (cell = cell < 0 ? 0 : cell; cell <= end && cell < (int64_t)cells; cell++)
            values[cell] = bytes_max(values[cell] == SG_UNKNOWN ? 0 : values[cell], spark->point[i].bytes);
    }
    return values;
}

/* Returns the glyph of a row (0: the lowest) in which a value of `height` eighths ends, begins or passes. */
static const char *glyph_of(size_t height, size_t row, bool is_utf8)
{
    static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const ascii[] = {" ", "_", ".", ":", "-", "=", "+", "*", "#"};
    size_t below = row * LEVELS, part = height <= below ? 0 : height - below > LEVELS ? LEVELS : height - below;
    return is_utf8 ? blocks[part] : ascii[part];
}

char *spark_text(const struct spark *spark, int64_t now_ns, size_t cells, size_t rows, uint64_t most_bytes,
                 bool is_utf8)
{
    uint64_t *values = spark_values(spark, now_ns, cells);
    char *text = tool_allocate(rows * (cells * GLYPH_BYTES + 1) + 1, 1), *out = text;
    uint64_t highest_bytes = 0;
    for (size_t i = 0; i < cells; i++)
        highest_bytes = values[i] != SG_UNKNOWN ? bytes_max(highest_bytes, values[i]) : highest_bytes;
    most_bytes = most_bytes != 0 ? most_bytes : highest_bytes;
    for (size_t row = rows; row-- > 0;) {
        for (size_t i = 0; i < cells; i++) {
            double part = values[i] == SG_UNKNOWN || most_bytes == 0 ? 0 : (double)values[i] / (double)most_bytes;
            size_t height = (size_t)((part < 1 ? part : 1) * (double)(rows * LEVELS) + 0.5);
            height = height == 0 && values[i] != SG_UNKNOWN ? 1 : height;
            const char *glyph = glyph_of(height, row, is_utf8);
            out = stpcpy(out, glyph);
        }
        *out++ = row > 0 ? '\n' : '\0';
    }
    free(values);
    return text;
}
