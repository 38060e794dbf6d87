/*
 * sim_hold.h - calls that stay inside the driver for a while, before they do anything, or when they have done it: planned
 * (SGSIM_HOLD, sgsim_hold) or at random (SGSIM_DAWDLE).
 */
#ifndef SGSIM_SIM_HOLD_H
#define SGSIM_SIM_HOLD_H

#include "sim_core.h"

struct sgsim_hold;

void sgsim_hold_configure(void);                                       /* with the lock held, once */
const struct sgsim_hold *sgsim_hold_due(enum sgsim_function function); /* with the lock held; NULL: go on */
bool sgsim_hold_is_behind(const struct sgsim_hold *hold);
void sgsim_hold_wait(const struct sgsim_hold *hold); /* without the lock */
void sgsim_hold_dawdle(void);                        /* the same, as often as SGSIM_DAWDLE says */

#endif
