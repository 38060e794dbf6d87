/*
 * scan.pml - a model of one scan of all that a process was promised, beside threads that move what was promised from
 * place to place (realloc, mremap). entry.pml takes for granted what is shown here: that a scan misses
 * nothing.
 *
 * Checked by tests/model/run. Every statement is one access to shared memory, in the order in which
 * preload/core/account/transit.h, for ledger.c (sg_ledger_begin_move, _end_move, _begin_scan, _end_scan), heap.c (resize)
 * and headroom.c (sg_headroom_scan) make it. A mapping differs in that it goes from place to place at once (mmap.c:
 * park, follow_mremap, each under the lock of the maps).
 *
 *     place         what a scan reads one after the other: slots of the table, or ranges
 *     ever moving   promises.ever_bytes, promises.now_bytes (transit.h)
 *
 * Property
 *     found         the scan finds all of it
 *
 * Parameters (-D)
 *     AT_ONCE           what moves is a mapping
 *     MOVES             how often each thread moves its own (2)
 *     BREAK_NO_EVER     what moves is not counted with what was promised since the scan began
 *     BREAK_NO_MOVING   what is moving when the scan begins is not counted
 *     BREAK_EVER_FIRST  a move is counted as promised since before it is counted as moving
 *     BREAK_MOVING_READ_FIRST  the scan reads what is moving before it reads what was ever promised
 *     BREAK_BEGIN_LATE  a move begins when the place is empty
 *     BREAK_END_EARLY   a move ends before what moved has its new place
 */

#define THREADS 2
#define PLACES 4
#ifndef MOVES
#define MOVES 2
#endif

bool place[PLACES];
byte ever;
byte moving;

#ifdef BREAK_NO_EVER
#define COUNT_EVER skip
#else
#define COUNT_EVER ever++
#endif
#ifdef BREAK_EVER_FIRST
#define BEGIN_MOVE COUNT_EVER; moving++
#else
#define BEGIN_MOVE moving++; COUNT_EVER
#endif

proctype mover(byte at)
{
    byte to, moves;
    do
    :: moves < MOVES ->
        moves++;
#ifndef BREAK_BEGIN_LATE
        BEGIN_MOVE;
#endif
#ifdef AT_ONCE
        atomic {
            select (to : 0 .. PLACES - 1);
            if
            :: to == at || !place[to] -> place[at] = false; place[to] = true; at = to
            :: else -> skip /* not this time */
            fi
        }
#else
        place[at] = false;
#endif
#ifdef BREAK_BEGIN_LATE
        BEGIN_MOVE;
#endif
#ifdef BREAK_END_EARLY
        moving--;
#endif
#ifndef AT_ONCE
        atomic { /* an address that is nobody's */
            if
            :: !place[0] -> at = 0
            :: !place[1] -> at = 1
            :: !place[2] -> at = 2
            :: !place[3] -> at = 3
            fi;
            place[at] = true
        }
#endif
#ifndef BREAK_END_EARLY
        moving--
#endif
    :: else -> break
    od
}

proctype scanner()
{
    byte ever_at_scan, moving_at_scan, found, next;
#ifdef BREAK_MOVING_READ_FIRST
    moving_at_scan = moving;
    ever_at_scan = ever;
#else
    ever_at_scan = ever;
    moving_at_scan = moving;
#endif
#ifdef BREAK_NO_MOVING
    moving_at_scan = 0;
#endif
    do
    :: next < PLACES ->
        found = found + place[next];
        next++
    :: else -> break
    od;
    assert(found + moving_at_scan + ever - ever_at_scan >= THREADS)
}

init
{
    atomic {
        place[0] = true;
        place[2] = true;
        run mover(0);
        run mover(2);
        run scanner()
    }
}
