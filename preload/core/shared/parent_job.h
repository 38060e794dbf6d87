/*
 * parent_job.h - the job of the parent, for a process whose environment does not name one.
 *
 * The library puts the job into `environ`, which most programs hand on to their children. A program that hands on the
 * environment that it was begun with (Go's os/exec copies it from the stack) leaves the job out. Its children then take
 * the job from the parent's record, when they get one themselves. A parent without a record (watch/lifetime.h) holds
 * too little to matter, and its children have jobs of their own.
 */
#ifndef SG_PRELOAD_SHARED_PARENT_JOB_H
#define SG_PRELOAD_SHARED_PARENT_JOB_H

/* In a process that made up its job's name: takes job and first process from the record of the running parent in
 * SPARKGUARD_DIR, this user's or root's, if there is one. For segment.c, before the record is made. */
void sg_parent_job_adopt(void);

/* Puts sg_options.job and first_pid into the environment, in place of the name that was made up. Set by the hooks;
 * NULL: there is nothing there yet. */
extern void (*sg_parent_job_tell)(void);

#endif
