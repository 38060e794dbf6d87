/*
 * deferred_frees.h - what this process has given back and the kernel does not show yet: drivers from 590 on return
 * pages late, so it is waited for before a request is refused.
 */
#ifndef SG_PRELOAD_ADMIT_DEFERRED_FREES_H
#define SG_PRELOAD_ADMIT_DEFERRED_FREES_H

#include <stdint.h>

/* Before this process gives back much at once, and behind it. Any thread; they take the decision lock. */
void sg_deferred_frees_note_free(uint64_t bytes);
void sg_deferred_frees_note_freed(uint64_t bytes);

/* Something was taken since: how much is still to come cannot be told any more. Under the decision lock. */
void sg_deferred_frees_note_taken(void);

/* How much of that the last snapshot did not show, and until when it may still come; 0 if nothing is missing. Under the
 * decision lock. */
uint64_t sg_deferred_frees_due_bytes(uint64_t *until_ns);

void sg_deferred_frees_refork(void);

#endif
