/*
 * managed_pages.c - see managed_pages.h.
 *
 * The known CUDA memory is summed up before the kernel's figures are read and again after that, and the larger sum
 * counts. So memory that a process takes meanwhile is never mistaken for touched pages. Requests in flight count as
 * known, whether the driver has taken them yet or not.
 */
#include "admit/managed_pages.h"

#include "base/atomics.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/segment.h"
#include "account/driver_pool.h"

static struct sg_cuda_sum before[1 + SG_ENTRY_LEVELS];

static uint64_t identity_of_level(uint32_t index)
{
    return index == 0 ? 0 : sg_load(&sg_entry_own()->level[index - 1]);
}

void sg_managed_pages_begin_look(struct sg_snapshot *snapshot)
{
    sg_peers_sum_cuda(0, &before[0]);
    snapshot->has_cuda =
        before[0].managed_bytes != 0 || (sg_load_relaxed(&sg_own->slot.flags) & (uint32_t)SG_SLOT_UNIFIED) != 0;
    for (uint32_t i = 1; i <= SG_ENTRY_LEVELS && before[0].managed_bytes != 0; i++)
        if (identity_of_level(i) != 0)
            sg_peers_sum_cuda(identity_of_level(i), &before[i]);
}

static uint64_t known_of(const struct sg_cuda_sum *sum)
{
    return sum->shown_bytes + sum->flight_bytes;
}

/* Upper bound of the part of `unexplained` that is managed memory touched by the GPU alone. */
static uint64_t touched_of(uint64_t unexplained, uint64_t base, uint64_t known, const struct sg_cuda_sum *first,
                           const struct sg_cuda_sum *second)
{
    uint64_t missing = first->missing_bytes < second->missing_bytes ? first->missing_bytes : second->missing_bytes;
    uint64_t touched = unexplained > base + known ? unexplained - base - known : 0;
    return touched < missing ? touched : missing;
}

static uint64_t larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* The base. While there is no managed memory, it follows the present figures, except while requests are in flight: the
 * driver may or may not have taken those. */
static uint64_t find_base(uint64_t unexplained, uint64_t known, bool is_quiet)
{
    uint64_t *base = &sg_entry_registry()->unexplained_base_bytes, last = sg_load(base);
    if (!is_quiet && last != 0)
        return last;
    last = unexplained > known ? unexplained - known : 1;
    sg_store(base, last);
    return last;
}

static uint64_t touched_on_machine(const struct sg_snapshot *snapshot)
{
    struct sg_cuda_sum now, *first = &before[0];
    uint64_t pooled = sg_driver_pool_counted_bytes();
    sg_peers_sum_cuda(0, &now);
    if (snapshot->unexplained_bytes == 0)
        return 0;
    bool is_quiet = (first->managed_bytes | now.managed_bytes | first->flight_bytes | now.flight_bytes) == 0;
    uint64_t shown = larger(first->shown_bytes, now.shown_bytes) + pooled;
    uint64_t base = find_base(snapshot->unexplained_bytes, shown, is_quiet);
    return touched_of(snapshot->unexplained_bytes, base, larger(known_of(first), known_of(&now)) + pooled, first, &now);
}

static uint64_t touched_in_cgroup(const struct sg_constraint *constraint)
{
    struct sg_cuda_sum now, *first = &before[1 + constraint->level];
    uint64_t identity = identity_of_level(1 + constraint->level);
    if (identity == 0)
        return 0;
    sg_peers_sum_cuda(identity, &now);
    return touched_of(constraint->unexplained_bytes, 0, larger(known_of(first), known_of(&now)), first, &now);
}

void sg_managed_pages_end_look(struct sg_snapshot *snapshot)
{
    for (uint32_t i = 0; i < snapshot->count; i++)
        snapshot->at[i].touched_bytes = 0;
    if (!snapshot->is_valid || !snapshot->has_cuda)
        return;
    snapshot->at[0].touched_bytes = touched_on_machine(snapshot);
    for (uint32_t i = 1; i < snapshot->count && before[0].managed_bytes != 0; i++)
        snapshot->at[i].touched_bytes = touched_in_cgroup(&snapshot->at[i]);
}

void sg_managed_pages_note_context(uint64_t bytes)
{
    uint64_t *base = &sg_entry_registry()->unexplained_base_bytes;
    if (sg_load(base) != 0)
        sg_fetch_add(base, bytes);
}

void sg_managed_pages_note_context_end(uint64_t bytes)
{
    uint64_t *base = &sg_entry_registry()->unexplained_base_bytes;
    uint64_t now = sg_load(base);
    while (now != 0 && !sg_cas_u64(base, &now, now > bytes ? now - bytes : 1))
        ;
}
