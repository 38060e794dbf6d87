/*
 * givers.h - asking processes of other jobs to give memory back before a request is refused: those with a callback
 * (sparkguard_on_pressure) are asked one after another, the one whose job holds the most beyond its claims first, for
 * its share (sparkguard --share). A job that holds no more than it has claimed is not asked. Before them, processes of
 * the same user are asked whose heap may keep much freed memory (trim.h). A helper that runs a command
 * (sparkguard --on-pressure) is asked for requests of its own user and of root alone, and believes what is in a record
 * of theirs.
 *
 * The asking process writes how much is missing into the other's registry entry and wakes its thread there. The
 * callback runs in the other process, outside of any allocation. Nobody waits for it: the request is judged again when
 * memory becomes free, or when a callback returns, and decided at its deadline.
 */
#ifndef SG_PRELOAD_SHARED_GIVERS_H
#define SG_PRELOAD_SHARED_GIVERS_H

#include <stdbool.h>
#include <stdint.h>

/* One request asks at most so many processes. */
enum { SG_GIVERS_ASKED_MAX = 16 };

/* What one request has asked of others. All 0 at first. */
struct sg_givers_asked {
    uint64_t since_ns;     /* when the last one was asked, or when its answer was seen (CLOCK_MONOTONIC) */
    uint16_t count;        /* how many were asked */
    uint16_t seen;         /* of how many the answer was seen */
    bool has_answered;     /* its answer was seen, and nobody else can be asked */
    bool has_asked_silent; /* those whose answers nobody waits for were asked as well */
    uint16_t entry[SG_GIVERS_ASKED_MAX];    /* the numbers of their entries */
    uint32_t sequence[SG_GIVERS_ASKED_MAX]; /* and of the question in each */
};

/* Asks the next process to give back `bytes`, if the last one that was asked has answered or was asked half a second
 * ago. An answer that is new may have brought what the request needs: the caller sums up again first. Returns whether
 * an answer may still come. Any thread, without the decision lock. */
bool sg_givers_ask(struct sg_givers_asked *asked, uint64_t bytes);

/* Call it where the request waits no longer. Nobody waits for those that have not answered until they do; they are
 * still asked. Any thread. */
void sg_givers_give_up(const struct sg_givers_asked *asked);

/* On the side that is asked: answers question `sequence` (watch/giving.h). Wakes those who wait for memory. */
void sg_givers_answer(uint32_t sequence);

#endif
