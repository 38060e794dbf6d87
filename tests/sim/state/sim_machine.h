/*
 * sim_machine.h - the machine around the simulated device: memory that several processes take from one fake meminfo
 * file.
 *
 * All with the driver's lock held. Without SGSIM_MEMINFO nothing happens and everything fits.
 */
#ifndef SGSIM_SIM_MACHINE_H
#define SGSIM_SIM_MACHINE_H

#include "sim_core.h"

enum sgsim_taking {
    SGSIM_MAY_FAIL, /* an allocation: out of memory where the machine has less */
    SGSIM_SHARED,   /* the same, of the process's shared memory: no driver has it */
    SGSIM_IN_CALL,  /* the same, on a machine that is not limited */
    SGSIM_TOUCHED   /* a page fault, no call: what is not there is owed */
};

void sgsim_machine_configure(void);
bool sgsim_machine_is_fake(void);
CUresult sgsim_machine_take(size_t bytes, enum sgsim_taking how);
void sgsim_machine_give(size_t bytes, enum sgsim_taking how);
void sgsim_machine_lock(size_t bytes); /* memory of the process's own, which is there */
void sgsim_machine_unlock(size_t bytes);
size_t sgsim_machine_free_bytes(void);  /* MemFree */
void sgsim_machine_settle_if_due(void); /* at most once a millisecond: pays back what the dead and late frees owe */
void sgsim_machine_forget(void);        /* in a forked child: the place is the parent's */

/* For the ledger: SGSIM_NO_CALL if no allocation asked the machine. */
#define SGSIM_NO_CALL INT64_MAX
int64_t sgsim_machine_least_free(void);      /* MemFree when an allocation came in */
int64_t sgsim_machine_least_spare(void);     /* the same less what it asked for */
int64_t sgsim_machine_least_available(void); /* MemAvailable ever, of the whole machine; negative: that much was owed */

#endif
