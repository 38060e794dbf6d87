/*
 * timeline.c - reads a time line, and adds the peak and the live bytes at the end. The segment has both; the time line
 * may lack them, because samples are taken before requests are granted, and not for small requests.
 */
#include <string.h>

#include "report/draw/draw.h"
#include "common/text.h"
#include "common/tool.h"

enum model_verdict draw_timeline(struct model_timeline *timeline, const struct model_process *process)
{
    char why[MODEL_WHY_CAPACITY];
    enum model_verdict verdict = model_timeline_read(timeline, process->segment_path, why);
    if (verdict == MODEL_BAD) {
        char *path = text_printable(process->segment_path, false);
        fprintf(stderr, "sparkguard-report: %s: its time line: %s\n", path, why);
    }
    return verdict;
}

/* Inserts a sample after all that are not later, with the machine's figures of the one before. */
static struct sg_sample *insert(struct model_timeline *timeline, int64_t time_ns)
{
    struct sg_sample *samples = timeline->samples, fresh = {.time_ns = time_ns};
    size_t at = timeline->count;
    while (at > 0 && samples[at - 1].time_ns > time_ns)
        at--;
    fresh.usable_bytes = at > 0 ? samples[at - 1].usable_bytes : SG_UNKNOWN;
    fresh.reserve_bytes = at > 0 ? samples[at - 1].reserve_bytes : SG_UNKNOWN;
    fresh.floor_bytes = at > 0 ? samples[at - 1].floor_bytes : SG_UNKNOWN;
    memmove(&samples[at + 1], &samples[at], (timeline->count - at) * sizeof *samples);
    timeline->count++;
    samples[at] = fresh;
    return &samples[at];
}

/* Returns the time of the end, which is not before the last sample. */
static int64_t end_of_record(const struct model_process *process, const struct model_timeline *timeline)
{
    int64_t end_ns = process->state == SG_STATE_RUNNING ? tool_now_ns() : process->last_seen_ns;
    int64_t last_ns = timeline->samples[timeline->count - 1].time_ns;
    return end_ns > last_ns ? end_ns : last_ns;
}

void draw_add_known(struct model_timeline *timeline, const struct model_process *process)
{
    enum { KNOWN = 2 };
    int64_t end_ns = end_of_record(process, timeline);
    struct sg_sample *longer = tool_allocate(timeline->count + KNOWN, sizeof *longer);
    memcpy(longer, timeline->samples, timeline->count * sizeof *longer);
    timeline->samples = longer;
    if (process->peak_ns > 0 && process->peak_ns <= end_ns) {
        struct sg_sample *peak = insert(timeline, process->peak_ns);
        for (int i = 0; i < SG_DOMAIN_COUNT; i++)
            peak->live_bytes[i] = process->domain[i].at_peak_bytes;
    }
    struct sg_sample *end = insert(timeline, end_ns);
    for (int i = 0; i < SG_DOMAIN_COUNT; i++)
        end->live_bytes[i] = process->domain[i].live_bytes;
}
