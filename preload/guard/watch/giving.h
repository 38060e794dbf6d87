/*
 * giving.h - the side that is asked to give memory back (givers.h): this process's callback, and the questions that
 * others write into its entry.
 */
#ifndef SG_PRELOAD_WATCH_GIVING_H
#define SG_PRELOAD_WATCH_GIVING_H

#include <stdbool.h>
#include <stdint.h>

/* Sets the callback; NULL: none. Any thread, but no two at the same time. */
void sg_giving_set(void (*callback)(uint64_t, void *), void *data);

/* Calls the callback, if there is one. One thread. */
void sg_giving_call(uint64_t bytes);

/* Shows in this process's entry whether it has a callback. Any thread. */
void sg_giving_show(void);

/* Whether this process has a thread for its callback: true for the first caller, which makes it. */
bool sg_giving_begin_thread(void);
void sg_giving_note_no_thread(void);

/* In a forked child: it has no callback and no thread for one. */
void sg_giving_atfork_child(void);

/* Waits until this process is asked for memory after question `seen`, at most `timeout_ns`, below 1 s. Returns the
 * number of the last question, and in *bytes how much is missing. One thread. */
uint32_t sg_giving_wait(uint32_t seen, uint64_t timeout_ns, uint64_t *bytes);

#endif
