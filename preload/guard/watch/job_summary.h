/*
 * job_summary.h - the summary line that SPARKGUARD_REPORT=exit prints.
 */
#ifndef SG_PRELOAD_WATCH_JOB_SUMMARY_H
#define SG_PRELOAD_WATCH_JOB_SUMMARY_H

/* Prints one line on stderr: the peak of all processes of this run together, the limit, and the number of refused
 * requests. Reads SPARKGUARD_DIR and allocates nothing. lifecycle.c calls it at the end of the job's first process. */
void sg_job_summary_print(void);

#endif
