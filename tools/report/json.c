/*
 * json.c - prints the model in the format that scripts rely on ("schema": 1). Every key is always present; unknown is
 * null.
 */
#include "common/json.h"
#include "model/fields.h"
#include "report/report.h"
#include "sparkguard_bounds.h"

static json_t *device_of(const struct model_device *device, int index)
{
    json_t *object = json_object();
    json_object_set_new(object, "index", json_integer(index));
    json_object_set_new(object, "name", json_of_text(device->name));
    json_object_set_new(object, "total_bytes", json_of_number(device->total_bytes));
    json_object_set_new(object, "live_bytes", json_of_number(device->live_bytes));
    json_object_set_new(object, "reserve_bytes", json_of_number(device->reserve_bytes));
    return object;
}

static json_t *told_of(const struct model_told *told)
{
    json_t *object = json_object();
    json_object_set_new(object, "name", json_of_text(told->name));
    json_object_set_new(object, "limit_bytes", json_of_number(told->limit_bytes));
    json_object_set_new(object, "live_bytes", json_of_number(told->live_bytes));
    json_object_set_new(object, "promised_bytes", json_of_number(told->promised_bytes));
    return object;
}

static json_t *machine_of(const struct model *model)
{
    const struct model_machine *machine = &model->machine;
    json_t *object = json_object(), *not_counted = json_array(), *devices = json_array(), *told = json_array();
    json_object_set_new(object, "unified", machine->unified < 0 ? json_null() : json_boolean(machine->unified));
    json_object_set_new(object, "total_bytes", json_of_number(machine->total_bytes));
    json_object_set_new(object, "available_bytes", json_of_number(machine->available_bytes));
    json_object_set_new(object, "usable_bytes", json_of_number(machine->usable_bytes));
    json_object_set_new(object, "device_room_bytes", json_of_number(machine->device_room_bytes));
    json_object_set_new(object, "reserve_bytes", json_of_number(machine->reserve_bytes));
    json_object_set_new(object, "floor_bytes", json_of_number(machine->floor_bytes));
    json_object_set_new(object, "promised_bytes", json_of_number(machine->promised_bytes));
    json_object_set_new(object, "claimed_bytes", json_of_number(machine->claimed_bytes));
    json_object_set_new(object, "swap_total_bytes", json_of_number(machine->swap_total_bytes));
    json_object_set_new(object, "swap_used_bytes", json_of_number(machine->swap_used_bytes));
    json_object_set_new(object, "unaccounted_bytes", json_of_number(machine->unaccounted_bytes));
    json_object_set_new(object, "cgroup_limit_bytes", json_of_number(machine->cgroup_limit_bytes));
    json_object_set_new(object, "sharing", json_boolean(machine->is_sharing));
    json_object_set_new(object, "not_counted", not_counted);
    for (size_t i = 0; i < MODEL_OTHER_DIRECTORY_CAPACITY && model->other_directories[i] != NULL; i++)
        json_array_append_new(not_counted, json_of_text(model->other_directories[i]));
    json_object_set_new(object, "devices", devices);
    for (int i = 0; i < SG_DEVICE_CAPACITY; i++)
        if (machine->device[i].is_known)
            json_array_append_new(devices, device_of(&machine->device[i], i));
    json_object_set_new(object, "containers", told);
    for (size_t i = 0; i < model->told_count && i < MODEL_TOLD_CAPACITY; i++)
        json_array_append_new(told, told_of(&model->told[i]));
    return object;
}

static void set_text(void *object, const char *key, const char *text)
{
    json_object_set_new(object, key, json_of_text(text));
}

static void set_number(void *object, const char *key, uint64_t number)
{
    json_object_set_new(object, key, json_of_number(number));
}

static void set_time(void *object, const char *key, int64_t time_ns)
{
    json_object_set_new(object, key, json_of_time(time_ns));
}

static void set_flag(void *object, const char *key, bool is_set)
{
    json_object_set_new(object, key, json_boolean(is_set));
}

static struct model_fields fields_into(json_t *object)
{
    return (struct model_fields){set_text, set_number, set_time, set_flag, object};
}

static json_t *domains_of(const struct model_process *process)
{
    json_t *domains = json_object();
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        json_t *domain = json_object();
        const struct model_fields fields = fields_into(domain);
        model_domain_fields(&process->domain[i], &fields);
        json_object_set_new(domains, model_domain_name[i], domain);
    }
    return domains;
}

static json_t *peak_domains_of(const struct model_process *process)
{
    json_t *domains = json_object();
    for (int i = 0; i < SG_DOMAIN_COUNT; i++)
        json_object_set_new(domains, model_domain_name[i], json_of_number(process->domain[i].at_peak_bytes));
    return domains;
}

static json_t *driver_facts_of(const struct model_process *process)
{
    json_t *facts = json_object();
    const struct model_fields fields = fields_into(facts);
    model_driver_fields(process, &fields);
    return facts;
}

static json_t *refusals_of(const struct model_process *process)
{
    json_t *refusals = json_array();
    for (size_t i = 0; i < process->refusal_count; i++) {
        const struct model_refusal *refusal = &process->refusals[i];
        json_t *object = json_object();
        json_object_set_new(object, "time", json_of_time(refusal->time_ns));
        json_object_set_new(object, "call", json_of_text(refusal->call));
        json_object_set_new(object, "domain", json_of_text(model_domain_name[refusal->domain]));
        json_object_set_new(object, "size_bytes", json_of_number(refusal->size_bytes));
        json_object_set_new(object, "reason", json_of_text(model_reason_name[refusal->reason]));
        json_object_set_new(object, "usable_bytes", json_of_number(refusal->usable_bytes));
        json_object_set_new(object, "missing_bytes", json_of_number(model_missing_bytes(process, refusal)));
        json_array_append_new(refusals, object);
    }
    return refusals;
}

static json_t *phases_of(const struct model_process *process)
{
    json_t *phases = json_array();
    for (size_t i = 0; i < process->phase_count; i++) {
        const struct model_phase *phase = &process->phases[i];
        json_t *object = json_object();
        json_object_set_new(object, "name", json_of_text(phase->name));
        json_object_set_new(object, "time", json_of_time(phase->time_ns));
        json_object_set_new(object, "live_bytes", json_of_number(phase->live_bytes));
        json_object_set_new(object, "peak_bytes", json_of_number(phase->peak_bytes));
        json_array_append_new(phases, object);
    }
    return phases;
}

static json_t *events_of(const struct model_process *process)
{
    json_t *events = json_array();
    for (size_t i = 0; i < process->event_count; i++) {
        json_t *object = json_object();
        json_object_set_new(object, "time", json_of_time(process->events[i].time_ns));
        json_object_set_new(object, "what", json_of_text(process->events[i].what));
        json_array_append_new(events, object);
    }
    return events;
}

static json_t *place_of(const struct model_site *site)
{
    json_t *object = json_object();
    json_object_set_new(object, "library", json_of_text(site->is_named ? site->library : NULL));
    json_object_set_new(object, "offset", json_of_number(site->is_named ? site->offset : SG_UNKNOWN));
    json_object_set_new(object, "domain", json_of_text(site->domain >= 0 ? model_domain_name[site->domain] : NULL));
    return object;
}

static json_t *sites_of(const struct model_process *process)
{
    json_t *sites = json_array();
    for (size_t i = 0; i < process->site_count; i++) {
        const struct model_site *site = &process->sites[i];
        if (site->live_bytes == 0)
            continue;
        json_t *object = place_of(site);
        json_object_set_new(object, "bytes", json_of_number(site->live_bytes));
        json_object_set_new(object, "count", json_of_number(site->live_count));
        json_object_set_new(object, "peak_bytes", json_of_number(site->peak_bytes));
        json_array_append_new(sites, object);
    }
    return sites;
}

/* Returns the bytes of the call sites at one moment: the process's peak or its last refusal. */
static json_t *sites_then(const struct model_process *process, bool is_refusal)
{
    json_t *sites = json_array();
    for (size_t i = 0; i < process->site_count; i++) {
        const struct model_site *site = &process->sites[i];
        uint64_t bytes = is_refusal ? site->at_refusal_bytes : site->at_peak_bytes;
        if (bytes == 0)
            continue;
        json_t *object = place_of(site);
        json_object_set_new(object, "bytes", json_of_number(bytes));
        json_array_append_new(sites, object);
    }
    return sites;
}

static json_t *process_of(const struct model_process *process)
{
    json_t *object = json_object();
    const struct model_fields fields = fields_into(object);
    model_process_fields(process, &fields);
    json_object_set_new(object, "domains", domains_of(process));
    json_object_set_new(object, "peak_domains", peak_domains_of(process));
    json_object_set_new(object, "driver_facts", driver_facts_of(process));
    json_object_set_new(object, "blocks", sites_of(process));
    json_object_set_new(object, "blocks_at_peak", sites_then(process, false));
    json_object_set_new(object, "blocks_at_refusal", sites_then(process, true));
    json_object_set_new(object, "refusals", refusals_of(process));
    json_object_set_new(object, "phases", phases_of(process));
    json_object_set_new(object, "events", events_of(process));
    return object;
}

static void add_verdict(json_t *object, const struct model_job_verdict *verdict)
{
    json_object_set_new(object, "verdict", json_of_text(verdict->text));
    json_object_set_new(object, "verdict_code", json_of_text(model_verdict_code_name[verdict->code]));
}

static json_t *runs_of(const struct model_job *job)
{
    json_t *runs = json_array();
    for (size_t i = 0; i < job->run_count; i++) {
        const struct model_run *run = &job->runs[i];
        json_t *object = json_object();
        json_object_set_new(object, "run", json_of_number(i + 1));
        json_object_set_new(object, "started", json_of_time(run->started_ns));
        json_object_set_new(object, "last_seen", json_of_time(run->last_seen_ns));
        json_object_set_new(object, "limit_bytes", json_of_number(run->limit_bytes));
        json_object_set_new(object, "peak_bytes", json_of_number(run->peak_bytes));
        json_object_set_new(object, "refused_count", json_of_number(run->refused_count));
        json_object_set_new(object, "process_count", json_of_number(run->process_count));
        add_verdict(object, &run->verdict);
        json_array_append_new(runs, object);
    }
    return runs;
}

static void add_claims(json_t *object, const struct model *model, const struct model_job *job)
{
    const struct model_job_claims claims = model_claims_of(&model->claims, job);
    json_object_set_new(object, "claimed_bytes", json_of_number(claims.bytes));
    json_object_set_new(object, "claim_left_bytes", json_of_number(claims.rest_bytes));
    json_object_set_new(object, "claim_state", json_of_text(model_claims_state(&claims)));
    json_object_set_new(object, "queue_position",
                        claims.queue_position != 0 ? json_of_number(claims.queue_position) : json_null());
    json_object_set_new(object, "share", json_of_number(claims.share));
}

static void add_settings(json_t *object, const struct model *model, const struct model_job *job)
{
    const struct model_setting set = model_claims_setting_of(&model->claims, job);
    char *user = set.directory != NULL ? host_user_name((uid_t)set.user) : NULL;
    bool is_limit = set.limit_bytes != 0 && set.limit_bytes != SG_UNKNOWN;
    json_object_set_new(object, "set_limit_bytes", is_limit ? json_of_number(set.limit_bytes) : json_null());
    json_object_set_new(object, "set_reserve_bytes",
                        set.reserve_bytes != 0 ? json_of_number(set.reserve_bytes) : json_null());
    json_object_set_new(object, "set_by", json_of_text(user));
    bool is_bounded = job->is_limit_bound || job->is_reserve_bound;
    json_object_set_new(object, "bounded_by", json_of_text(is_bounded ? SG_BOUNDS_FILE : NULL));
    json_object_set_new(object, "limit_bounded_by", json_of_text(job->is_limit_bound ? SG_BOUNDS_FILE : NULL));
}

static json_t *job_of(const struct model *model, const struct model_job *job)
{
    const struct model_process *process;
    json_t *object = json_object(), *processes = json_array();
    json_object_set_new(object, "job", json_of_text(job->name));
    json_object_set_new(object, "directory", json_of_text(job->directory));
    json_object_set_new(object, "limit_bytes", json_of_number(job->limit_bytes));
    json_object_set_new(object, "live_bytes", json_of_number(job->live_bytes));
    json_object_set_new(object, "peak_bytes", json_of_number(job->peak_bytes));
    add_claims(object, model, job);
    add_settings(object, model, job);
    add_verdict(object, &job->runs[job->run_count - 1].verdict);
    json_object_set_new(object, "runs", runs_of(job));
    json_object_set_new(object, "processes", processes);
    DL_FOREACH (job->processes, process)
        json_array_append_new(processes, process_of(process));
    return object;
}

static json_t *unguarded_of(const struct model_unguarded *unguarded)
{
    json_t *object = json_object();
    json_object_set_new(object, "pid", json_of_number(unguarded->pid));
    char *user = host_user_name(unguarded->user);
    json_object_set_new(object, "command", json_of_text(unguarded->command));
    json_object_set_new(object, "user", json_of_text(user));
    json_object_set_new(object, "container", json_of_text(unguarded->container));
    json_object_set_new(object, "resident_bytes", json_of_number(unguarded->resident_bytes));
    json_object_set_new(object, "device_bytes", json_of_number(unguarded->device_bytes));
    json_object_set_new(object, "reason", json_of_text(unguarded->reason));
    return object;
}

static json_t *unguarded_container_of(const struct model_unguarded_container *container)
{
    json_t *object = json_object();
    char *user = host_user_name(container->user);
    json_object_set_new(object, "container", json_of_text(container->name));
    json_object_set_new(object, "id", json_of_text(container->id));
    json_object_set_new(object, "user", json_of_text(user));
    json_object_set_new(object, "process_count", json_of_number(container->process_count));
    json_object_set_new(object, "resident_bytes", json_of_number(container->resident_bytes));
    json_object_set_new(object, "device_bytes", json_of_number(container->device_bytes));
    json_object_set_new(object, "reason", json_of_text(container->reason));
    return object;
}

void report_render_json(const struct model *model, FILE *stream)
{
    const struct model_job *job;
    json_t *root = json_object(), *jobs = json_array(), *unguarded = json_array(), *containers = json_array();
    json_object_set_new(root, "schema", json_integer(1));
    json_object_set_new(root, "machine", machine_of(model));
    json_object_set_new(root, "jobs", jobs);
    DL_FOREACH (model->jobs, job)
        json_array_append_new(jobs, job_of(model, job));
    json_object_set_new(root, "unguarded", unguarded);
    for (size_t i = 0; i < model->unguarded_count; i++)
        json_array_append_new(unguarded, unguarded_of(&model->unguarded[i]));
    json_object_set_new(root, "unguarded_containers", containers);
    for (size_t i = 0; i < model->unguarded_container_count; i++)
        json_array_append_new(containers, unguarded_container_of(&model->unguarded_containers[i]));
    json_print(root, stream);
}
