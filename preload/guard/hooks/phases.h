/*
 * phases.h - phases: the parts of a run that the program names, and the peaks that can be reset.
 *
 * The present phase is the last one in the segment's ring. The ledger keeps its peak in phase_peak_bytes. The peak is
 * copied into the ring when the next phase begins. Any thread, also in signal handlers.
 */
#ifndef SG_PRELOAD_HOOKS_PHASES_H
#define SG_PRELOAD_HOOKS_PHASES_H

#include <stdint.h>

/* Ends the present phase and begins the next. At most 63 bytes of `name` are kept. */
void sg_phases_begin(const char *name);

/* The highest granted bytes since the start of the process or the last reset, over all phases. */
uint64_t sg_phases_peak_bytes(void);

/* Resets the peak of sg_phases_peak_bytes, of the present phase and of each domain (recent_peak_bytes) to the bytes
 * granted now. */
void sg_phases_reset_peak(void);

/* In a forked child: no phase has begun. */
void sg_phases_atfork_child(void);

#endif
