/*
 * queue.pml - a model of the queue of claims.
 *
 * Checked by tests/model/run. Every statement is one access to shared memory or to the kernel, in the order in which
 * the code makes it; words of an entry that do not change are read with one that does. The code: attempt, try_once,
 * raise_once and decide in preload/core/admit/claim.c, sg_claims_queue, sg_claims_count_before, sg_claims_grant and
 * sg_claims_change in preload/core/shared/claims.c, sg_control_lower_claim in preload/core/observer/control.c, sg_registry_announce and mark_dead in
 * preload/core/shared/registry.c.
 *
 *     places            claim_places of the registry: the last place in the queue that was taken
 *     epoch             advances when a waiting process should look again
 *     asked             where tickets come from
 *     is_live[i]        the entry of claim i is published, and is not marked dead
 *     wanted, claimed   words of the entry. wanted is not 0: the claim waits. claimed is not 0: it is granted
 *     place, priority   words of the entry; they do not change
 *     ticket, queued    of the registry entry of the process that decides on claim i
 *     is_killed[i]      the process that claims is dead, or the claim has ended: its lock is free
 *
 * Processes: CLAIMS processes, each of which claims SIZE(i) of ROOM bytes. Killer ends any of them, waiting or granted,
 * if KILLS allows. RAISERS processes of sparkguard --set each raise the granted claim 0 by one byte, once, in a
 * registry entry of their own; LOWERS more lower it by one byte. Requests of programs are in tenants.pml. An entry that another
 * job takes while its claim is raised is not modelled.
 *
 * Properties
 *     sum               the granted claims never exceed ROOM together
 *     order             a claim is not granted before another one that was first in the queue when its process looked
 *     first             when nothing moves any more, no claim waits that is the first one and fits
 *
 * Parameters (-D)
 *     CLAIMS            how many (3)
 *     ROOM              bytes (3)
 *     SIZES             SIZE of claim 0, 1, 2 as decimal digits, claim 0 last (221)
 *     PRIORITIES        the same for the priority of each (0)
 *     KILLS             how many may be killed (0). Searched with two claims; with three there are too many states
 *     RAISERS           how many raise claim 0 (0)
 *     LOWERS            how many lower claim 0 (0)
 *     STOPS             how many may be stopped, between any two accesses, for a moment or until nothing else moves (0). `order` and `first` speak
 *                       of the others then: who is stopped is passed over
 *     STEPS             how often the wait of each may end by its step when nothing else moves (1). Without a step
 *                       (BREAK_NO_STEP) `first` does not hold: the death of a process wakes nobody, and two claims may
 *                       both be first for a moment, when one has taken an earlier place and is not published yet; each
 *                       may then be denied because the other one is being decided
 *     BREAK_...         swaps or leaves out one thing; tests/model/run expects a violation from each
 */

#ifndef CLAIMS
#define CLAIMS 3
#endif
#ifndef ROOM
#define ROOM 3
#endif
#ifndef SIZES
#define SIZES 221
#endif
#ifndef PRIORITIES
#define PRIORITIES 0
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef RAISERS
#define RAISERS 0
#endif
#ifndef LOWERS
#define LOWERS 0
#endif
#ifndef STOPS
#define STOPS 0
#endif
#ifdef BREAK_NO_STEP
#define STEPS 0
#endif
#ifndef STEPS
#define STEPS 1
#endif

#define DIGIT(number, i) (((i) == 0 -> (number) : ((i) == 1 -> (number) / 10 : (number) / 100)) % 10)
#define SIZE(i) DIGIT(SIZES, i)

#define NONE 0
#define CHOOSING 1
#define FIRST 2

#define ENTRIES (CLAIMS + RAISERS) /* the raisers' come last */

byte places, epoch, asked;
bool is_live[ENTRIES], is_killed[CLAIMS];
byte wanted[ENTRIES], claimed[ENTRIES], place[ENTRIES], ticket[ENTRIES], queued[ENTRIES];
byte kills, steps[CLAIMS], stops;
bool is_stopped[ENTRIES], was_stopped[ENTRIES];

#define IS_BEFORE(a, b) \
    (DIGIT(PRIORITIES, a) != DIGIT(PRIORITIES, b) -> DIGIT(PRIORITIES, a) > DIGIT(PRIORITIES, b) : place[a] < place[b])
#define COUNTS(i) ((i) != me && is_live[i])
#define WAITS(i) (is_live[i] && !is_killed[i] && wanted[i] != 0 && !is_stopped[i])
#define HAS_STEPPED(i) ((i) >= CLAIMS || !WAITS((i) % CLAIMS) || steps[(i) % CLAIMS] == STEPS)

/* Goes through the entries; what is done for entry j is one access. */
#define FOR_ALL(entries, body) \
    j = 0; \
    do \
    :: atomic { j < entries -> body; j++ } \
    :: atomic { j == entries -> j = 0; break } \
    od

/* sg_check_take_out_the_dead() */
inline take_out_the_dead()
{
#if KILLS
    FOR_ALL(CLAIMS, if :: is_live[j] && is_killed[j] -> is_live[j] = false; has_found = true :: else -> skip fi);
    if
    :: atomic { has_found -> has_found = false; epoch++ }
    :: !has_found
    fi
#else
    skip
#endif
}

/* A ghost of the property `order`: bit j: claim j waits before this one. */
inline note_those_before()
{
    d_step {
        before = 0;
        j = 0;
        do
        :: j == CLAIMS -> break
        :: else ->
            before = before | ((j != me && WAITS(j) && IS_BEFORE(j, me)) -> 1 << j : 0);
            j++
        od;
        j = 0
    }
}

/* sg_claims_count_before() */
inline count_before()
{
    is_first = true;
#ifdef BREAK_WAITS_FOR_STOPPED
    FOR_ALL(CLAIMS, is_first = is_first && !(COUNTS(j) && wanted[j] != 0 && IS_BEFORE(j, me)))
#else
    FOR_ALL(CLAIMS, is_first = is_first && !(COUNTS(j) && wanted[j] != 0 && !is_stopped[j] && IS_BEFORE(j, me)))
#endif
}

/* sg_peers_sum(): the tickets before this one. */
inline add_queued()
{
    FOR_ALL(ENTRIES, sum = sum + (COUNTS(j) && ticket[j] != NONE && (ticket[j] == CHOOSING || ticket[j] < own) -> queued[j] : 0))
}

/* sg_claims_end() */
inline add_claimed()
{
    FOR_ALL(CLAIMS, sum = sum + (COUNTS(j) -> claimed[j] : 0))
}

inline check_sum()
{
    d_step {
        all = 0;
        j = 0;
        do
        :: j == CLAIMS -> break
        :: else ->
            all = all + (is_live[j] -> claimed[j] : 0);
            j++
        od;
        assert(all <= ROOM); /* sum */
        j = 0;
        do
        :: j == CLAIMS -> break
        :: else ->
            assert(!(before & (1 << j)) || !WAITS(j) || was_stopped[j] || was_stopped[me]); /* order */
            j++
        od;
        all = 0;
        j = 0
    }
}

/* sg_registry_announce() */
inline announce(bytes)
{
    queued[me] = bytes;
    ticket[me] = CHOOSING;
    atomic { own = asked + FIRST; asked++ };
    ticket[me] = own
}

inline decide()
{
    atomic { sum = 0; more = SIZE(me) };
#ifndef BREAK_NO_ANNOUNCEMENT
    announce(more);
#endif
#ifdef BREAK_CLAIMS_READ_FIRST
    add_claimed();
    add_queued();
#else
    add_queued();
    add_claimed();
#endif
    atomic { is_granted = sum + more <= ROOM; sum = 0; more = 0; own = NONE };
#ifdef BREAK_WITHDRAW_FIRST
    ticket[me] = NONE;
#endif
    if
    :: is_granted ->
        atomic { claimed[me] = SIZE(me); check_sum() };
        wanted[me] = 0
    :: else -> skip
    fi;
    atomic { ticket[me] = NONE; queued[me] = 0; is_first = false }
}

proctype Claimant(byte me) provided (!is_stopped[me])
{
    byte seen, j, own, sum, more, before, all;
    bool is_first, is_granted, has_found;
    {
        /* sg_claims_queue() */
        atomic { places++; place[me] = places };
        wanted[me] = SIZE(me);
        is_live[me] = true;
        do
        :: is_granted -> break
        :: else ->
#ifndef BREAK_SEEN_LATE
            seen = epoch;
#endif
            take_out_the_dead();
            note_those_before();
#ifdef BREAK_NO_ORDER
            is_first = true;
#else
            count_before();
#endif
            if
            :: is_first -> decide()
            :: else -> skip
            fi;
            if
            :: is_granted ->
                before = 0;
#ifndef BREAK_SILENT
                epoch++;
#endif
                seen = 0
            :: else ->
                before = 0;
#ifdef BREAK_SEEN_LATE
                seen = epoch;
#endif
end_waits:
                atomic {
                    if
                    :: epoch != seen -> skip
                    :: timeout && steps[me] < STEPS -> steps[me]++
                    fi;
                    seen = 0
                }
            fi
        od
    } unless { is_killed[me] }
}


/* raise_once(), and decide() for a granted claim. Tries until the claim is as it was found. */
proctype Raiser(byte me)
{
    byte j, own, sum, before, all, from;
    bool is_done;
end_waits:
    atomic { claimed[0] != 0 -> from = claimed[0] };
    do
    :: is_done || from == 0 -> break
    :: else ->
#ifndef BREAK_RAISE_NO_ANNOUNCEMENT
        announce(1);
#endif
        add_queued();
        add_claimed();
        atomic {
            if
            :: sum + 1 > ROOM -> is_done = true /* it does not fit now */
#ifdef BREAK_RAISE_BLIND
            :: sum + 1 <= ROOM ->
#else
            :: sum + 1 <= ROOM && claimed[0] != from -> skip
            :: sum + 1 <= ROOM && claimed[0] == from ->
#endif
                claimed[0] = from + 1;
                is_done = true;
                check_sum()
            fi
        };
        atomic { ticket[me] = NONE; queued[me] = 0; sum = 0; own = NONE; from = claimed[0] }
    od
}

/* sg_control_lower_claim() */
proctype Lowerer()
{
    byte from;
end_waits:
    atomic { claimed[0] > 1 -> from = claimed[0] };
    do
    :: atomic {
            if
            :: claimed[0] == from -> claimed[0] = from - 1; break
            :: else -> from = claimed[0]
            fi
        }
    od;
    epoch++
}

/* Who waits looks again and again: a stop, or its end, must be seen by the next look. */
inline step_again()
{
    steps[0] = 0;
    steps[1] = 0
}

proctype Stopper() /* with two claims */
{
    byte i;
    do
    :: stops < STOPS ->
        select(i : 0 .. (CLAIMS - 1));
        atomic { is_stopped[i] = true; was_stopped[i] = true; stops++; step_again() };
        if
        :: true -> atomic { is_stopped[i] = false; step_again() }
        :: true -> atomic { timeout -> is_stopped[i] = false; step_again() } /* when nothing else moves; before or after Monitor looks */
        fi
    :: break
    od
}

proctype Killer()
{
    byte i;
    do
    :: kills < KILLS ->
        select(i : 0 .. (CLAIMS - 1));
        atomic {
            if
            :: !is_killed[i] -> is_killed[i] = true; kills++
            :: else -> skip
            fi
        }
    :: break
    od
}

proctype Monitor()
{
    byte i, j, all, waiting;
    timeout && HAS_STEPPED(0) && HAS_STEPPED(1) && HAS_STEPPED(2) ->
    d_step {
        i = 0;
        do
        :: i == CLAIMS -> break
        :: else ->
            all = all + (is_live[i] && !is_killed[i] -> claimed[i] : 0);
            all = all + (is_stopped[i] && ticket[i] != NONE -> queued[i] : 0); /* in its decision */
            i++
        od;
        i = 0;
        do
        :: i == CLAIMS -> break
        :: else ->
            waiting = 0;
            j = 0;
            do
            :: j == CLAIMS -> break
            :: else ->
                waiting = waiting + (j != i && WAITS(j) && IS_BEFORE(j, i) -> 1 : 0);
                j++
            od;
            assert(!WAITS(i) || waiting != 0 || all + SIZE(i) > ROOM); /* first */
            i++
        od
    }
}

init
{
    byte i;
    atomic {
        i = 0;
        do
        :: i == CLAIMS -> break
        :: else ->
            run Claimant(i);
            i++
        od;
        i = 0;
        do
        :: i == RAISERS -> break
        :: else ->
            is_live[CLAIMS + i] = true;
            run Raiser(CLAIMS + i);
            i++
        od;
        i = 0;
        do
        :: i == LOWERS -> break
        :: else ->
            run Lowerer();
            i++
        od;
        run Killer();
#if STOPS
        run Stopper();
#endif
        run Monitor()
    }
}
