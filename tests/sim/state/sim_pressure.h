/*
 * sim_pressure.h - what a kernel does where memory is short, or where it is told to drop its caches. Part of the books of a
 * fake machine: see sim_books.h. With the machine's lock held.
 */
#ifndef SGSIM_SIM_PRESSURE_H
#define SGSIM_SIM_PRESSURE_H

#include "sim_books.h"

/* Of a new machine: of 16 low watermarks at a time, after 20 ms. */
void sgsim_pressure_begin(struct sgsim_machine *machine);

/* Swaps others' idle memory out, and shrinks the driver's pool, where too little is left behind the page cache, too. */
void sgsim_pressure_relieve(struct sgsim_machine *machine, int64_t left_kib, int64_t now_ns);

/* Obeys what was written to proc/sys/vm/drop_caches beside the meminfo since the last look. */
void sgsim_pressure_obey(struct sgsim_machine *machine, const char *meminfo);

#endif
