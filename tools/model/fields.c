/*
 * fields.c - see fields.h.
 */
#include "model/fields.h"

void model_process_fields(const struct model_process *process, const struct model_fields *fields)
{
    void *out = fields->out;
    fields->number(out, "pid", process->pid);
    fields->number(out, "parent_pid", process->parent_pid == 0 ? SG_UNKNOWN : process->parent_pid);
    fields->number(out, "start_ticks", process->start_ticks);
    fields->number(out, "run", process->run + 1);
    fields->text(out, "command", process->command);
    char *user = host_user_name(process->user);
    fields->text(out, "user", user);
    fields->text(out, "container", process->container);
    fields->number(out, "host_pid", process->host_pid == 0 ? SG_UNKNOWN : process->host_pid);
    fields->text(out, "state", model_state_name[process->state]);
    fields->time(out, "started", process->started_ns);
    fields->time(out, "ended", process->ended_ns);
    fields->time(out, "last_seen", process->last_seen_ns);
    fields->flag(out, "guarding", process->is_guarding);
    fields->text(out, "mode", process->is_observing ? "observe" : "enforce");
    fields->flag(out, "sharing", process->is_sharing);
    fields->flag(out, "watched", process->is_watched);
    fields->number(out, "exit_code", process->exit_code < 0 ? SG_UNKNOWN : (uint64_t)process->exit_code);
    fields->number(out, "signal", process->signal == 0 ? SG_UNKNOWN : (uint64_t)process->signal);
    fields->text(out, "ended_by", process->watchdog_event != NULL ? "watchdog" : NULL);
    fields->number(out, "live_bytes", process->live_bytes);
    fields->number(out, "peak_bytes", process->peak_bytes);
    fields->time(out, "peak_time", process->peak_ns);
    fields->number(out, "promised_bytes", process->promised_bytes);
    fields->number(out, "refused_count", process->refused_count);
    fields->number(out, "refused_bytes", process->refused_bytes);
    fields->number(out, "inherited_bytes", process->inherited_bytes);
    fields->number(out, "registered_bytes", process->registered_bytes);
    fields->number(out, "sparse_resident_bytes", process->sparse_resident_bytes);
    fields->number(out, "unaccounted_bytes", process->unaccounted_bytes);
    fields->number(out, "unmatched_frees", process->unmatched_frees);
    fields->number(out, "internal_faults", process->faults);
}

void model_domain_fields(const struct model_domain *domain, const struct model_fields *fields)
{
    fields->number(fields->out, "live_bytes", domain->live_bytes);
    fields->number(fields->out, "peak_bytes", domain->peak_bytes);
    fields->number(fields->out, "allocations", domain->allocations);
    fields->number(fields->out, "frees", domain->frees);
    fields->number(fields->out, "refused_count", domain->refused_count);
}

void model_driver_fields(const struct model_process *process, const struct model_fields *fields)
{
    for (int i = 0; i < SG_DRIVER_FACT_COUNT; i++)
        fields->text(fields->out, model_driver_fact_name[i],
                     model_finding_name[sg_driver_finding(process->machine.driver_facts, (enum sg_driver_fact)i)]);
}
