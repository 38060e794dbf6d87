/*
 * arrays.pml - a model of array credit: threads that free arrays and take them again without a decision, beside a scan
 * that computes anew what the process promises.
 *
 * Checked by tests/model/run. Every statement is one access to shared memory, in the order in which
 * preload/guard/hooks/heap/heap.c (allocate_from_credit, allocate_large, count_and_free), preload/core/account/ledger.c
 * (sg_ledger_take_array, _give_array, _begin_scan, _end_scan) and tracker.c (sg_tracker_scan) make it. All
 * arrays have one size.
 *
 *     slot              the block table: an array, and whether a scan has seen it
 *     resident          the array has pages: the kernel's figures show it
 *     word              array_credit of a thread's record; CLOSED: the thread may have none
 *     promised          sum of the process; flight: admitted and not promised yet
 *     paying            sum of the records' paying_bytes: arrays on the way from the credit into the table
 *     epoch             arrays.epoch: odd during a scan
 *     ever              promises.ever_bytes (transit.h)
 *
 * Properties
 *     backed    at any time an array without pages is promised, or in flight: whoever reads the promises first and the
 *               kernel second does not find room that is not there. So the arrays that credit pays take nothing that
 *               was not granted for an array before: credit overshoots by nothing as far as promises are known.
 *     bounded   a thread's credit is at most CREDIT arrays. So if somebody takes the room without asking, each thread
 *               can still touch at most that much more, and nothing that was not granted before.
 *
 * Parameters (-D)
 *     THREADS SCANS      (2, 2)
 *     ROUNDS CREDIT      what each thread does, and how much credit it may have (3, 1)
 *     BREAK_OLD          an array that a scan has seen becomes credit as well
 *     BREAK_NO_CLOSE     a scan leaves the credit
 *     BREAK_NO_GATE      a thread gives credit whether or not a scan has begun
 *     BREAK_GIVE_IN_SCAN it gives credit during a scan if its word is open
 *     BREAK_EPOCH_LATE   it reads the epoch after it has removed the array
 *     BREAK_NO_MARK      a scan does not mark what it has seen
 *     BREAK_PAYING_LATE  a thread shows what it pays after it has taken the credit
 *     BREAK_PAYING_FIRST a scan reads that before it takes the credit back
 *     BREAK_NO_EVER      the scan forgets what was promised while it went on
 */

#ifndef THREADS
#define THREADS 2
#endif
#define SLOTS 2
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef CREDIT
#define CREDIT 1
#endif
#ifndef SCANS
#define SCANS 2
#endif

#define NONE 0
#define NEW 1
#define SEEN 2
#define CLOSED 255

byte slot[SLOTS];
bool resident[SLOTS];
byte word[THREADS];
byte promised, flight, ever;
byte paying; /* sum of the records' paying_bytes */
byte epoch;
byte running = THREADS;

inline enter(at)
{
    atomic {
        if
        :: slot[0] == NONE -> at = 0
        :: slot[1] == NONE -> at = 1
        fi;
        slot[at] = NEW;
        resident[at] = false
    }
}

proctype thread(byte me)
{
    byte at, rounds, was, seen, old;
    bool is_paid;
    do
    :: rounds < ROUNDS ->
        rounds++;
        /* malloc: has_array_credit, then allocate_from_credit */
        is_paid = false;
        if
        :: word[me] != CLOSED && word[me] > 0 ->
#ifndef BREAK_PAYING_LATE
            paying++;
#endif
            atomic {
                if
                :: word[me] != CLOSED && word[me] > 0 -> word[me]--; is_paid = true
                :: else -> skip
                fi
            }
#ifdef BREAK_PAYING_LATE
            paying++;
#endif
            if
            :: is_paid -> enter(at)
            :: else -> skip
            fi;
            paying--
        :: else -> skip
        fi;
        if
        :: is_paid -> skip
        :: else ->
            flight++;
            enter(at);
            ever++;
            promised++;
            flight--
        fi;
        /* the program may touch it */
        if
        :: resident[at] = true
        :: skip
        fi;
        /* free: the epoch, the value that the removal returns, then the credit */
#ifdef BREAK_EPOCH_LATE
        atomic { was = slot[at]; slot[at] = NONE; resident[at] = false }
        seen = epoch;
#else
        seen = epoch;
        atomic { was = slot[at]; slot[at] = NONE; resident[at] = false }
#endif
#ifndef BREAK_OLD
        if
        :: was == NEW -> skip
        :: else -> goto release
        fi;
#endif
#ifndef BREAK_NO_GATE
#ifndef BREAK_GIVE_IN_SCAN
        if
        :: seen % 2 != 0 -> goto release
        :: else -> skip
        fi;
#endif
        if
        :: word[me] == CLOSED && seen % 2 != 0 -> goto release
        :: else -> skip
        fi;
#endif
        atomic {
            if
            :: word[me] == CLOSED -> word[me] = 0
            :: else -> skip
            fi
        }
give:
        old = word[me];
        if
#ifdef BREAK_NO_GATE
        :: old != CLOSED && old < CREDIT -> skip
#else
        :: old != CLOSED && old < CREDIT && epoch == seen -> skip
#endif
        :: else -> goto release
        fi;
        atomic {
            if
            :: word[me] == old -> word[me]++; goto done
            :: else -> goto release
            fi
        }
release:
done:
        atomic { at = 0; was = 0; seen = 0; old = 0; is_paid = false }
    :: else -> break
    od;
    running--
}

inline close(who)
{
#ifndef BREAK_NO_CLOSE
    atomic {
        if
        :: word[who] != CLOSED -> word[who] = CLOSED
        :: else -> skip
        fi
    }
#else
    skip
#endif
}

proctype scanner()
{
    byte start, found, next, scans, before;
    do
    :: scans < SCANS && running != 0 ->
        scans++;
        next = 0;
        epoch++;
#ifdef BREAK_PAYING_FIRST
        found = paying;
#endif
        close(0);
#if THREADS > 1
        close(1);
#endif
#ifndef BREAK_PAYING_FIRST
        found = paying;
#endif
        start = ever;
        do
        :: next < SLOTS ->
            atomic {
#ifndef BREAK_NO_MARK
                if
                :: slot[next] == NEW -> slot[next] = SEEN
                :: else -> skip
                fi;
#endif
                if
                :: slot[next] != NONE && !resident[next] -> found++
                :: else -> skip
                fi
            }
            next++
        :: else -> break
        od;
        atomic {
#ifndef BREAK_NO_EVER
            found = found + ever - start;
#endif
            promised = found
        }
        epoch++
    :: else -> break
    od
}

#define MISSING(i) (slot[i] != NONE && !resident[i] -> 1 : 0)
#define UNBACKED (MISSING(0) + MISSING(1) > promised + flight)
#define CREDIT_OF(i) (word[i] == CLOSED -> 0 : word[i])

active proctype monitor()
{
end:
    do
    :: atomic { UNBACKED -> assert(!(UNBACKED)) }
    :: atomic { CREDIT_OF(0) > CREDIT -> assert(CREDIT_OF(0) <= CREDIT) }
    od
}

init
{
    atomic {
        word[0] = CLOSED;
#if THREADS > 1
        word[1] = CLOSED;
        run thread(1);
#endif
        run thread(0);
        run scanner()
    }
}
