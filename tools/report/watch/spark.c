/*
 * spark.c - see spark.h.
 */
#include "report/watch/spark.h"

#include <string.h>

#include "common/bytes.h"
#include "common/tool.h"
#include "sparkguard_abi.h"

enum { GLYPH_BYTES = 3 };

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

struct spark_axis spark_axis_of(const struct spark *spark, int64_t now_ns, size_t cells)
{
    return (struct spark_axis){.now_ns = now_ns, .step_ns = step_of(spark, now_ns, cells), .cells = cells};
}

int64_t spark_cell(const struct spark_axis *axis, int64_t time_ns)
{
    return time_ns / axis->step_ns - axis->now_ns / axis->step_ns + (int64_t)axis->cells - 1;
}

/* Returns the end of the time for which a figure holds: until the next one, but not for long. */
static int64_t holds_until(const struct spark *spark, size_t i, int64_t now_ns)
{
    int64_t next_ns = i + 1 < spark->count ? spark->point[i + 1].time_ns : now_ns;
    int64_t spacing_ns = spark->spacing_ns > SPARK_SPACING_NS ? spark->spacing_ns : SPARK_SPACING_NS;
    bool is_near = next_ns - spark->point[i].time_ns <= 3 * spacing_ns;
    return is_near ? next_ns : spark->point[i].time_ns;
}

uint64_t *spark_values(const struct spark *spark, const struct spark_axis *axis)
{
    uint64_t *values = tool_allocate(axis->cells + 1, sizeof *values);
    for (size_t i = 0; i < axis->cells; i++)
        values[i] = SG_UNKNOWN;
    for (size_t i = 0; i < spark->count; i++) {
        int64_t cell = spark_cell(axis, spark->point[i].time_ns);
        int64_t end = spark_cell(axis, holds_until(spark, i, axis->now_ns));
        for (cell = cell < 0 ? 0 : cell; cell <= end && cell < (int64_t)axis->cells; cell++)
            values[cell] = bytes_max(values[cell] == SG_UNKNOWN ? 0 : values[cell], spark->point[i].bytes);
    }
    return values;
}

const char *spark_glyph(size_t height, bool is_utf8)
{
    static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const ascii[] = {" ", "_", ".", ":", "-", "=", "+", "*", "#"};
    height = height < SPARK_LEVELS ? height : SPARK_LEVELS;
    return is_utf8 ? blocks[height] : ascii[height];
}

char *spark_text(const struct spark *spark, int64_t now_ns, size_t cells, bool is_utf8)
{
    const struct spark_axis axis = spark_axis_of(spark, now_ns, cells);
    uint64_t *values = spark_values(spark, &axis), most_bytes = 1;
    char *text = tool_allocate(cells * GLYPH_BYTES + 1, 1), *out = text;
    for (size_t i = 0; i < cells; i++)
        most_bytes = values[i] != SG_UNKNOWN ? bytes_max(most_bytes, values[i]) : most_bytes;
    for (size_t i = 0; i < cells; i++) {
        double part = values[i] == SG_UNKNOWN ? 0 : (double)values[i] / (double)most_bytes;
        size_t height = (size_t)(part * SPARK_LEVELS + 0.5);
        out = stpcpy(out, spark_glyph(height == 0 && values[i] != SG_UNKNOWN ? 1 : height, is_utf8));
    }
    return text;
}
