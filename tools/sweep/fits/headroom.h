/*
 * headroom.h - how much memory admission would grant now.
 */
#ifndef SG_TOOLS_SWEEP_FITS_HEADROOM_H
#define SG_TOOLS_SWEEP_FITS_HEADROOM_H

#include <stdint.h>

#include "model/model.h"
#include "sweep/fits/need.h"

/* Returns what may be taken above the reserve and below SPARKGUARD_LIMIT; SG_UNKNOWN if unknown. */
uint64_t fits_headroom_of(const struct model_machine *machine);
/* Looks at the machine. */
struct fits_headroom fits_headroom_now(void);

#endif
