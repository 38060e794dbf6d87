/*
 * json.c - the model in the shape that scripts rely on ("schema": 1). Every key is always there; unknown is null.
 */
#include "common/json.h"
#include "model/fields.h"
#include "report/render.h"

static void put_machine(struct report_json *json, const struct report *report)
{
    const struct report_machine *machine = &report->machine;
    report_json_open(json, "machine", '{');
    if (machine->unified < 0)
        report_json_null(json, "unified");
    else
        report_json_bool(json, "unified", machine->unified == 1);
    report_json_bytes(json, "total_bytes", machine->total_bytes);
    report_json_bytes(json, "available_bytes", machine->available_bytes);
    report_json_bytes(json, "usable_bytes", machine->usable_bytes);
    report_json_bytes(json, "reserve_bytes", machine->reserve_bytes);
    report_json_bytes(json, "floor_bytes", machine->floor_bytes);
    report_json_bytes(json, "promised_bytes", machine->promised_bytes);
    report_json_bytes(json, "swap_total_bytes", machine->swap_total_bytes);
    report_json_bytes(json, "swap_used_bytes", machine->swap_used_bytes);
    report_json_bytes(json, "unaccounted_bytes", machine->unaccounted_bytes);
    report_json_bytes(json, "cgroup_limit_bytes", machine->cgroup_limit_bytes);
    report_json_bool(json, "sharing", machine->is_sharing);
    report_json_open(json, "not_counted", '[');
    for (size_t i = 0; i < REPORT_NEIGHBOUR_ROOM && report->neighbours[i] != NULL; i++)
        report_json_text(json, NULL, report->neighbours[i]);
    report_json_close(json, ']');
    report_json_open(json, "devices", '[');
    for (int i = 0; i < SG_DEVICE_ROOM; i++) {
        const struct report_device *device = &machine->device[i];
        if (!device->is_known)
            continue;
        report_json_open(json, NULL, '{');
        report_json_integer(json, "index", i);
        report_json_text(json, "name", device->name);
        report_json_bytes(json, "total_bytes", device->total_bytes);
        report_json_bytes(json, "live_bytes", device->live_bytes);
        report_json_bytes(json, "reserve_bytes", device->reserve_bytes);
        report_json_close(json, '}');
    }
    report_json_close(json, ']');
    report_json_close(json, '}');
}

static void put_text(void *json, const char *key, const char *text)
{
    if (text != NULL)
        report_json_text(json, key, text);
    else
        report_json_null(json, key);
}

static void put_number(void *json, const char *key, uint64_t number)
{
    report_json_bytes(json, key, number);
}

static void put_time(void *json, const char *key, int64_t time_ns)
{
    report_json_time(json, key, time_ns);
}

static void put_flag(void *json, const char *key, bool is_set)
{
    report_json_bool(json, key, is_set);
}

static struct report_fields fields_into(struct report_json *json)
{
    return (struct report_fields){put_text, put_number, put_time, put_flag, json};
}

static void put_domains(struct report_json *json, const struct report_process *process)
{
    const struct report_fields fields = fields_into(json);
    report_json_open(json, "domains", '{');
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        report_json_open(json, report_domain_name[i], '{');
        report_domain_fields(&process->domain[i], &fields);
        report_json_close(json, '}');
    }
    report_json_close(json, '}');
    report_json_open(json, "peak_domains", '{');
    for (int i = 0; i < SG_DOMAIN_COUNT; i++)
        report_json_bytes(json, report_domain_name[i], process->domain[i].at_peak_bytes);
    report_json_close(json, '}');
}

static void put_rings(struct report_json *json, const struct report_process *process)
{
    report_json_open(json, "refusals", '[');
    for (size_t i = 0; i < process->refusal_count; i++) {
        const struct report_refusal *refusal = &process->refusals[i];
        report_json_open(json, NULL, '{');
        report_json_time(json, "time", refusal->time_ns);
        report_json_text(json, "call", refusal->call);
        report_json_text(json, "domain", report_domain_name[refusal->domain]);
        report_json_bytes(json, "size_bytes", refusal->size_bytes);
        report_json_text(json, "reason", report_reason_name[refusal->reason]);
        report_json_bytes(json, "usable_bytes", refusal->usable_bytes);
        report_json_close(json, '}');
    }
    report_json_close(json, ']');
    report_json_open(json, "phases", '[');
    for (size_t i = 0; i < process->phase_count; i++) {
        const struct report_phase *phase = &process->phases[i];
        report_json_open(json, NULL, '{');
        report_json_text(json, "name", phase->name);
        report_json_time(json, "time", phase->time_ns);
        report_json_bytes(json, "live_bytes", phase->live_bytes);
        report_json_bytes(json, "peak_bytes", phase->peak_bytes);
        report_json_close(json, '}');
    }
    report_json_close(json, ']');
    report_json_open(json, "events", '[');
    for (size_t i = 0; i < process->event_count; i++) {
        report_json_open(json, NULL, '{');
        report_json_time(json, "time", process->events[i].time_ns);
        report_json_text(json, "what", process->events[i].what);
        report_json_close(json, '}');
    }
    report_json_close(json, ']');
}

static void put_place(struct report_json *json, const struct report_site *site)
{
    if (site->is_named)
        report_json_text(json, "library", site->library);
    else
        report_json_null(json, "library");
    report_json_bytes(json, "offset", site->is_named ? site->offset : SG_UNKNOWN);
    if (site->domain >= 0)
        report_json_text(json, "domain", report_domain_name[site->domain]);
    else
        report_json_null(json, "domain");
}

static void put_sites(struct report_json *json, const struct report_process *process)
{
    report_json_open(json, "blocks", '[');
    for (size_t i = 0; i < process->site_count; i++) {
        const struct report_site *site = &process->sites[i];
        if (site->live_bytes == 0)
            continue;
        report_json_open(json, NULL, '{');
        put_place(json, site);
        report_json_bytes(json, "bytes", site->live_bytes);
        report_json_bytes(json, "count", site->live_count);
        report_json_bytes(json, "peak_bytes", site->peak_bytes);
        report_json_close(json, '}');
    }
    report_json_close(json, ']');
}

/* The bytes of the call sites at one moment: the process's peak, or its last refusal. */
static void put_sites_then(struct report_json *json, const struct report_process *process, const char *key,
                           bool is_refusal)
{
    report_json_open(json, key, '[');
    for (size_t i = 0; i < process->site_count; i++) {
        const struct report_site *site = &process->sites[i];
        uint64_t bytes = is_refusal ? site->at_refusal_bytes : site->at_peak_bytes;
        if (bytes == 0)
            continue;
        report_json_open(json, NULL, '{');
        put_place(json, site);
        report_json_bytes(json, "bytes", bytes);
        report_json_close(json, '}');
    }
    report_json_close(json, ']');
}

static void put_process(struct report_json *json, const struct report_process *process)
{
    report_json_open(json, NULL, '{');
    const struct report_fields fields = fields_into(json);
    report_process_fields(process, &fields);
    put_domains(json, process);
    put_sites(json, process);
    put_sites_then(json, process, "blocks_at_peak", false);
    put_sites_then(json, process, "blocks_at_refusal", true);
    put_rings(json, process);
    report_json_close(json, '}');
}

static void put_runs(struct report_json *json, const struct report_job *job)
{
    report_json_open(json, "runs", '[');
    for (size_t i = 0; i < job->run_count; i++) {
        const struct report_run *run = &job->runs[i];
        report_json_open(json, NULL, '{');
        report_json_integer(json, "run", (int)i + 1);
        report_json_time(json, "started", run->started_ns);
        report_json_time(json, "last_seen", run->last_seen_ns);
        report_json_bytes(json, "limit_bytes", run->limit_bytes);
        report_json_bytes(json, "peak_bytes", run->peak_bytes);
        report_json_bytes(json, "refused_count", run->refused_count);
        report_json_bytes(json, "process_count", run->process_count);
        report_json_close(json, '}');
    }
    report_json_close(json, ']');
}

void report_render_json(const struct report *report, FILE *stream)
{
    struct report_json json = {.stream = stream};
    const struct report_job *job;
    const struct report_process *process;
    report_json_open(&json, NULL, '{');
    report_json_integer(&json, "schema", 1);
    put_machine(&json, report);
    report_json_open(&json, "jobs", '[');
    DL_FOREACH (report->jobs, job) {
        report_json_open(&json, NULL, '{');
        report_json_text(&json, "job", job->name);
        report_json_text(&json, "directory", job->directory);
        report_json_bytes(&json, "limit_bytes", job->limit_bytes);
        report_json_bytes(&json, "live_bytes", job->live_bytes);
        report_json_bytes(&json, "peak_bytes", job->peak_bytes);
        put_runs(&json, job);
        report_json_open(&json, "processes", '[');
        DL_FOREACH (job->processes, process)
            put_process(&json, process);
        report_json_close(&json, ']');
        report_json_close(&json, '}');
    }
    report_json_close(&json, ']');
    report_json_open(&json, "unguarded", '[');
    for (size_t i = 0; i < report->unguarded_count; i++) {
        report_json_open(&json, NULL, '{');
        report_json_integer(&json, "pid", report->unguarded[i].pid);
        report_json_text(&json, "command", report->unguarded[i].command);
        report_json_bytes(&json, "resident_bytes", report->unguarded[i].resident_bytes);
        report_json_close(&json, '}');
    }
    report_json_close(&json, ']');
    report_json_close(&json, '}');
}
