/*
 * madvise.h - what mlockall has made of later mappings. Any thread.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_MADVISE_H
#define SG_PRELOAD_HOOKS_MMAP_MADVISE_H

#include <stdbool.h>

/* Whether the pages of each new mapping come with the call that makes it: after mlockall(MCL_FUTURE). */
bool sg_pages_come_at_once(void);

/* In a forked child, whose memory nothing locks. */
void sg_pages_refork(void);

#endif
