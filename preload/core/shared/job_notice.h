/*
 * job_notice.h - prints a message once for a whole job, even if its processes share no memory. Any thread.
 */
#ifndef SG_PRELOAD_SHARED_JOB_NOTICE_H
#define SG_PRELOAD_SHARED_JOB_NOTICE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether this process is the first of its job to call this function; true also if that cannot be found out. Call with
 * signals blocked.
 *
 * A forked child inherits its parent's answer. A child in a sandbox without files still maps the registry of its
 * parent, so siblings use a flag in the parent's entry. All other processes use a small file, `.sparkguard-UID.jobs`,
 * in /dev/shm or else in /tmp. If neither can be used, or another user made that file, each process is the first. */
bool sg_job_notice_is_first(void);

/* In a forked child: sets the flags of the parent's registry entry. NULL: the parent had no entry, or its registry is
 * no longer mapped. */
void sg_job_notice_set_parent(uint32_t *flags);

#endif
