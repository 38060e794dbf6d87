/*
 * layout.c - prints the layout of sparkguard_abi.h as JSON, so that segment.py writes what the compiler reads.
 */
#include <stdio.h>

#include "sparkguard_abi.h"

#define FIELD(type, member) \
    printf("  \"%s.%s\": [%zu, %zu],\n", #type, #member, offsetof(struct type, member), \
           sizeof(((struct type *)0)->member))

int main(void)
{
    puts("{");
    printf("  \"abi_version\": [%u, 4],\n", SG_ABI_VERSION);
    FIELD(sg_segment, slot.magic);
    FIELD(sg_segment, slot.abi_version);
    FIELD(sg_segment, slot.pid);
    FIELD(sg_segment, slot.job_hash);
    FIELD(sg_segment, slot.start_ticks);
    FIELD(sg_segment, slot.granted_bytes);
    FIELD(sg_segment, slot.promised_bytes);
    FIELD(sg_segment, slot.in_flight_bytes);
    FIELD(sg_segment, slot.live_bytes);
    FIELD(sg_segment, slot.inherited_bytes);
    FIELD(sg_segment, slot.limit_bytes);
    FIELD(sg_segment, slot.state);
    FIELD(sg_segment, slot.flags);
    FIELD(sg_segment, segment_bytes);
    FIELD(sg_segment, record_capacity);
    FIELD(sg_segment, record_used);
    FIELD(sg_segment, parent_pid);
    FIELD(sg_segment, started_time_ns);
    FIELD(sg_segment, seen_time_ns);
    FIELD(sg_segment, oom);
    FIELD(sg_segment, pid_namespace);
    FIELD(sg_segment, container);
    FIELD(sg_segment, ended_time_ns);
    FIELD(sg_segment, exit_code);
    FIELD(sg_segment, signal);
    FIELD(sg_segment, library_version);
    FIELD(sg_segment, job);
    FIELD(sg_segment, command);
    FIELD(sg_segment, machine);
    FIELD(sg_segment, device);
    FIELD(sg_segment, domain);
    FIELD(sg_segment, peak_seen_bytes);
    FIELD(sg_segment, peak_index);
    FIELD(sg_segment, peak);
    FIELD(sg_segment, unmatched_frees);
    FIELD(sg_segment, faults);
    FIELD(sg_segment, registered_bytes);
    FIELD(sg_segment, sparse_resident_bytes);
    FIELD(sg_segment, inherited_domain_bytes);
    FIELD(sg_segment, unaccounted_bytes);
    FIELD(sg_segment, saved_time_ns);
    FIELD(sg_segment, boot_id);
    FIELD(sg_segment, refusal_count);
    FIELD(sg_segment, phase_count);
    FIELD(sg_segment, phase_peak_bytes);
    FIELD(sg_segment, job_peak_bytes);
    FIELD(sg_segment, event_count);
    FIELD(sg_segment, refusal);
    FIELD(sg_segment, phase);
    FIELD(sg_segment, event);
    FIELD(sg_segment, site);
    FIELD(sg_segment, sites_peak_state);
    FIELD(sg_segment, run);
    FIELD(sg_callsite, key);
    FIELD(sg_callsite, live_bytes);
    FIELD(sg_callsite, live_count);
    FIELD(sg_callsite, peak_bytes);
    FIELD(sg_callsite, offset);
    FIELD(sg_callsite, is_named);
    FIELD(sg_callsite, library);
    FIELD(sg_callsite, at_peak_bytes);
    FIELD(sg_callsite, at_refusal_bytes);
    FIELD(sg_machine, time_ns);
    FIELD(sg_machine, usable_bytes);
    FIELD(sg_machine, reserve_bytes);
    FIELD(sg_machine, floor_bytes);
    FIELD(sg_machine, cgroup_limit_bytes);
    FIELD(sg_machine, unified);
    FIELD(sg_machine, driver_facts);
    FIELD(sg_segment, file);
    FIELD(sg_segment, slot.inherited_promise_bytes);
    FIELD(sg_segment, origin);
    FIELD(sg_segment, inherited_shared_bytes);
    FIELD(sg_registry_entry, file);
    FIELD(sg_registry_entry, file_bytes);
    FIELD(sg_registry_entry, origin);
    FIELD(sg_memory_file, begin);
    FIELD(sg_memory_file, end);
    FIELD(sg_memory_file, missing_bytes);
    FIELD(sg_origin, claim);
    FIELD(sg_origin, bytes);
    FIELD(sg_origin, entry);
    FIELD(sg_origin, pid);
    FIELD(sg_device, total_bytes);
    FIELD(sg_device, live_bytes);
    FIELD(sg_device, is_known);
    FIELD(sg_device, reserve_mib);
    FIELD(sg_device, name);
    FIELD(sg_domain_counters, granted_bytes);
    FIELD(sg_domain_counters, peak_bytes);
    FIELD(sg_domain_counters, allocations);
    FIELD(sg_domain_counters, frees);
    FIELD(sg_domain_counters, refused_count);
    FIELD(sg_domain_counters, refused_bytes);
    FIELD(sg_peak, time_ns);
    FIELD(sg_peak, total_bytes);
    FIELD(sg_peak, domain_bytes);
    FIELD(sg_refusal, sequence);
    FIELD(sg_refusal, time_ns);
    FIELD(sg_refusal, size_bytes);
    FIELD(sg_refusal, usable_bytes);
    FIELD(sg_refusal, domain);
    FIELD(sg_refusal, reason);
    FIELD(sg_refusal, kept_mib);
    FIELD(sg_refusal, call);
    FIELD(sg_phase, sequence);
    FIELD(sg_phase, time_ns);
    FIELD(sg_phase, live_bytes);
    FIELD(sg_phase, peak_bytes);
    FIELD(sg_phase, name);
    FIELD(sg_event, sequence);
    FIELD(sg_event, time_ns);
    FIELD(sg_event, what);
    FIELD(sg_timeline, magic);
    FIELD(sg_timeline, version);
    FIELD(sg_timeline, sample_count);
    FIELD(sg_timeline, interval_ns);
    FIELD(sg_timeline, sample);
    FIELD(sg_sample, time_ns);
    FIELD(sg_sample, usable_bytes);
    FIELD(sg_sample, reserve_bytes);
    FIELD(sg_sample, floor_bytes);
    FIELD(sg_sample, live_bytes);
    FIELD(sg_record, credit_bytes);
    FIELD(sg_record, allocations);
    FIELD(sg_record, frees);
#define SG_DOMAIN(ID, name, help) printf("  \"domain.%s\": [%d, 1],\n", #name, SG_DOMAIN_##ID);
#include "domains.def"
#undef SG_DOMAIN
    printf("  \"ledger.bytes\": [0, %zu],\n", SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry)));
    printf("  \"sizeof.sg_memory_file\": [0, %zu],\n", sizeof(struct sg_memory_file));
    printf("  \"sizeof.sg_origin\": [0, %zu],\n", sizeof(struct sg_origin));
    printf("  \"sizeof.sg_device\": [0, %zu],\n", sizeof(struct sg_device));
    printf("  \"sizeof.sg_domain_counters\": [0, %zu],\n", sizeof(struct sg_domain_counters));
    printf("  \"sizeof.sg_peak\": [0, %zu],\n", sizeof(struct sg_peak));
    printf("  \"sizeof.sg_refusal\": [0, %zu],\n", sizeof(struct sg_refusal));
    printf("  \"sizeof.sg_phase\": [0, %zu],\n", sizeof(struct sg_phase));
    printf("  \"sizeof.sg_event\": [0, %zu],\n", sizeof(struct sg_event));
    printf("  \"sizeof.sg_timeline\": [0, %zu],\n", sizeof(struct sg_timeline));
    printf("  \"sizeof.sg_sample\": [0, %zu],\n", sizeof(struct sg_sample));
    printf("  \"sizeof.sg_callsite\": [0, %zu],\n", sizeof(struct sg_callsite));
    printf("  \"sizeof.sg_record\": [0, %zu],\n", sizeof(struct sg_record));
    printf("  \"sizeof.sg_segment\": [0, %zu]\n", sizeof(struct sg_segment));
    puts("}");
    return 0;
}
