/*
 * room.h - how much memory admission would grant now.
 */
#ifndef SG_TOOLS_SWEEP_FITS_ROOM_H
#define SG_TOOLS_SWEEP_FITS_ROOM_H

#include <stdint.h>

#include "model/model.h"
#include "sweep/fits/need.h"

/* Returns what may be taken above the reserve and below SPARKGUARD_LIMIT; SG_UNKNOWN if unknown. */
uint64_t fits_room_of(const struct model_machine *machine);
/* Looks at the machine. */
struct fits_room fits_room_now(void);

#endif
