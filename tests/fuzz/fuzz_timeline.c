/* Time lines, from the file to the drawing. First byte: whether the file is all of the input or a well made one with
 * changes, and whether that is whole, or longer than any. */
#include "fuzz.h"

#include "common/tool.h"
#include "report/draw/draw.h"

#define SEGMENT "1-1.segment"
#define TIMELINE "1-1.timeline"

enum { SAMPLES = 4, BYTES = offsetof(struct sg_timeline, sample) + SAMPLES * sizeof(struct sg_sample) };
enum { TOO_LONG = 0xe }; /* the upper half of that byte */
FUZZ_CAPACITY(sizeof(struct sg_timeline));

static void make_well(struct sg_timeline *line)
{
    memset(line, 0, sizeof *line);
    line->magic = SG_TIMELINE_MAGIC;
    line->version = SG_TIMELINE_VERSION;
    line->sample_count = SAMPLES;
    line->interval_ns = 1000000000;
    for (int i = 0; i < SAMPLES; i++)
        line->sample[i] = (struct sg_sample){.time_ns = INT64_C(1795180000) * 1000000000 + i,
                                             .usable_bytes = SG_UNKNOWN,
                                             .reserve_bytes = 1 << 29,
                                             .live_bytes = {1 << 20}};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t mark = tool_arena_mark();
    static struct sg_timeline file;
    static char *segment_path;
    struct model_process process = {.pid = 1, .command = (char *)(uintptr_t) "a", .job = (char *)(uintptr_t) "b"};
    struct model_timeline line = {0};
    char why[MODEL_WHY_CAPACITY];
    if (segment_path == NULL)
        segment_path = strdup(fuzz_path(SEGMENT));
    if (size == 0)
        return 0;
    make_well(&file);
    if (data[0] & 1) {
        fuzz_put(TIMELINE, data + 1, size - 1);
    } else {
        fuzz_patch(&file, BYTES, data + 1, size - 1);
        fuzz_put(TIMELINE, &file, data[0] & 2 ? sizeof file : BYTES);
    }
    if (data[0] >> 4 == TOO_LONG)
        fuzz_need(truncate(fuzz_path(TIMELINE), sizeof file + 1) == 0, "truncate");
    if (model_timeline_read(&line, segment_path, why) == MODEL_GOOD) {
        draw_add_known(&line, &process);
        draw_process(fuzz_nowhere(), &process, &line, NULL);
    }
    tool_arena_release(mark);
    return 0;
}
