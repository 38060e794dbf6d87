/*
 * sample.c - takes the samples of a watch, and computes rates and the time to a wall for each process.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "report/draw/draw.h"
#include "common/bytes.h"
#include "common/tool.h"
#include "report/watch/watch.h"

/* How long an ended process stays in the list, beyond one interval. */
#define LINGER_NS INT64_C(10000000000)

/* ---- samples ----------------------------------------------------------------------------------------------------- */

static struct watch_trace *find_trace(const struct watch *watch, const struct watch_key *key)
{
    struct watch_trace *trace;
    HASH_FIND(hh, watch->traces, key, sizeof *key, trace);
    return trace;
}

struct watch_key watch_key_of_job(const struct model_job *job)
{
    struct watch_key key = {.start_ticks = job->hash};
    snprintf(key.job, sizeof key.job, "%s", job->name);
    return key;
}

struct watch_key watch_key_of_process(const struct model_process *process)
{
    return (struct watch_key){.pid = (uint64_t)process->pid_namespace << 32 | process->pid,
                              .start_ticks = process->start_ticks};
}

bool watch_keys_are_equal(const struct watch_key *one, const struct watch_key *other)
{
    return memcmp(one, other, sizeof *one) == 0;
}

static struct watch_trace *note_bytes(struct watch *watch, struct watch_key key, uint64_t live_bytes)
{
    struct watch_trace *trace = find_trace(watch, &key);
    if (trace == NULL) {
        trace = calloc(1, sizeof *trace);
        if (trace == NULL)
            tool_end_without_memory();
        trace->key = key;
        trace->spark.spacing_ns = watch->interval_ns;
        HASH_ADD(hh, watch->traces, key, sizeof trace->key, trace);
    }
    watch_trend_add(&trace->live, watch->sampled_ns, live_bytes);
    trace->seen_ns = watch->sampled_ns;
    return trace;
}

/* Returns when the job's last run has begun: an earlier one of the same name is not its past. */
static int64_t run_began_ns(const struct model_job *job)
{
    return job->runs[job->run_count - 1].started_ns;
}

static void sample_job(struct watch *watch, const struct model_job *job)
{
    struct watch_trace *trace = note_bytes(watch, watch_key_of_job(job), job->live_bytes);
    if (trace->run_ns != 0 && run_began_ns(job) > trace->run_ns)
        trace->spark.count = 0;
    trace->run_ns = run_began_ns(job);
    spark_add(&trace->spark, watch->sampled_ns, job->live_bytes);
}

static void sample_process(struct watch *watch, const struct model_process *process)
{
    struct watch_trace *trace = note_bytes(watch, watch_key_of_process(process), process->live_bytes);
    spark_add(&trace->spark, watch->sampled_ns, bytes_less(process->live_bytes, process->inherited_bytes));
}

static const struct spark *find_spark(const struct watch *watch, struct watch_key key)
{
    const struct watch_trace *trace = find_trace(watch, &key);
    return trace != NULL ? &trace->spark : NULL;
}

const struct spark *watch_spark(const struct watch *watch, const struct model_job *job)
{
    return find_spark(watch, watch_key_of_job(job));
}

const struct spark *watch_process_spark(const struct watch *watch, const struct model_process *process)
{
    return find_spark(watch, watch_key_of_process(process));
}

/* Enters the columns of a band, or of the whole job if that is NULL, before the figures that the watch has seen. */
static void look_back_to(struct watch *watch, struct watch_key key, const struct bands *bands,
                         const struct bands_band *band)
{
    struct watch_trace *trace = find_trace(watch, &key);
    int64_t now_ns = tool_now_ns(), shift_ns = now_ns - watch->sampled_ns;
    if (trace == NULL)
        return;
    struct spark seen = trace->spark, *spark = &trace->spark;
    spark->count = 0;
    for (size_t i = 0; i < bands->column_count; i++) {
        const struct bands_column *column = &bands->column[i];
        bool is_recorded = band != NULL ? band->cell[i].record == BANDS_RECORDED : column->is_recorded;
        if (is_recorded && column->begin_ns < now_ns)
            spark_add(spark, column->begin_ns - shift_ns, band != NULL ? band->cell[i].bytes : column->live_bytes);
    }
    for (size_t i = 0; i < seen.count; i++)
        spark_add(spark, seen.point[i].time_ns, seen.point[i].bytes);
}

/* Enters what the time lines of a job's processes have. */
static void look_back(struct watch *watch, const struct model_job *job)
{
    int64_t window_ns = tool_now_ns() - SPARK_WINDOW_NS, run_ns = run_began_ns(job);
    struct bands *bands = draw_bands_read(job, window_ns > run_ns ? window_ns : run_ns, BANDS_COLUMNS_MAX, NULL);
    if (bands == NULL)
        return;
    look_back_to(watch, watch_key_of_job(job), bands, NULL);
    for (size_t i = 0; i < bands->band_count; i++)
        if (bands->band[i].process_count == 1 && bands->band[i].has_timeline)
            look_back_to(watch, watch_key_of_process(bands->band[i].process), bands, &bands->band[i]);
}

void watch_look_back(struct watch *watch)
{
    const struct model_job *job;
    DL_FOREACH (watch->model->jobs, job)
        look_back(watch, job);
}

/* Moves the traces that stay to a new table, in their order. */
void watch_forget(struct watch *watch, int64_t before_ns)
{
    struct watch_trace *trace = watch->traces, *next;
    HASH_CLEAR(hh, watch->traces);
    for (; trace != NULL; trace = next) {
        next = trace->hh.next;
        if (trace->seen_ns < before_ns)
            free(trace);
        else
            HASH_ADD(hh, watch->traces, key, sizeof trace->key, trace);
    }
}

void watch_sample(struct watch *watch)
{
    const struct model_job *job;
    const struct model_process *process;
    tool_arena_release(watch->mark);
    watch->model = model_build(watch->scope);
    watch->sampled_ns = tool_clock_ns(CLOCK_MONOTONIC);
    const struct model_machine *machine = &watch->model->machine;
    watch_trend_add(&watch->usable, watch->sampled_ns, machine->usable_bytes);
    for (int i = 0; i < SG_DEVICE_CAPACITY; i++)
        watch_trend_add(&watch->device[i], watch->sampled_ns,
                        machine->device[i].is_known ? machine->device[i].live_bytes : SG_UNKNOWN);
    DL_FOREACH (watch->model->jobs, job) {
        if (job->running_count > 0)
            sample_job(watch, job);
        DL_FOREACH (job->processes, process)
            if (process->state == SG_STATE_RUNNING)
                sample_process(watch, process);
    }
    watch_forget(watch, watch->sampled_ns - watch->interval_ns - LINGER_NS);
}

/* Returns whether the filter is part of a text; letters of ASCII match in both cases. */
static bool has_part(const char *text, const char *filter)
{
    return strcasestr(text, filter) != NULL;
}

static bool passes(const struct watch *watch, const struct model_job *job, const struct model_process *process)
{
    char pid[16];
    struct watch_key job_key = watch_key_of_job(job);
    if (watch->is_in_depth && watch->depth.pid == 0 && !watch_keys_are_equal(&watch->depth, &job_key))
        return false;
    snprintf(pid, sizeof pid, "%" PRIu32, model_process_number(process));
    return watch->filter[0] == '\0' || has_part(job->name, watch->filter) ||
           has_part(process->command, watch->filter) || strcmp(pid, watch->filter) == 0;
}

bool watch_is_shown(const struct watch *watch, const struct model_job *job, const struct model_process *process)
{
    struct watch_key key = watch_key_of_process(process);
    if (!passes(watch, job, process))
        return false;
    if (process->state == SG_STATE_RUNNING || watch->scope->pid != 0 || watch->scope->is_all)
        return true;
    const struct watch_trace *trace = find_trace(watch, &key);
    return process->state != SG_STATE_REPLACED && trace != NULL && trace->seen_ns != watch->sampled_ns;
}

bool watch_has_no_list(const struct watch *watch)
{
    return watch->scope->pid != 0 || (watch->is_in_depth && watch->depth.pid != 0);
}

bool watch_is_in_depth(const struct watch *watch, const struct model_process *process)
{
    struct watch_key key = watch_key_of_process(process);
    if (watch->scope->pid != 0)
        return true;
    return watch->is_in_depth && watch_keys_are_equal(&watch->depth, &key);
}

/* ---- figures ----------------------------------------------------------------------------------------------------- */

static int64_t rate_of(const struct watch *watch, struct watch_key key)
{
    const struct watch_trace *trace = find_trace(watch, &key);
    bool is_running = trace != NULL && trace->seen_ns == watch->sampled_ns;
    return is_running ? watch_trend_rate(&trace->live) : WATCH_NO_RATE;
}

int64_t watch_process_rate(const struct watch *watch, const struct model_process *process)
{
    return process->state == SG_STATE_RUNNING ? rate_of(watch, watch_key_of_process(process)) : WATCH_NO_RATE;
}

int64_t watch_job_rate(const struct watch *watch, const struct model_job *job)
{
    return rate_of(watch, watch_key_of_job(job));
}

int64_t watch_machine_wall_ns(const struct watch *watch, uint64_t left_bytes)
{
    uint64_t usable_bytes = watch->model->machine.usable_bytes;
    int64_t rate = watch_trend_rate(&watch->usable);
    if (usable_bytes == SG_UNKNOWN || left_bytes == SG_UNKNOWN || rate == WATCH_NO_RATE)
        return WATCH_NEVER;
    return watch_time_to(bytes_less(usable_bytes, left_bytes), -rate);
}

static bool uses_device(const struct model_job *job, int device)
{
    const struct model_process *process;
    DL_FOREACH (job->processes, process)
        if (process->state == SG_STATE_RUNNING && process->device[device].is_known == 1 &&
            process->device[device].live_bytes > 0)
            return true;
    return false;
}

/* Returns the time until a device's reserve is reached. Memory of unguarded programs there is unknown, so it may be
 * reached sooner. */
static int64_t device_wall_ns(const struct watch *watch, int device)
{
    const struct model_device *own = &watch->model->machine.device[device];
    if (watch->model->machine.unified != 0 || own->total_bytes == SG_UNKNOWN || own->reserve_bytes == SG_UNKNOWN)
        return WATCH_NEVER;
    uint64_t most_bytes = bytes_less(own->total_bytes, own->reserve_bytes);
    return watch_time_to(bytes_less(most_bytes, own->live_bytes), watch_trend_rate(&watch->device[device]));
}

static int64_t nearer(int64_t one_ns, int64_t other_ns)
{
    if (one_ns == WATCH_NEVER || other_ns == WATCH_NEVER)
        return one_ns == WATCH_NEVER ? other_ns : one_ns;
    return one_ns < other_ns ? one_ns : other_ns;
}

int64_t watch_wall_ns(const struct watch *watch, const struct model_job *job, int64_t rate)
{
    if (rate == WATCH_NO_RATE || rate <= 0)
        return WATCH_NEVER;
    int64_t wall_ns = watch_machine_wall_ns(watch, watch->model->machine.reserve_bytes);
    if (job->limit_bytes != SG_UNKNOWN)
        wall_ns =
            nearer(wall_ns, watch_time_to(bytes_less(job->limit_bytes, job->live_bytes), watch_job_rate(watch, job)));
    for (int i = 0; i < SG_DEVICE_CAPACITY; i++)
        if (uses_device(job, i))
            wall_ns = nearer(wall_ns, device_wall_ns(watch, i));
    return wall_ns;
}
