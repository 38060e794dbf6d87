/*
 * job.c - see job.h.
 */
#include "shared/job.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "shared/same_bytes.h"
#include "base/seccomp.h"
#include "shared/own_entry.h"
#include "shared/registry.h"
#include "shared/segment.h"
#include "base/clock.h"
#include "base/syscall.h"

#include <stdbool.h>

static uint64_t sparse_bytes;  /* (atomic) of this process, by the last scan */
static uint64_t not_before_ns; /* (atomic) when entries may be checked for dead owners again */

/* The bytes that only this process has. *has_names becomes true if it holds others with processes of the job
 * (same_bytes.h). */
static uint64_t private_part(const struct sg_slot *slot, const struct sg_registry_entry *entry, bool *has_names)
{
    uint64_t named, bytes = sg_entry_private_bytes(slot, entry, &named);
    *has_names = *has_names || named != 0 || sg_load(&slot->inherited_bytes) != 0;
    return bytes;
}

static bool is_another_of_the_job(const struct sg_registry_entry *entry)
{
    return entry->slot.job_hash == sg_own->slot.job_hash && entry != sg_entry_own() && sg_entry_is_running(entry);
}

static uint64_t sum_of_others(bool *has_names)
{
    struct sg_registry *registry = sg_entry_registry();
    uint64_t sum = 0;
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (SG_UNLIKELY(is_another_of_the_job(entry)))
            sum += private_part(&entry->slot, entry, has_names);
    }
    return sum;
}

/* Marks dead entries, with one system call for each process of the job. Takes at most about a tenth of the time: after
 * a run of n ns the next one is 10 n later. */
static void mark_dead(void)
{
    uint64_t begin = sg_clock_ns(CLOCK_MONOTONIC);
    if (begin < sg_load_relaxed(&not_before_ns) || sg_seccomp_is_on())
        return;
    sg_registry_mark_dead_in_passing(true);
    uint64_t end = sg_clock_ns(CLOCK_MONOTONIC);
    sg_store_relaxed(&not_before_ns, end + 10 * (end - begin));
}

static uint64_t sum_up(uint64_t *others)
{
    bool has_names = false;
    *others = sum_of_others(&has_names);
    uint64_t sum = private_part(&sg_own->slot, sg_entry_own(), &has_names) + *others;
    return has_names ? sum + sg_same_bytes_of_job_now() : sum;
}

/* Whether `sum` raises neither peak. Without MAP_NORESERVE memory both peaks are the same. */
static bool is_known(uint64_t sum, uint64_t sparse)
{
    return sum <= sg_load_relaxed(&sg_own->job_peak_bytes) &&
           (SG_LIKELY(sparse == 0) || sum + sparse <= sg_load_relaxed(&sg_own->limit_peak_bytes));
}

void sg_job_add_up(void)
{
    uint64_t others, sum = sum_up(&others), sparse = sg_load_relaxed(&sparse_bytes);
    if (SG_LIKELY(is_known(sum, sparse)))
        return;
    if (others != 0) {
        mark_dead();
        uint64_t again = sum_up(&others);
        sum = again < sum ? again : sum;
    }
    sg_raise_to(&sg_own->job_peak_bytes, sum);
    if (sparse != 0)
        sg_raise_to(&sg_own->limit_peak_bytes, sum + sparse);
}

void sg_job_note_sparse(uint64_t bytes)
{
    sg_store_relaxed(&sparse_bytes, bytes);
    sg_segment_note_sparse(bytes);
    if (bytes != 0)
        sg_job_add_up();
}

void sg_job_atfork_child(void)
{
    sg_segment_forget_sparse();
    sg_store_relaxed(&sparse_bytes, 0);
    sg_store_relaxed(&not_before_ns, 0);
}

void sg_job_leave_peak(void)
{
    struct sg_registry *registry = sg_entry_registry();
    sg_job_take_left_peak();
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (is_another_of_the_job(entry))
            sg_raise_to(&entry->slot.reported_peak_bytes, sg_load_relaxed(&sg_own->job_peak_bytes));
    }
}
