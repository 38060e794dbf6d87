/*
 * managed_pages.c - see managed_pages.h.
 *
 * The known CUDA memory is summed up before the kernel's figures are read and again after that, and the larger sum
 * counts. So memory that a process takes meanwhile is never mistaken for touched pages. Requests in flight count as
 * known, whether the driver has taken them yet or not.
 */
#include "admit/managed_pages.h"

#include "base/pages.h"
#include "base/atomics.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "account/driver_pool.h"

/* Memory that a sum explains. Pinned memory is the process's own shared memory and part of Shmem, which the kernel
 * explains: it is missing in `shared` only where the driver takes it from elsewhere. */
static uint64_t held_of(const struct sg_cuda_sum *sum, uint64_t shared)
{
    return sum->shown_bytes + sum->device_bytes + (sum->pinned_bytes > shared ? sum->pinned_bytes - shared : 0);
}

static uint64_t known_of(const struct sg_cuda_sum *sum, uint64_t shared)
{
    return held_of(sum, shared) + sum->flight_bytes;
}

/* Upper bound of the part of `unexplained` that is managed memory touched by the GPU alone. */
static uint64_t touched_of(uint64_t unexplained, uint64_t base, uint64_t known, const struct sg_cuda_sum *first,
                           const struct sg_cuda_sum *second)
{
    uint64_t missing = first->missing_bytes < second->missing_bytes ? first->missing_bytes : second->missing_bytes;
    uint64_t touched = unexplained > base + known ? unexplained - base - known : 0;
    return touched < missing ? touched : missing;
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

static uint64_t touched_on_machine(uint64_t unexplained, uint64_t shared, const struct sg_cuda_sum *first,
                                   const struct sg_cuda_sum *second)
{
    if (unexplained == 0)
        return 0;
    uint64_t pooled = sg_driver_pool_counted_bytes();
    bool is_quiet = (first->managed_bytes | second->managed_bytes | first->flight_bytes | second->flight_bytes) == 0;
    uint64_t held = sg_larger(held_of(first, shared), held_of(second, shared));
    uint64_t base = find_base(unexplained, held + pooled, is_quiet);
    uint64_t known = sg_larger(known_of(first, shared), known_of(second, shared)) + pooled;
    return touched_of(unexplained, base, known, first, second);
}

void sg_managed_pages_refresh(struct sg_snapshot *snapshot, const struct sg_cuda_sum before[1 + SG_ENTRY_LEVELS],
                              const struct sg_cuda_sum after[1 + SG_ENTRY_LEVELS])
{
    snapshot->at[0].touched_bytes =
        touched_on_machine(snapshot->unexplained_bytes, snapshot->shared_bytes, &before[0], &after[0]);
    for (uint32_t i = 1; i < snapshot->count && before[0].managed_bytes != 0; i++) {
        struct sg_constraint *cgroup = &snapshot->at[i];
        const struct sg_cuda_sum *first = &before[1 + cgroup->level], *second = &after[1 + cgroup->level];
        uint64_t known = sg_larger(known_of(first, 0), known_of(second, 0));
        cgroup->touched_bytes = touched_of(cgroup->unexplained_bytes, 0, known, first, second);
    }
}
