/*
 * phases.h - the parts of a run that the program itself names, and peaks that begin anew.
 *
 * The present phase is the last one in the segment's ring; its peak is kept in phase_peak_bytes by the ledger, and goes
 * into the ring when the next one begins. Any thread, also in signal handlers.
 */
#ifndef SG_PRELOAD_ACCOUNT_PHASES_H
#define SG_PRELOAD_ACCOUNT_PHASES_H

#include <stdint.h>

/* Ends the present phase and begins one. Of `name` at most 63 bytes are kept. */
void sg_phases_begin(const char *name);

/* The peak of the phases since the start, or since the last reset. */
uint64_t sg_phases_peak_bytes(void);

/* All peaks that begin anew do so now: that of the phase and those of the domains. */
void sg_phases_reset_peak(void);

/* In a forked child: no phase has begun. */
void sg_phases_refork(void);

#endif
