/*
 * headroom.c - how much memory admission would grant now: above the reserve, and below the limit of a job.
 */
#include "common/bytes.h"
#include "sweep/fits/headroom.h"

uint64_t fits_headroom_of(const struct model_machine *machine)
{
    if (machine->usable_bytes == SG_UNKNOWN || machine->reserve_bytes == SG_UNKNOWN)
        return SG_UNKNOWN;
    return bytes_min(bytes_less(machine->usable_bytes, machine->reserve_bytes), machine->limit_left_bytes);
}

struct fits_headroom fits_headroom_now(void)
{
    const struct model_scope scope = {.job = NULL};
    struct model *model = model_build(&scope);
    struct fits_headroom headroom = {fits_headroom_of(&model->machine), model->machine.usable_bytes,
                                     model->machine.reserve_bytes, model->machine.total_bytes};
    return headroom;
}
