/*
 * process_list.h - asks NVML which processes live and how much device memory they have, for the room in the driver's
 * pool (admit/reclaim/pool_room.h).
 *
 * A decision never waits for NVML: the hooks ask between two decisions, at most once a second on the machine, and only
 * where a request needs the pool. NVML is asked on a thread of its own, for which a request waits 100 ms at most. A
 * later answer is for the next requests; until it comes, no second question is asked. Where NVML does not list this
 * process itself, or this process is in a PID namespace of its own, the list says nothing about others and is not used.
 */
#ifndef SG_PRELOAD_HOOKS_PROCESS_LIST_H
#define SG_PRELOAD_HOOKS_PROCESS_LIST_H

/* Asks NVML, loading it if necessary, and notes its answer (sg_pool_room_note_list), now or when it comes. Keeps errno.
 * Any thread, without a lock; returns at once while an earlier question has no answer. */
void sg_process_list_read(void);

#endif
