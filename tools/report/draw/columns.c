/*
 * columns.c - reads the time lines of a job, one at a time, and enters them into columns on one axis.
 */
#include <stdlib.h>
#include <string.h>

#include "report/draw/draw.h"
#include "common/bytes.h"
#include "common/tool.h"

#define SECOND_NS INT64_C(1000000000)

/* ---- lives ------------------------------------------------------------------------------------------------------- */

/* A process on the axis. */
struct life {
    const struct model_process *process;
    int64_t begin_ns, end_ns;
    /* Until then another process of the job counts the bytes that this one inherited. */
    int64_t relieved_until_ns;
    uint64_t own_peak_bytes; /* peak less inherited bytes */
};

static int64_t end_of_life(const struct model_process *process)
{
    int64_t end_ns = process->state == SG_STATE_RUNNING ? tool_now_ns() : process->last_seen_ns;
    return end_ns > process->started_ns ? end_ns : process->started_ns;
}

/* Returns until when a living parent, or an earlier child of the same parent, counts the inherited bytes. */
static int64_t relieved_until(const struct life *lives, size_t count, const struct model_process *process)
{
    int64_t until_ns = 0;
    for (size_t i = 0; i < count; i++) {
        const struct model_process *other = lives[i].process;
        bool is_near = other->pid_namespace == process->pid_namespace; /* else the numbers say nothing */
        bool is_parent = is_near && other->pid == process->parent_pid && other->started_ns <= process->started_ns;
        bool is_sibling = is_near && other->parent_pid == process->parent_pid && other->inherited_bytes > 0;
        if ((is_parent || is_sibling) && lives[i].end_ns > until_ns)
            until_ns = lives[i].end_ns;
    }
    return until_ns;
}

/* Returns the lives in the order of the job, which is that of their starts. */
static struct life *list_lives(const struct model_job *job, int64_t since_ns, size_t *count)
{
    const struct model_process *process;
    struct life *lives = tool_allocate(job->process_count, sizeof *lives);
    *count = 0;
    DL_FOREACH (job->processes, process) {
        struct life *life = &lives[*count];
        *life = (struct life){.process = process, .end_ns = end_of_life(process)};
        life->begin_ns = process->started_ns > 0 ? process->started_ns : life->end_ns;
        life->own_peak_bytes = bytes_less(process->peak_bytes, process->inherited_bytes);
        if (life->end_ns < since_ns)
            continue;
        if (process->inherited_bytes > 0)
            life->relieved_until_ns = relieved_until(lives, *count, process);
        ++*count;
    }
    return lives;
}

static int compare_begins(const void *a, const void *b)
{
    const struct life *first = a, *second = b;
    return (first->begin_ns > second->begin_ns) - (first->begin_ns < second->begin_ns);
}

static int compare_peaks(const void *a, const void *b)
{
    const struct life *first = a, *second = b;
    if (first->own_peak_bytes != second->own_peak_bytes)
        return first->own_peak_bytes < second->own_peak_bytes ? 1 : -1;
    return compare_begins(a, b);
}

/* ---- the axis ---------------------------------------------------------------------------------------------------- */

/* Adds a time to the spans. Begins a new span after a pause; of too many spans the earliest is dropped. */
static void add_span(struct bands *bands, int64_t begin_ns, int64_t end_ns, int64_t pause_ns)
{
    struct bands_span *last = bands->span_count > 0 ? &bands->span[bands->span_count - 1] : NULL;
    if (last != NULL && begin_ns - last->end_ns <= pause_ns) {
        last->end_ns = end_ns > last->end_ns ? end_ns : last->end_ns;
        return;
    }
    if (bands->span_count == BANDS_SPANS_MAX) {
        memmove(bands->span, bands->span + 1, --bands->span_count * sizeof bands->span[0]);
        bands->earlier_spans++;
    }
    bands->span[bands->span_count++] = (struct bands_span){.begin_ns = begin_ns, .end_ns = end_ns};
}

/* Returns the longest pause that is drawn: an eighth of the time in which processes lived, and at least a second. */
static int64_t drawn_pause(const struct life *lives, size_t count)
{
    int64_t lived_ns = 0, until_ns = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t begin_ns = lives[i].begin_ns > until_ns ? lives[i].begin_ns : until_ns;
        lived_ns += lives[i].end_ns > begin_ns ? lives[i].end_ns - begin_ns : 0;
        until_ns = lives[i].end_ns > until_ns ? lives[i].end_ns : until_ns;
    }
    return lived_ns / 8 > SECOND_NS ? lived_ns / 8 : SECOND_NS;
}

/* Divides the columns among the spans by their durations; each gets at least a part. */
static void divide_columns(struct bands *bands, size_t columns)
{
    enum { LEAST_PART = 12 };
    double whole_ns = 0;
    size_t least = columns / LEAST_PART > 2 ? columns / LEAST_PART : 2, left = columns - bands->span_count * least;
    for (size_t i = 0; i < bands->span_count; i++)
        whole_ns += (double)(bands->span[i].end_ns - bands->span[i].begin_ns);
    for (size_t i = 0; i < bands->span_count; i++) {
        struct bands_span *span = &bands->span[i];
        double span_ns = (double)(span->end_ns - span->begin_ns);
        span->first = bands->column_count;
        span->count = least + (size_t)((double)left * span_ns / whole_ns);
        for (size_t k = 0; k < span->count; k++) {
            struct bands_column *column = &bands->column[bands->column_count++];
            column->begin_ns = span->begin_ns + (int64_t)(span_ns * (double)k / (double)span->count);
            column->end_ns = span->begin_ns + (int64_t)(span_ns * (double)(k + 1) / (double)span->count);
            column->usable_bytes = column->reserve_bytes = column->floor_bytes = SG_UNKNOWN;
        }
        bands->column[bands->column_count - 1].end_ns = span->end_ns + 1; /* has the last sample */
    }
}

static void lay_out_axis(struct bands *bands, const struct life *lives, size_t count, int64_t since_ns, size_t columns)
{
    enum { SHORTEST_NS = 1000000 };
    int64_t pause_ns = drawn_pause(lives, count);
    for (size_t i = 0; i < count; i++)
        add_span(bands, lives[i].begin_ns > since_ns ? lives[i].begin_ns : since_ns, lives[i].end_ns, pause_ns);
    for (size_t i = 0; i < bands->span_count; i++) {
        struct bands_span *span = &bands->span[i];
        span->end_ns = span->end_ns - span->begin_ns < SHORTEST_NS ? span->begin_ns + SHORTEST_NS : span->end_ns;
    }
    divide_columns(bands, columns < BANDS_COLUMNS_MAX ? columns : BANDS_COLUMNS_MAX);
}

/* ---- bands ------------------------------------------------------------------------------------------------------- */

static uint64_t live_of(const struct sg_sample *sample)
{
    uint64_t sum = 0;
    for (int i = 0; i < SG_DOMAIN_COUNT; i++)
        sum += sample->live_bytes[i];
    return sum;
}

static int compare_distances(const void *a, const void *b)
{
    int64_t first, second;
    memcpy(&first, a, sizeof first);
    memcpy(&second, b, sizeof second);
    return (first > second) - (first < second);
}

/* Returns how long a sample holds without another one. A watched process has a sample every 100 ms or every interval of
 * its time line, a process without a watchdog only where it asks for memory. Both keep a pace of their own: what is far
 * beyond the usual distance is a time without samples. */
static int64_t holds_for(const struct model_timeline *timeline)
{
    enum { USUAL_TIMES = 8 };
    size_t count = timeline->count - 1;
    if (count == 0)
        return 5 * SECOND_NS;
    int64_t *distance = tool_allocate(count, sizeof *distance);
    for (size_t i = 0; i < count; i++)
        distance[i] = timeline->samples[i + 1].time_ns - timeline->samples[i].time_ns;
    qsort(distance, count, sizeof *distance, compare_distances);
    int64_t usual_ns = distance[count / 2];
    return usual_ns > INT64_MAX / USUAL_TIMES       ? INT64_MAX
           : usual_ns * USUAL_TIMES > 5 * SECOND_NS ? usual_ns * USUAL_TIMES
                                                    : 5 * SECOND_NS;
}

static void note_machine(struct bands_column *column, const struct sg_sample *sample)
{
    column->is_recorded = true;
    if (sample->usable_bytes == SG_UNKNOWN || sample->usable_bytes >= column->usable_bytes)
        return; /* SG_UNKNOWN, of a column without a figure, is the highest number */
    column->usable_bytes = sample->usable_bytes;
    column->reserve_bytes = sample->reserve_bytes;
    column->floor_bytes = sample->floor_bytes;
}

/* Returns the height before the first sample, which rises evenly to that of the sample. A time line often begins when
 * a process has grown to 256 MiB. */
static uint64_t rising_to(const struct sg_sample *first, int64_t begin_ns, const struct bands_column *column)
{
    double whole_ns = (double)(first->time_ns - begin_ns);
    double passed_ns = ((double)(column->begin_ns - begin_ns) + (double)(column->end_ns - begin_ns)) / 2;
    double part = passed_ns < 0 ? 0 : passed_ns < whole_ns ? passed_ns / whole_ns : 1;
    return (uint64_t)((double)live_of(first) * part);
}

/* Returns what a process shows in a column. *at is the sample in effect when the column begins, and advances. */
static struct bands_cell cell_of(const struct model_timeline *timeline, const struct life *life, int64_t holds_ns,
                                 struct bands_column *column, size_t *at)
{
    const struct sg_sample *samples = timeline->samples;
    if (column->end_ns <= samples[0].time_ns)
        return (struct bands_cell){rising_to(&samples[0], life->begin_ns, column), BANDS_NOT_RECORDED};
    while (*at + 1 < timeline->count && samples[*at + 1].time_ns <= column->begin_ns)
        ++*at;
    struct bands_cell cell = {live_of(&samples[*at]), BANDS_NOT_RECORDED};
    for (size_t i = *at; i < timeline->count && (i == *at || samples[i].time_ns < column->end_ns); i++) {
        int64_t until_ns = i + 1 < timeline->count ? samples[i + 1].time_ns : samples[i].time_ns;
        bool is_gap = until_ns - samples[i].time_ns > holds_ns;
        bool begins_here = samples[i].time_ns >= column->begin_ns && samples[i].time_ns < column->end_ns;
        cell.bytes = bytes_max(cell.bytes, samples[i].time_ns < column->end_ns ? live_of(&samples[i]) : 0);
        if (!begins_here && (is_gap || samples[i].time_ns > column->begin_ns))
            continue;
        cell.record = BANDS_RECORDED;
        note_machine(column, &samples[i]);
    }
    return cell;
}

static void enter(struct bands_cell *sum, struct bands_cell cell)
{
    sum->bytes = bytes_add(sum->bytes, cell.bytes);
    sum->record = cell.record > sum->record ? cell.record : sum->record;
}

/* Adds a process to a band. Without a time line its peak is shown as long as it lived. */
static void add_to_band(struct bands *bands, struct bands_band *band, const struct life *life,
                        const struct model_timeline *timeline)
{
    int64_t holds_ns = timeline != NULL ? holds_for(timeline) : 0;
    size_t at = 0;
    if (band->process_count++ == 0)
        *band = (struct bands_band){life->process, 1, timeline != NULL, life->begin_ns, life->end_ns, {{0}}};
    band->begin_ns = life->begin_ns < band->begin_ns ? life->begin_ns : band->begin_ns;
    band->end_ns = life->end_ns > band->end_ns ? life->end_ns : band->end_ns;
    for (size_t i = 0; i < bands->column_count; i++) {
        struct bands_column *column = &bands->column[i];
        if (column->end_ns <= life->begin_ns || column->begin_ns > life->end_ns)
            continue;
        struct bands_cell cell = timeline != NULL ? cell_of(timeline, life, holds_ns, column, &at)
                                                  : (struct bands_cell){life->process->peak_bytes, BANDS_NOT_RECORDED};
        if (column->begin_ns < life->relieved_until_ns)
            cell.bytes = bytes_less(cell.bytes, life->process->inherited_bytes);
        enter(&band->cell[i], cell);
        column->live_bytes = bytes_add(column->live_bytes, cell.bytes);
    }
}

/* Returns the band for the next process; `without` and `others` are the bands of several. */
static struct bands_band *choose_band(struct bands *bands, struct bands_band *others, struct bands_band *without,
                                      bool has_timeline)
{
    if (!has_timeline)
        return without;
    return bands->band_count < BANDS_NAMED ? &bands->band[bands->band_count++] : others;
}

static enum model_verdict read_timeline(struct model_timeline *timeline, const struct model_process *process,
                                        bool *has_complained)
{
    char why[MODEL_WHY_CAPACITY];
    if (has_complained == NULL)
        return model_timeline_read(timeline, process->segment_path, why);
    enum model_verdict verdict = draw_timeline(timeline, process);
    *has_complained = *has_complained || verdict == MODEL_BAD;
    return verdict;
}

/* Enters the processes, the one with the highest peak first. */
static void fill_bands(struct bands *bands, const struct life *lives, size_t count, bool *has_complained)
{
    struct bands_band *others = tool_allocate(2, sizeof *others), *without = others + 1;
    for (size_t i = 0; i < count; i++) {
        struct model_timeline timeline = {0};
        enum model_verdict verdict = read_timeline(&timeline, lives[i].process, has_complained);
        bands->timeline_count += verdict == MODEL_GOOD;
        if (verdict == MODEL_GOOD)
            draw_add_known(&timeline, lives[i].process);
        add_to_band(bands, choose_band(bands, others, without, verdict == MODEL_GOOD), &lives[i],
                    verdict == MODEL_GOOD ? &timeline : NULL);
    }
    for (size_t i = 0; i < 2; i++)
        if (others[i].process_count > 0)
            bands->band[bands->band_count++] = others[i];
}

struct bands *draw_bands_read(const struct model_job *job, int64_t since_ns, size_t columns, bool *has_complained)
{
    struct bands *bands = tool_allocate(1, sizeof *bands);
    size_t count;
    struct life *lives = list_lives(job, since_ns, &count);
    bands->job = job;
    qsort(lives, count, sizeof *lives, compare_begins);
    lay_out_axis(bands, lives, count, since_ns, columns);
    qsort(lives, count, sizeof *lives, compare_peaks);
    fill_bands(bands, lives, count, has_complained);
    if (bands->timeline_count > 0)
        return bands;
    return NULL;
}
