/*
 * test_layout.c - the shared-memory layout, written down a second time: whoever moves a field of the frozen slot breaks
 * every other version on the machine; whoever moves another one, or lets a record grow, must raise SG_ABI_VERSION or
 * SG_REGISTRY_VERSION, add a line to the table of all versions below, and store bytes of the new version beside those
 * in tests/qualification. The lines and the bytes of the versions before stay as they are.
 */
#include "fixture.h"

#include "sparkguard_abi.h"

#include "base/compiler.h"

struct field {
    const char *name;
    size_t offset, bytes, is_offset, is_bytes;
};

#define FIELD(record, member, offset, bytes) \
    { \
#record "." #member, offset, bytes, offsetof(struct record, member), sizeof(((struct record *)0)->member) \
    }

static void check(const struct field *fields, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fields[i].offset != fields[i].is_offset || fields[i].bytes != fields[i].is_bytes)
            fail_msg("%s is at %zu, %zu bytes; it was at %zu, %zu bytes", fields[i].name, fields[i].is_offset,
                     fields[i].is_bytes, fields[i].offset, fields[i].bytes);
}

/* The sizes of every version, present or past, by which its files are read. */
static const struct {
    size_t segment_bytes; /* without records */
    size_t record_bytes, site_bytes, peak_bytes, refusal_bytes, phase_bytes, event_bytes, device_bytes, machine_bytes;
    size_t frozen_entry_bytes, entry_bytes, ledger_header_bytes;
    size_t entries;
} versions[] = {
    [2] = {31296, 64, 128, 80, 80, 96, 128, 64, 64, 512, 2176, 4096, 1024},
};

PLAIN_TEST(what_grows_has_another_version)
{
    assert_int_equal(SG_ABI_VERSION, SG_ARRAY_LENGTH(versions) - 1);
    assert_int_equal(SG_REGISTRY_VERSION, SG_ARRAY_LENGTH(versions) - 1);
    assert_int_equal(sizeof(struct sg_segment), versions[SG_ABI_VERSION].segment_bytes);
    assert_int_equal(sizeof(struct sg_record), versions[SG_ABI_VERSION].record_bytes);
    assert_int_equal(sizeof(struct sg_callsite), versions[SG_ABI_VERSION].site_bytes);
    assert_int_equal(sizeof(struct sg_peak), versions[SG_ABI_VERSION].peak_bytes);
    assert_int_equal(sizeof(struct sg_refusal), versions[SG_ABI_VERSION].refusal_bytes);
    assert_int_equal(sizeof(struct sg_phase), versions[SG_ABI_VERSION].phase_bytes);
    assert_int_equal(sizeof(struct sg_event), versions[SG_ABI_VERSION].event_bytes);
    assert_int_equal(sizeof(struct sg_device), versions[SG_ABI_VERSION].device_bytes);
    assert_int_equal(sizeof(struct sg_machine), versions[SG_ABI_VERSION].machine_bytes);
    assert_int_equal(SG_ENTRY_FROZEN_BYTES, versions[SG_REGISTRY_VERSION].frozen_entry_bytes);
    assert_int_equal(sizeof(struct sg_registry_entry), versions[SG_REGISTRY_VERSION].entry_bytes);
    assert_int_equal(sizeof(struct sg_registry), versions[SG_REGISTRY_VERSION].ledger_header_bytes);
    assert_int_equal(SG_ENTRY_CAPACITY, versions[SG_REGISTRY_VERSION].entries);
    for (size_t i = 2; i < SG_ARRAY_LENGTH(versions); i++) { /* version 1 was never released */
        assert_int_equal(SG_ENTRY_FROZEN_BYTES, versions[i].frozen_entry_bytes);
        assert_int_equal(SG_ENTRY_CAPACITY, versions[i].entries);
    }
}

PLAIN_TEST(the_slot_is_frozen_for_ever)
{
    static const struct field fields[] = {
        FIELD(sg_slot, magic, 0, 8),
        FIELD(sg_slot, abi_version, 8, 4),
        FIELD(sg_slot, pid, 12, 4),
        FIELD(sg_slot, start_ticks, 16, 8),
        FIELD(sg_slot, granted_bytes, 24, 8),
        FIELD(sg_slot, promised_bytes, 32, 8),
        FIELD(sg_slot, in_flight_bytes, 40, 8),
        FIELD(sg_slot, live_bytes, 48, 8),
        FIELD(sg_slot, inherited_bytes, 56, 8),
        FIELD(sg_slot, limit_bytes, 64, 8),
        FIELD(sg_slot, job_hash, 72, 8),
        FIELD(sg_slot, state, 80, 4),
        FIELD(sg_slot, flags, 84, 4),
        FIELD(sg_slot, device_bytes, 88, 8),
        FIELD(sg_slot, landed_count, 96, 8),
        FIELD(sg_slot, inherited_promise_bytes, 104, 8),
        FIELD(sg_slot, sparse_bytes, 112, 8),
        FIELD(sg_slot, reported_peak_bytes, 120, 8),
    };
    check(fields, SG_ARRAY_LENGTH(fields));
    assert_int_equal(sizeof(struct sg_slot), 128);
    assert_int_equal(offsetof(struct sg_segment, slot), 0);
    assert_memory_equal(&(uint64_t){SG_ABI_MAGIC}, "SPRKGARD", 8);
    assert_true(SG_STATE_RUNNING == 1 && SG_STATE_EXITED == 2 && SG_STATE_REPLACED == 3 && SG_STATE_KILLED == 4);
    assert_true(SG_SLOT_GUARDING == 1 && SG_SLOT_OBSERVE == 2 && SG_SLOT_CUDA == 4);
}

PLAIN_TEST(the_machines_ledger_is_frozen_for_ever)
{
    static const struct field fields[] = {
        FIELD(sg_registry, magic, 0, 8),
        FIELD(sg_registry, version, 8, 4),
        FIELD(sg_registry, entry_bytes, 12, 4),
        FIELD(sg_registry, entry_capacity, 16, 4),
        FIELD(sg_registry, entry_used, 20, 4),
        FIELD(sg_registry, epoch, 24, 4),
        FIELD(sg_registry, call, 28, 4),
        FIELD(sg_registry, asked_bytes, 32, 8),
        FIELD(sg_registry, waiting_until_ns, 40, 8),
        FIELD(sg_registry, context_bytes, 48, 8),
        FIELD(sg_registry, measured_context_bytes, 56, 16),
        FIELD(sg_registry, settings, 72, 8),
        FIELD(sg_registry, pool_proven_bytes, 80, 8),
        FIELD(sg_registry, returned_bytes, 88, 8),
        FIELD(sg_registry, unused, 96, 16),
        FIELD(sg_registry, unexplained_base_bytes, 112, 8),
        FIELD(sg_registry, claim_places, 120, 8),
        FIELD(sg_registry, pool_disproven_bytes, 128, 8),
        FIELD(sg_registry, listed_bytes, 136, 8),
        FIELD(sg_registry, listed_ns, 144, 8),
        FIELD(sg_registry, ended_ns, 152, 8),
        FIELD(sg_registry, dropped_ns, 160, 8),
        FIELD(sg_registry, pool_missed_ns, 168, 8),
        FIELD(sg_registry_entry, slot, 0, 128),
        FIELD(sg_registry_entry, claim, 128, 8),
        FIELD(sg_registry_entry, ticket, 136, 8),
        FIELD(sg_registry_entry, queued_bytes, 144, 8),
        FIELD(sg_registry_entry, queued_source, 152, 8),
        FIELD(sg_registry_entry, bounded_flight_bytes, 160, 8),
        FIELD(sg_registry_entry, device_flight_bytes, 168, 8),
        FIELD(sg_registry_entry, flight_device, 176, 8),
        FIELD(sg_registry_entry, published_ns, 184, 8),
        FIELD(sg_registry_entry, watched_ns, 192, 8),
        FIELD(sg_registry_entry, holds_bounded_bytes, 200, 8),
        FIELD(sg_registry_entry, holds_unbounded_bytes, 208, 8),
        FIELD(sg_registry_entry, job_run, 216, 8),
        FIELD(sg_registry_entry, ever_promised_bytes, 224, 8),
        FIELD(sg_registry_entry, pinned_bytes, 232, 8),
        FIELD(sg_registry_entry, managed_bytes, 240, 8),
        FIELD(sg_registry_entry, level, 248, 64),
        FIELD(sg_registry_entry, parent_entry, 312, 8),
        FIELD(sg_registry_entry, parent_claim, 320, 8),
        FIELD(sg_registry_entry, shared_bytes, 328, 8),
        FIELD(sg_registry_entry, unbounded_flight_bytes, 336, 8),
        FIELD(sg_registry_entry, files_version, 344, 8),
        FIELD(sg_registry_entry, pid_namespace, 352, 8),
        FIELD(sg_registry_entry, claimed_bytes, 360, 8),
        FIELD(sg_registry_entry, claim_wanted_bytes, 368, 8),
        FIELD(sg_registry_entry, claim_place, 376, 8),
        FIELD(sg_registry_entry, claim_priority, 384, 8),
        FIELD(sg_registry_entry, set_limit_bytes, 392, 8),
        FIELD(sg_registry_entry, set_reserve_bytes, 400, 8),
        FIELD(sg_registry_entry, set_user, 408, 8),
        FIELD(sg_registry_entry, pressure_bytes, 416, 8),
        FIELD(sg_registry_entry, pressure_asked, 424, 4),
        FIELD(sg_registry_entry, pressure_answered, 428, 4),
        FIELD(sg_registry_entry, claim_share, 432, 8),
        FIELD(sg_registry_entry, claim_asked_bytes, 440, 8),
        FIELD(sg_registry_entry, frozen_gap, 448, 24),
        FIELD(sg_registry_entry, shared_promised_bytes, 472, 8),
        FIELD(sg_registry_entry, unwritable_bytes, 480, 8),
        FIELD(sg_registry_entry, inherited_least_bytes, 488, 8),
        FIELD(sg_registry_entry, frozen_reserve, 496, 16),
    };
    check(fields, SG_ARRAY_LENGTH(fields));
    assert_int_equal(SG_ENTRY_FROZEN_BYTES, 512);
    assert_int_equal(offsetof(struct sg_registry, entry), 4096);
    assert_memory_equal(&(uint64_t){SG_REGISTRY_MAGIC}, "SPGLEDGR", 8);
    assert_true(SG_CLAIM_EMPTY == 0 && SG_CLAIM_LIVE == 1 && SG_CLAIM_DEAD == 2);
    assert_true(SG_TICKET_NONE == 0 && SG_TICKET_CHOOSING == 1 && SG_SOURCE_BOUNDED == 0 && SG_SOURCE_UNBOUNDED == 1);
}

PLAIN_TEST(version_2_of_the_ledger_stays_as_it_is)
{
    static const struct field fields[] = {
        FIELD(sg_registry_entry, file, 512, 1536),       FIELD(sg_registry_entry, file_bytes, 2048, 8),
        FIELD(sg_registry_entry, file_changes, 2056, 8), FIELD(sg_registry_entry, origin, 2064, 96),
        FIELD(sg_registry_entry, more_files, 2160, 8),
    };
    assert_int_equal(SG_REGISTRY_VERSION, 2);
    check(fields, SG_ARRAY_LENGTH(fields));
}

PLAIN_TEST(version_2_stays_as_it_is)
{
    static const struct field fields[] = {
        FIELD(sg_record, credit_bytes, 0, 8),
        FIELD(sg_record, allocations, 8, 8),
        FIELD(sg_record, frees, 16, 8),
        FIELD(sg_record, array_credit, 24, 8),
        FIELD(sg_record, tid, 56, 4),
        FIELD(sg_domain_counters, granted_bytes, 0, 8),
        FIELD(sg_domain_counters, peak_bytes, 8, 8),
        FIELD(sg_domain_counters, allocations, 16, 8),
        FIELD(sg_domain_counters, frees, 24, 8),
        FIELD(sg_domain_counters, refused_count, 32, 8),
        FIELD(sg_domain_counters, refused_bytes, 40, 8),
        FIELD(sg_domain_counters, recent_peak_bytes, 48, 8),
        FIELD(sg_peak, time_ns, 0, 8),
        FIELD(sg_peak, total_bytes, 8, 8),
        FIELD(sg_peak, domain_bytes, 16, 64),
        FIELD(sg_refusal, sequence, 0, 8),
        FIELD(sg_refusal, time_ns, 8, 8),
        FIELD(sg_refusal, size_bytes, 16, 8),
        FIELD(sg_refusal, usable_bytes, 24, 8),
        FIELD(sg_refusal, domain, 32, 1),
        FIELD(sg_refusal, reason, 33, 1),
        FIELD(sg_refusal, observed, 34, 1),
        FIELD(sg_refusal, kept_mib, 36, 4),
        FIELD(sg_refusal, call, 40, 40),
        FIELD(sg_phase, sequence, 0, 8),
        FIELD(sg_phase, time_ns, 8, 8),
        FIELD(sg_phase, live_bytes, 16, 8),
        FIELD(sg_phase, peak_bytes, 24, 8),
        FIELD(sg_phase, name, 32, 64),
        FIELD(sg_event, sequence, 0, 8),
        FIELD(sg_event, time_ns, 8, 8),
        FIELD(sg_event, what, 16, 112),
        FIELD(sg_device, total_bytes, 0, 8),
        FIELD(sg_device, live_bytes, 8, 8),
        FIELD(sg_device, is_known, 16, 4),
        FIELD(sg_device, reserve_mib, 20, 4),
        FIELD(sg_device, name, 24, 40),
        FIELD(sg_machine, time_ns, 0, 8),
        FIELD(sg_machine, total_bytes, 8, 8),
        FIELD(sg_machine, available_bytes, 16, 8),
        FIELD(sg_machine, usable_bytes, 24, 8),
        FIELD(sg_machine, reserve_bytes, 32, 8),
        FIELD(sg_machine, floor_bytes, 40, 8),
        FIELD(sg_machine, cgroup_limit_bytes, 48, 8),
        FIELD(sg_machine, unified, 56, 4),
        FIELD(sg_machine, driver_facts, 60, 4),
        FIELD(sg_segment, slot, 0, 128),
        FIELD(sg_segment, segment_bytes, 128, 8),
        FIELD(sg_segment, record_capacity, 136, 4),
        FIELD(sg_segment, record_used, 140, 4),
        FIELD(sg_segment, parent_pid, 144, 4),
        FIELD(sg_segment, uid, 148, 4),
        FIELD(sg_segment, started_time_ns, 152, 8),
        FIELD(sg_segment, ended_time_ns, 160, 8),
        FIELD(sg_segment, exit_code, 168, 4),
        FIELD(sg_segment, signal, 172, 4),
        FIELD(sg_segment, library_version, 176, 16),
        FIELD(sg_segment, job, 192, 64),
        FIELD(sg_segment, command, 256, 256),
        FIELD(sg_segment, machine, 512, 64),
        FIELD(sg_segment, device, 576, 512),
        FIELD(sg_segment, domain, 1088, 512),
        FIELD(sg_segment, peak_seen_bytes, 1600, 8),
        FIELD(sg_segment, peak_index, 1608, 4),
        FIELD(sg_segment, max_resident_mib, 1612, 4),
        FIELD(sg_segment, peak, 1616, 160),
        FIELD(sg_segment, unmatched_frees, 1776, 8),
        FIELD(sg_segment, faults, 1784, 8),
        FIELD(sg_segment, registered_bytes, 1792, 8),
        FIELD(sg_segment, sparse_resident_bytes, 1800, 8),
        FIELD(sg_segment, inherited_domain_bytes, 1808, 64),
        FIELD(sg_segment, refusal_count, 1872, 8),
        FIELD(sg_segment, phase_count, 1880, 8),
        FIELD(sg_segment, event_count, 1888, 8),
        FIELD(sg_segment, refusal, 1896, 5120),
        FIELD(sg_segment, phase, 7016, 6144),
        FIELD(sg_segment, event, 13160, 4096),
        FIELD(sg_segment, unaccounted_bytes, 17256, 8),
        FIELD(sg_segment, file, 17264, 1536),
        FIELD(sg_segment, origin, 18800, 96),
        FIELD(sg_segment, shared_bytes, 18896, 8),
        FIELD(sg_segment, inherited_shared_bytes, 18904, 8),
        FIELD(sg_segment, phase_peak_bytes, 18912, 8),
        FIELD(sg_segment, saved_time_ns, 18920, 8),
        FIELD(sg_segment, boot_id, 18928, 16),
        FIELD(sg_segment, asked_time_ns, 18928, 8),
        FIELD(sg_segment, asked_bytes, 18936, 8),
        FIELD(sg_segment, job_peak_bytes, 18944, 8),
        FIELD(sg_segment, run, 18952, 8),
        FIELD(sg_segment, sites_peak_state, 18960, 4),
        FIELD(sg_segment, limit_peak_bytes, 18968, 8),
        FIELD(sg_segment, seen_time_ns, 18976, 8),
        FIELD(sg_segment, oom, 18984, 4),
        FIELD(sg_segment, pid_namespace, 18988, 4),
        FIELD(sg_segment, container, 18992, 16),
        FIELD(sg_segment, site, 19008, 12288),
        FIELD(sg_memory_file, begin, 0, 8),
        FIELD(sg_memory_file, end, 8, 8),
        FIELD(sg_memory_file, missing_bytes, 16, 8),
        FIELD(sg_origin, claim, 0, 8),
        FIELD(sg_origin, bytes, 8, 8),
        FIELD(sg_origin, entry, 16, 4),
        FIELD(sg_origin, pid, 20, 4),
        FIELD(sg_callsite, key, 0, 8),
        FIELD(sg_callsite, live_bytes, 8, 8),
        FIELD(sg_callsite, live_count, 16, 8),
        FIELD(sg_callsite, peak_bytes, 24, 8),
        FIELD(sg_callsite, offset, 32, 8),
        FIELD(sg_callsite, is_named, 40, 8),
        FIELD(sg_callsite, at_peak_bytes, 48, 8),
        FIELD(sg_callsite, at_refusal_bytes, 56, 8),
        FIELD(sg_callsite, library, 64, 64),
    };
    assert_int_equal(SG_ABI_VERSION, 2);
    check(fields, SG_ARRAY_LENGTH(fields));
    assert_int_equal(offsetof(struct sg_segment, record), 31296);
    assert_int_equal(SG_SEGMENT_BYTES(64), 31296 + 64 * 64);
    assert_int_equal(sizeof(struct sg_record), 64);
    assert_int_equal(sizeof(struct sg_peak), 80);
    assert_int_equal(sizeof(struct sg_machine), 64);
    assert_true(SG_CALLSITES_HEAP == 0 && SG_CALLSITES_MAPPED == 1 && SG_CALLSITES_CUDA == 2 &&
                SG_CALLSITE_CAPACITY == 32);
    assert_true(SG_REFUSAL_CAPACITY == 64 && SG_PHASE_CAPACITY == 64 && SG_EVENT_CAPACITY == 32 &&
                SG_DEVICE_CAPACITY == 8);
    assert_true(SG_DOMAIN_CAPACITY == 8 && SG_RECORD_FIRST == 64 && SG_RECORD_LIMIT == 15360);
}

PLAIN_TEST(version_1_of_the_time_line_stays_as_it_is)
{
    static const struct field fields[] = {
        FIELD(sg_timeline, magic, 0, 8),         FIELD(sg_timeline, version, 8, 4),
        FIELD(sg_timeline, sample_count, 12, 4), FIELD(sg_timeline, interval_ns, 16, 8),
        FIELD(sg_timeline, sample, 64, 65472),   FIELD(sg_sample, time_ns, 0, 8),
        FIELD(sg_sample, usable_bytes, 8, 8),    FIELD(sg_sample, reserve_bytes, 16, 8),
        FIELD(sg_sample, floor_bytes, 24, 8),    FIELD(sg_sample, live_bytes, 32, 64),
    };
    assert_int_equal(SG_TIMELINE_VERSION, 1);
    check(fields, SG_ARRAY_LENGTH(fields));
    assert_int_equal(sizeof(struct sg_sample), 96);
    assert_memory_equal(&(uint64_t){SG_TIMELINE_MAGIC}, "SPGTIMEL", 8);
}

PLAIN_TEST(numbers_of_domains_and_reasons_stay)
{
    assert_true(SG_DOMAIN_HEAP == 0 && SG_DOMAIN_MAPPED == 1 && SG_DOMAIN_PINNED == 2 && SG_DOMAIN_MANAGED == 3 &&
                SG_DOMAIN_DEVICE == 4);
    assert_true(SG_REASON_RESERVE == 1 && SG_REASON_LIMIT == 2 && SG_REASON_FLOOR == 3 && SG_REASON_DEVICE == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_grows_has_another_version),
        cmocka_unit_test(the_slot_is_frozen_for_ever),
        cmocka_unit_test(the_machines_ledger_is_frozen_for_ever),
        cmocka_unit_test(version_2_of_the_ledger_stays_as_it_is),
        cmocka_unit_test(version_2_stays_as_it_is),
        cmocka_unit_test(version_1_of_the_time_line_stays_as_it_is),
        cmocka_unit_test(numbers_of_domains_and_reasons_stay),
    };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
