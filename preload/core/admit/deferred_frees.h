/*
 * deferred_frees.h - bytes that this process has freed and the kernel does not show yet.
 *
 * A driver may return pages late. A request that would fit with these bytes waits for them before it is refused.
 * Drivers that list pools keep the pages (pool_room.h): there nothing is due.
 */
#ifndef SG_PRELOAD_ADMIT_DEFERRED_FREES_H
#define SG_PRELOAD_ADMIT_DEFERRED_FREES_H

#include <stdint.h>

/* Call the first before this process frees `bytes` of CUDA memory, the second after it. Frees below 32 MiB are ignored.
 * Any thread; both take the decision lock. */
void sg_deferred_frees_note_free(uint64_t bytes);
void sg_deferred_frees_note_freed(uint64_t bytes);

/* Forgets the deferred frees: memory was taken since, so the kernel's figures no longer tell how much is still due. Any
 * thread, with or without the decision lock. */
void sg_deferred_frees_note_taken(void);

/* Freed bytes that the last snapshot did not show, 0 if none are missing or if the last free was 3 s ago. Under the
 * decision lock. */
uint64_t sg_deferred_frees_due_bytes(void);

/* In a forked child: nothing is due. */
void sg_deferred_frees_atfork_child(void);

#endif
