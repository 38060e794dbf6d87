/*
 * sim_faults.h - the environment, planned failures (SGSIM_FAIL, sgsim_fail) and the lock for callers that are no
 * driver call. Part of the simulated driver's inside; see sim_core.h.
 */
#ifndef SGSIM_SIM_FAULTS_H
#define SGSIM_SIM_FAULTS_H

#include "sim_core.h"

void sgsim_faults_configure(void);                        /* reads SGSIM_FAIL; once, with the lock held */
CUresult sgsim_faults_due(enum sgsim_function function);  /* what this call must fail with, or success */
int sgsim_find_function(const char *name, size_t length); /* -1: there is none */
const char *sgsim_function_name(enum sgsim_function function);
unsigned long sgsim_calls_of(enum sgsim_function function);

void sgsim_quiet_enter(void);
bool sgsim_quiet_try_enter(void);
void sgsim_quiet_leave(void);

bool sgsim_parse_size(const char *text, size_t *bytes);
void sgsim_complain(const char *name, const char *value);

#endif
