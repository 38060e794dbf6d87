/*
 * job_summary.h - the summary that SPARKGUARD_REPORT=exit asks for. For lifecycle.c, in the job's first process, at
 * its end.
 */
#ifndef SG_PRELOAD_WATCH_JOB_SUMMARY_H
#define SG_PRELOAD_WATCH_JOB_SUMMARY_H

/* Prints one line on stderr: the peak of all processes of this run together, its limit, how many requests were
 * refused. Reads SPARKGUARD_DIR; allocates nothing. */
void sg_job_summary_print(void);

#endif
