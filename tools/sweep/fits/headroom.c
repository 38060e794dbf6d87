/*
 * headroom.c - how much memory admission would grant now: above the reserve, and below the limit of a job.
 */
#include <stdlib.h>

#include "common/bytes.h"
#include "sparkguard_options.h"
#include "sweep/fits/headroom.h"

/* Returns the limit of a job, or SG_UNKNOWN if there is none. */
static uint64_t limit_of(const struct model_machine *machine)
{
    struct sg_size limit = {0};
    const char *text = getenv(sg_option_table[SG_OPTION_LIMIT].variable);
    if (text == NULL || sg_parse_size(text, &limit) != 0)
        return SG_UNKNOWN;
    return sg_size_of(limit, bytes_less(machine->ordinary_bytes, machine->reserve_bytes));
}

uint64_t fits_headroom_of(const struct model_machine *machine)
{
    if (machine->usable_bytes == SG_UNKNOWN || machine->reserve_bytes == SG_UNKNOWN)
        return SG_UNKNOWN;
    return bytes_min(bytes_less(machine->usable_bytes, machine->reserve_bytes), limit_of(machine));
}

struct fits_headroom fits_headroom_now(void)
{
    const struct model_scope scope = {.job = NULL};
    struct model *model = model_build(&scope);
    struct fits_headroom headroom = {fits_headroom_of(&model->machine), model->machine.usable_bytes,
                                     model->machine.reserve_bytes};
    model_free(model);
    return headroom;
}
