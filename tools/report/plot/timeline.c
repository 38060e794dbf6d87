/*
 * timeline.c - reads a time line, and says on stderr if it cannot be trusted.
 */

#include "report/plot/plot.h"
#include "common/text.h"

enum model_verdict plot_timeline(struct model_timeline *timeline, const struct model_process *process)
{
    char why[MODEL_WHY_CAPACITY];
    enum model_verdict verdict = model_timeline_read(timeline, process->segment_path, why);
    if (verdict == MODEL_BAD) {
        char *path = text_printable(process->segment_path, false);
        fprintf(stderr, "sparkguard-report: %s: its time line: %s\n", path, why);
    }
    return verdict;
}
