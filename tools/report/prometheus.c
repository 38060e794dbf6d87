/*
 * prometheus.c - metrics for a collector. An unknown value has no series, because absent is not 0.
 *
 * Series are stored for years, so there are few: for the machine, for each job shown, and for running processes that
 * hold 1 % of the machine. Other users can make any number of jobs, so only the largest jobs have their own series.
 * Prometheus sets the label "job" itself, so the label here is "sparkguard_job".
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "report/report.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

/* A process has its own series if it holds 1 % of the machine and at least 64 MiB. */
#define LEAST_BYTES (UINT64_C(64) << 20)

/* An ended job is shown this long, so that its last figures are scraped. */
#define RECENT_NS (300 * INT64_C(1000000000))

/* The maximum numbers of jobs and of processes with their own series. */
enum { JOBS_MAX = 100, PROCESSES_MAX = 100 };

/* The labels of all other jobs together. No job has an empty directory. */
#define OTHERS "{sparkguard_job=\"other jobs\",directory=\"\"}"

/* The beginning of a command identifies it; its end may contain private data. */
enum { COMMAND_COLUMNS = 48 };

/* Returns a text as a label's value, without the quotes. Different texts give different values, because the collector
 * rejects a file with two equal series. */
static char *label_of(const char *text)
{
    size_t left = strlen(text);
    char *label = tool_allocate(left * strlen("\\\\x5c") + 1, 1), *out = label;
    while (left > 0) {
        uint32_t code;
        size_t length = text_utf8_next(text, left, &code);
        if (code == TEXT_NO_CODE || text_is_control(code) || code == '\\')
            for (size_t i = 0; i < length; i++)
                out += sprintf(out, "\\\\x%02x", (unsigned char)text[i]);
        else if (code == '"')
            out = stpcpy(out, "\\\"");
        else
            out = mempcpy(out, text, length);
        text += length;
        left -= length;
    }
    *out = '\0';
    return label;
}

static char *labels_of_job(const struct model_job *job)
{
    char *name = label_of(job->name), *directory = label_of(job->directory);
    char *user = model_job_user(job), *user_label = user != NULL ? label_of(user) : NULL;
    return text_format("{sparkguard_job=\"%s\",directory=\"%s\"%s%s%s}", name, directory,
                       user != NULL ? ",user=\"" : "", user != NULL ? user_label : "", user != NULL ? "\"" : "");
}

/* What is shown beside the jobs: sums of all records, whether their jobs are shown or not. */
struct totals {
    uint64_t refused_count[SG_DOMAIN_COUNT];
    uint64_t refused_bytes;
    size_t running_count;    /* processes */
    struct model_job others; /* sums of the jobs without their own series */
    size_t other_count;
};

struct family {
    FILE *stream;
    const char *name, *type, *help;
    bool has_series; /* name, type and help have been printed */
};

static void put_series(struct family *family, const char *labels, uint64_t value)
{
    if (value == SG_UNKNOWN)
        return;
    if (!family->has_series)
        fprintf(family->stream, "# HELP %s %s\n# TYPE %s %s\n", family->name, family->help, family->name, family->type);
    family->has_series = true;
    fprintf(family->stream, "%s%s %" PRIu64 "\n", family->name, labels, value);
}

static void put_gauge(FILE *stream, const char *name, const char *help, const char *labels, uint64_t value)
{
    struct family family = {stream, name, "gauge", help, false};
    put_series(&family, labels, value);
}

struct bytes_field {
    const char *name, *help;
    size_t offset;
};

static uint64_t field_of(const void *object, const struct bytes_field *field)
{
    uint64_t value;
    memcpy(&value, (const char *)object + field->offset, sizeof value);
    return value;
}

/* A member of struct model_OBJECT. */
#define FIELD(object, member, help) \
    { \
        "sparkguard_" #object "_" #member, help, offsetof(struct model_##object, member) \
    }

static void put_headroom(FILE *stream, const struct model_machine *machine)
{
    static const char name[] = "sparkguard_machine_headroom_bytes";
    if (machine->usable_bytes == SG_UNKNOWN || machine->reserve_bytes == SG_UNKNOWN)
        return;
    fprintf(stream,
            "# HELP %s Usable memory less the reserve: what requests can still get; below 0 they are refused.\n"
            "# TYPE %s gauge\n%s %" PRId64 "\n",
            name, name, name, (int64_t)machine->usable_bytes - (int64_t)machine->reserve_bytes);
}

static void put_machine_series(FILE *stream, const struct model *model, const struct totals *totals)
{
    static const struct bytes_field fields[] = {
        FIELD(machine, total_bytes, "Memory of the machine."),
        FIELD(machine, available_bytes, "Memory that the kernel says is available."),
        FIELD(machine, usable_bytes, "Memory that is usable now, including the reserve."),
        FIELD(machine, reserve_bytes, "Memory that stays usable after every granted request."),
        FIELD(machine, floor_bytes, "Below this, small requests are refused too."),
        FIELD(machine, promised_bytes, "Memory that was granted to guarded processes and is not resident yet."),
        FIELD(machine, guarded_bytes, "Live bytes of all running guarded processes."),
        FIELD(machine, unaccounted_bytes,
              "Memory that CUDA contexts and the like took without a request, as measured."),
        FIELD(machine, swap_total_bytes, "Swap space."),
        FIELD(machine, swap_used_bytes, "Swap space in use."),
        FIELD(machine, cgroup_limit_bytes, "Smallest limit of the memory cgroups above the report itself."),
    };
    const struct model_machine *machine = &model->machine;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        put_gauge(stream, fields[i].name, fields[i].help, "", field_of(machine, &fields[i]));
    put_headroom(stream, machine);
    put_gauge(stream, "sparkguard_machine_unified", "1 if CPU and GPU share the memory.", "",
              machine->unified < 0 ? SG_UNKNOWN : (uint64_t)machine->unified);
    put_gauge(stream, "sparkguard_machine_sharing", "1 if all running guarded processes count each other.", "",
              machine->is_sharing);
    put_gauge(stream, "sparkguard_machine_guarded_processes", "Running guarded processes.", "", totals->running_count);
    put_gauge(stream, "sparkguard_machine_other_jobs", "Jobs without series of their own, because others are larger.",
              "", totals->other_count);
    put_gauge(stream, "sparkguard_machine_uncounted_directories",
              "Directories of other users' guarded programs that are not read.", "", model->other_directory_count);
    put_gauge(stream, "sparkguard_machine_untrusted_files", "Files that were not trusted.", "",
              model->complaint_count + model->unsaid_count);
}

static void put_device_series(FILE *stream, const struct model_machine *machine)
{
    static const struct bytes_field fields[] = {
        FIELD(device, total_bytes, "Memory of a CUDA device."),
        FIELD(device, live_bytes, "Memory of a CUDA device that running guarded processes hold."),
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        struct family family = {stream, fields[i].name, "gauge", fields[i].help, false};
        for (int index = 0; index < SG_DEVICE_CAPACITY; index++) {
            const struct model_device *device = &machine->device[index];
            char *name = label_of(device->name);
            char *labels = text_format("{device=\"%d\",name=\"%s\"}", index, name);
            if (device->is_known)
                put_series(&family, labels, field_of(device, &fields[i]));
        }
    }
}

static void put_refusal_series(FILE *stream, const struct totals *totals)
{
    struct family count = {
        stream, "sparkguard_refusals_total", "counter",
        "Refused requests of all guarded processes; in observe mode, requests that would have been refused.", false};
    struct family bytes = {stream, "sparkguard_refused_bytes_total", "counter", "Size of the refused requests.", false};
    for (int i = 0; i < SG_DOMAIN_COUNT; i++)
        put_series(&count, text_format("{domain=\"%s\"}", model_domain_name[i]), totals->refused_count[i]);
    put_series(&bytes, "", totals->refused_bytes);
}

static void put_job_series(FILE *stream, const struct model *model, const struct totals *totals)
{
    static const struct bytes_field fields[] = {
        FIELD(job, live_bytes, "Live bytes of the running processes of a job."),
        FIELD(job, peak_bytes, "Most bytes that the processes of a job held at one time."),
        FIELD(job, limit_bytes, "Most bytes that a job may hold."),
    };
    const struct model_job *job;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        struct family family = {stream, fields[i].name, "gauge", fields[i].help, false};
        DL_FOREACH (model->jobs, job)
            put_series(&family, labels_of_job(job), field_of(job, &fields[i]));
        if (fields[i].offset == offsetof(struct model_job, live_bytes) && totals->other_count > 0)
            put_series(&family, OTHERS, totals->others.live_bytes);
    }
    struct family running = {stream, "sparkguard_job_running_processes", "gauge", "Running processes of a job.", false};
    struct family refused = {stream, "sparkguard_job_refusals_total", "counter", "Refused requests of a job.", false};
    DL_FOREACH (model->jobs, job)
        put_series(&running, labels_of_job(job), job->running_count);
    if (totals->other_count > 0)
        put_series(&running, OTHERS, totals->others.running_count);
    DL_FOREACH (model->jobs, job)
        put_series(&refused, labels_of_job(job), job->refused_count);
}

static char *command_label(const char *command)
{
    char *beginning = text_copy(command, strlen(command));
    text_shorten(beginning, COMMAND_COLUMNS);
    return label_of(beginning);
}

/* Prints a process. The segment's name identifies it, because processes of two containers may have the same PID. */
static void put_one_process(struct family *family, const char *job_labels, const struct model_process *process,
                            const struct bytes_field *field)
{
    char *command = command_label(process->command);
    char *segment = label_of(strrchr(process->segment_path, '/') + 1);
    char *container = label_of(process->container != NULL ? process->container : "");
    char *labels = text_format("%.*s,container=\"%s\",pid=\"%" PRIu32 "\",segment=\"%s\",command=\"%s\"}",
                               (int)strlen(job_labels) - 1, job_labels, container, model_process_number(process),
                               segment, command);
    put_series(family, labels, field_of(process, field));
}

static int compare_bytes(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left > right ? -1 : left < right;
}

/* Returns the least live bytes of a process with its own series. */
static uint64_t least_bytes(const struct model *model, const struct totals *totals)
{
    uint64_t total = model->machine.total_bytes;
    uint64_t least = total == SG_UNKNOWN ? LEAST_BYTES : bytes_max(total / 100, LEAST_BYTES);
    uint64_t *sizes = tool_allocate(totals->running_count + 1, sizeof *sizes);
    size_t count = 0;
    const struct model_job *job;
    const struct model_process *process;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (process->state == SG_STATE_RUNNING)
                sizes[count++] = process->live_bytes;
    qsort(sizes, count, sizeof *sizes, compare_bytes);
    if (count > PROCESSES_MAX)
        least = bytes_max(least, sizes[PROCESSES_MAX - 1]);
    return least;
}

static void put_process_series(FILE *stream, const struct model *model, const struct totals *totals)
{
    static const struct bytes_field fields[] = {
        FIELD(process, live_bytes, "Live bytes of a running process that holds 1 % of the machine."),
        FIELD(process, peak_bytes, "Most bytes that such a process held at one time."),
    };
    uint64_t least = least_bytes(model, totals);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        struct family family = {stream, fields[i].name, "gauge", fields[i].help, false};
        const struct model_job *job;
        const struct model_process *process;
        size_t left = PROCESSES_MAX; /* many processes may have the same size */
        DL_FOREACH (model->jobs, job) {
            const char *labels = labels_of_job(job);
            DL_FOREACH (job->processes, process) {
                if (process->state != SG_STATE_RUNNING || process->live_bytes < least || left == 0)
                    continue;
                put_one_process(&family, labels, process, &fields[i]);
                left--;
            }
        }
    }
}

static void put_unguarded_series(FILE *stream, const struct model *model)
{
    static const struct bytes_field fields[] = {
        FIELD(unguarded, resident_bytes, "Resident memory of the largest unguarded processes."),
        FIELD(unguarded, device_bytes, "Device memory of the same processes, by NVML."),
    };
    for (size_t field = 0; field < sizeof fields / sizeof fields[0]; field++) {
        struct family family = {stream, fields[field].name, "gauge", fields[field].help, false};
        for (size_t i = 0; i < model->unguarded_count; i++) {
            const struct model_unguarded *unguarded = &model->unguarded[i];
            char *command = command_label(unguarded->command);
            char *container = label_of(unguarded->container != NULL ? unguarded->container : "");
            char *labels = text_format("{container=\"%s\",pid=\"%" PRIu32 "\",command=\"%s\"}", container,
                                       unguarded->pid, command);
            put_series(&family, labels, field_of(unguarded, &fields[field]));
        }
    }
}

static struct totals sum_up(const struct model *model)
{
    struct totals totals = {.refused_bytes = 0};
    const struct model_job *job;
    const struct model_process *process;
    DL_FOREACH (model->jobs, job) {
        totals.running_count += job->running_count;
        DL_FOREACH (job->processes, process) {
            totals.refused_bytes = bytes_add(totals.refused_bytes, process->refused_bytes);
            for (int i = 0; i < SG_DOMAIN_COUNT; i++)
                totals.refused_count[i] = bytes_add(totals.refused_count[i], process->domain[i].refused_count);
        }
    }
    return totals;
}

/* Orders jobs: the largest first; of those that hold nothing, the last seen first. */
static int compare_jobs(const void *a, const void *b)
{
    const struct model_job *left = *(struct model_job *const *)a, *right = *(struct model_job *const *)b;
    if (left->live_bytes != right->live_bytes)
        return left->live_bytes > right->live_bytes ? -1 : 1;
    return left->last_seen_ns > right->last_seen_ns ? -1 : left->last_seen_ns < right->last_seen_ns;
}

/* Leaves the largest jobs in the model, and sums up the others. */
static void keep_largest(struct model *model, struct totals *totals)
{
    struct model_job *job, **jobs = NULL;
    size_t count = 0;
    DL_FOREACH (model->jobs, job) {
        jobs = tool_grow(jobs, count, sizeof(struct model_job *));
        jobs[count++] = job;
    }
    if (count > JOBS_MAX)
        qsort(jobs, count, sizeof(struct model_job *), compare_jobs);
    for (size_t i = JOBS_MAX; i < count; i++) {
        totals->others.live_bytes = bytes_add(totals->others.live_bytes, jobs[i]->live_bytes);
        totals->others.running_count += jobs[i]->running_count;
        totals->other_count++;
        DL_DELETE(model->jobs, jobs[i]);
    }
}

void report_render_prometheus(struct model *model, const struct model_scope *scope, FILE *stream)
{
    struct totals totals = sum_up(model);
    struct model_scope chosen = *scope;
    bool is_usual = !model_scope_is_narrow(scope) && !scope->is_all;
    if (is_usual)
        chosen.since_ns = tool_now_ns() - RECENT_NS;
    model_select(model, &chosen);
    if (is_usual)
        keep_largest(model, &totals);
    put_gauge(stream, "sparkguard_build_info", "Version of sparkguard-report.", "{version=\"" SG_VERSION_TEXT "\"}", 1);
    put_machine_series(stream, model, &totals);
    put_device_series(stream, &model->machine);
    put_refusal_series(stream, &totals);
    put_job_series(stream, model, &totals);
    put_process_series(stream, model, &totals);
    put_unguarded_series(stream, model);
}
