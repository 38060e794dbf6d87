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
#include "base/syscall.h"

#include <stdbool.h>

static uint64_t foreign_bytes; /* (atomic) */
static uint64_t sparse_bytes;  /* (atomic) by the last scan */
static uint64_t not_before_ns; /* (atomic) when the dead may be looked for again */

/* The bytes that a process has beyond those it was forked with and those that others may have by another name
 * (same_bytes.h). */
static uint64_t own_part(const struct sg_slot *slot, const struct sg_registry_entry *entry, bool *has_names)
{
    uint64_t granted = sg_load(&slot->granted_bytes), inherited = sg_load(&slot->inherited_bytes);
    uint64_t named = inherited + sg_load(&entry->file_bytes);
    *has_names = *has_names || named != 0;
    return granted > named ? granted - named : 0;
}

/* Of the job, alive, and not about to become another program: that has a place of its own. */
static bool is_another_of_the_job(const struct sg_registry_entry *entry)
{
    return entry->slot.job_hash == sg_own->slot.job_hash && entry != sg_entry_own() &&
           SG_CLAIM_STATE(sg_load(&entry->claim)) == SG_CLAIM_LIVE && sg_load(&entry->slot.state) != SG_STATE_REPLACED;
}

static uint32_t seats_in_use(const struct sg_registry *ledger)
{
    uint32_t used = sg_load(&ledger->entry_used);
    return used < SG_ENTRY_CAPACITY ? used : SG_ENTRY_CAPACITY;
}

static uint64_t sum_of_others(bool *has_names)
{
    struct sg_registry *ledger = sg_entry_registry();
    uint64_t sum = sg_load_relaxed(&foreign_bytes);
    for (uint32_t i = 0, used = seats_in_use(ledger); i < used; i++)
        if (SG_UNLIKELY(is_another_of_the_job(&ledger->entry[i])))
            sum += own_part(&ledger->entry[i].slot, &ledger->entry[i], has_names);
    return sum;
}

/* At most a tenth of the time goes there: it asks the kernel about each process. */
static void take_out_the_dead(void)
{
    uint64_t begin = sg_clock_ns(CLOCK_MONOTONIC);
    if (begin < sg_load_relaxed(&not_before_ns) || sg_seccomp_is_on())
        return;
    sg_registry_mark_dead_of_job();
    uint64_t end = sg_clock_ns(CLOCK_MONOTONIC);
    sg_store_relaxed(&not_before_ns, end + 10 * (end - begin));
}

static uint64_t sum_up(uint64_t *others)
{
    bool has_names = false;
    *others = sum_of_others(&has_names);
    uint64_t sum = own_part(&sg_own->slot, sg_entry_own(), &has_names) + *others;
    return has_names ? sum + sg_same_bytes_of_job_now() : sum;
}

/* `sum` is beyond neither peak. Without MAP_NORESERVE memory there is one peak. */
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
        take_out_the_dead();
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
    if (bytes != 0)
        sg_job_add_up();
}

void sg_job_note_foreign(uint64_t bytes)
{
    sg_store_relaxed(&foreign_bytes, bytes);
    if (bytes != 0)
        sg_job_add_up();
}

void sg_job_refork(void)
{
    sg_store_relaxed(&foreign_bytes, 0);
    sg_store_relaxed(&sparse_bytes, 0);
    sg_store_relaxed(&not_before_ns, 0);
}

void sg_job_read_mail(void)
{
    sg_raise_to(&sg_own->job_peak_bytes, sg_load_relaxed(&sg_entry_own()->slot.told_peak_bytes));
}

void sg_job_send_mail(void)
{
    struct sg_registry *ledger = sg_entry_registry();
    sg_job_read_mail();
    for (uint32_t i = 0, used = seats_in_use(ledger); i < used; i++)
        if (is_another_of_the_job(&ledger->entry[i]))
            sg_raise_to(&ledger->entry[i].slot.told_peak_bytes, sg_load_relaxed(&sg_own->job_peak_bytes));
}
