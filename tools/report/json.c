/*
 * json.c - prints the model in the format that scripts rely on ("schema": 1). Every key is always present; unknown is
 * null.
 */
#include "common/json.h"
#include "model/fields.h"
#include "report/report.h"

static void put_machine(struct json *json, const struct model *model)
{
    const struct model_machine *machine = &model->machine;
    json_open(json, "machine", '{');
    if (machine->unified < 0)
        json_null(json, "unified");
    else
        json_bool(json, "unified", machine->unified == 1);
    json_bytes(json, "total_bytes", machine->total_bytes);
    json_bytes(json, "available_bytes", machine->available_bytes);
    json_bytes(json, "usable_bytes", machine->usable_bytes);
    json_bytes(json, "reserve_bytes", machine->reserve_bytes);
    json_bytes(json, "floor_bytes", machine->floor_bytes);
    json_bytes(json, "promised_bytes", machine->promised_bytes);
    json_bytes(json, "swap_total_bytes", machine->swap_total_bytes);
    json_bytes(json, "swap_used_bytes", machine->swap_used_bytes);
    json_bytes(json, "unaccounted_bytes", machine->unaccounted_bytes);
    json_bytes(json, "cgroup_limit_bytes", machine->cgroup_limit_bytes);
    json_bool(json, "sharing", machine->is_sharing);
    json_open(json, "not_counted", '[');
    for (size_t i = 0; i < MODEL_OTHER_DIRECTORY_CAPACITY && model->other_directories[i] != NULL; i++)
        json_text(json, NULL, model->other_directories[i]);
    json_close(json, ']');
    json_open(json, "devices", '[');
    for (int i = 0; i < SG_DEVICE_CAPACITY; i++) {
        const struct model_device *device = &machine->device[i];
        if (!device->is_known)
            continue;
        json_open(json, NULL, '{');
        json_integer(json, "index", i);
        json_text(json, "name", device->name);
        json_bytes(json, "total_bytes", device->total_bytes);
        json_bytes(json, "live_bytes", device->live_bytes);
        json_bytes(json, "reserve_bytes", device->reserve_bytes);
        json_close(json, '}');
    }
    json_close(json, ']');
    json_close(json, '}');
}

static void put_text(void *json, const char *key, const char *text)
{
    if (text != NULL)
        json_text(json, key, text);
    else
        json_null(json, key);
}

static void put_number(void *json, const char *key, uint64_t number)
{
    json_bytes(json, key, number);
}

static void put_time(void *json, const char *key, int64_t time_ns)
{
    json_time(json, key, time_ns);
}

static void put_flag(void *json, const char *key, bool is_set)
{
    json_bool(json, key, is_set);
}

static struct model_fields fields_into(struct json *json)
{
    return (struct model_fields){put_text, put_number, put_time, put_flag, json};
}

static void put_domains(struct json *json, const struct model_process *process)
{
    const struct model_fields fields = fields_into(json);
    json_open(json, "domains", '{');
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        json_open(json, model_domain_name[i], '{');
        model_domain_fields(&process->domain[i], &fields);
        json_close(json, '}');
    }
    json_close(json, '}');
    json_open(json, "peak_domains", '{');
    for (int i = 0; i < SG_DOMAIN_COUNT; i++)
        json_bytes(json, model_domain_name[i], process->domain[i].at_peak_bytes);
    json_close(json, '}');
}

static void put_rings(struct json *json, const struct model_process *process)
{
    json_open(json, "refusals", '[');
    for (size_t i = 0; i < process->refusal_count; i++) {
        const struct model_refusal *refusal = &process->refusals[i];
        json_open(json, NULL, '{');
        json_time(json, "time", refusal->time_ns);
        json_text(json, "call", refusal->call);
        json_text(json, "domain", model_domain_name[refusal->domain]);
        json_bytes(json, "size_bytes", refusal->size_bytes);
        json_text(json, "reason", model_reason_name[refusal->reason]);
        json_bytes(json, "usable_bytes", refusal->usable_bytes);
        json_close(json, '}');
    }
    json_close(json, ']');
    json_open(json, "phases", '[');
    for (size_t i = 0; i < process->phase_count; i++) {
        const struct model_phase *phase = &process->phases[i];
        json_open(json, NULL, '{');
        json_text(json, "name", phase->name);
        json_time(json, "time", phase->time_ns);
        json_bytes(json, "live_bytes", phase->live_bytes);
        json_bytes(json, "peak_bytes", phase->peak_bytes);
        json_close(json, '}');
    }
    json_close(json, ']');
    json_open(json, "events", '[');
    for (size_t i = 0; i < process->event_count; i++) {
        json_open(json, NULL, '{');
        json_time(json, "time", process->events[i].time_ns);
        json_text(json, "what", process->events[i].what);
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void put_place(struct json *json, const struct model_site *site)
{
    if (site->is_named)
        json_text(json, "library", site->library);
    else
        json_null(json, "library");
    json_bytes(json, "offset", site->is_named ? site->offset : SG_UNKNOWN);
    if (site->domain >= 0)
        json_text(json, "domain", model_domain_name[site->domain]);
    else
        json_null(json, "domain");
}

static void put_sites(struct json *json, const struct model_process *process)
{
    json_open(json, "blocks", '[');
    for (size_t i = 0; i < process->site_count; i++) {
        const struct model_site *site = &process->sites[i];
        if (site->live_bytes == 0)
            continue;
        json_open(json, NULL, '{');
        put_place(json, site);
        json_bytes(json, "bytes", site->live_bytes);
        json_bytes(json, "count", site->live_count);
        json_bytes(json, "peak_bytes", site->peak_bytes);
        json_close(json, '}');
    }
    json_close(json, ']');
}

/* Prints the bytes of the call sites at one moment: the process's peak or its last refusal. */
static void put_sites_then(struct json *json, const struct model_process *process, const char *key, bool is_refusal)
{
    json_open(json, key, '[');
    for (size_t i = 0; i < process->site_count; i++) {
        const struct model_site *site = &process->sites[i];
        uint64_t bytes = is_refusal ? site->at_refusal_bytes : site->at_peak_bytes;
        if (bytes == 0)
            continue;
        json_open(json, NULL, '{');
        put_place(json, site);
        json_bytes(json, "bytes", bytes);
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void put_process(struct json *json, const struct model_process *process)
{
    json_open(json, NULL, '{');
    const struct model_fields fields = fields_into(json);
    model_process_fields(process, &fields);
    put_domains(json, process);
    put_sites(json, process);
    put_sites_then(json, process, "blocks_at_peak", false);
    put_sites_then(json, process, "blocks_at_refusal", true);
    put_rings(json, process);
    json_close(json, '}');
}

static void put_runs(struct json *json, const struct model_job *job)
{
    json_open(json, "runs", '[');
    for (size_t i = 0; i < job->run_count; i++) {
        const struct model_run *run = &job->runs[i];
        json_open(json, NULL, '{');
        json_integer(json, "run", (int)i + 1);
        json_time(json, "started", run->started_ns);
        json_time(json, "last_seen", run->last_seen_ns);
        json_bytes(json, "limit_bytes", run->limit_bytes);
        json_bytes(json, "peak_bytes", run->peak_bytes);
        json_bytes(json, "refused_count", run->refused_count);
        json_bytes(json, "process_count", run->process_count);
        json_close(json, '}');
    }
    json_close(json, ']');
}

void report_render_json(const struct model *model, FILE *stream)
{
    struct json json = {.stream = stream};
    const struct model_job *job;
    const struct model_process *process;
    json_open(&json, NULL, '{');
    json_integer(&json, "schema", 1);
    put_machine(&json, model);
    json_open(&json, "jobs", '[');
    DL_FOREACH (model->jobs, job) {
        json_open(&json, NULL, '{');
        json_text(&json, "job", job->name);
        json_text(&json, "directory", job->directory);
        json_bytes(&json, "limit_bytes", job->limit_bytes);
        json_bytes(&json, "live_bytes", job->live_bytes);
        json_bytes(&json, "peak_bytes", job->peak_bytes);
        put_runs(&json, job);
        json_open(&json, "processes", '[');
        DL_FOREACH (job->processes, process)
            put_process(&json, process);
        json_close(&json, ']');
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_open(&json, "unguarded", '[');
    for (size_t i = 0; i < model->unguarded_count; i++) {
        json_open(&json, NULL, '{');
        json_integer(&json, "pid", model->unguarded[i].pid);
        json_text(&json, "command", model->unguarded[i].command);
        json_bytes(&json, "resident_bytes", model->unguarded[i].resident_bytes);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_close(&json, '}');
}
