/*
 * admission.pml - a model of how guarded processes share one machine: announce, look, judge, settle.
 *
 * Checked by tests/model/run, which lists the configurations. Every statement below is one access to shared memory
 * or to the kernel, in the order in which preload/core/admit/admission.c, check.c, headroom.c, registry.c, own_entry.c,
 * peers.c and ledger.c make it (all seq_cst, see preload/core/base/atomics.h). Who reorders two accesses there changes them
 * here, and runs the models.
 *
 * The ledger that all processes share, and what it is here:
 *     asked             asked_bytes: ever asked for; only grows. A request's place: its value before the request
 *     is_advanced[t]    the epoch, one bit per thread: "advanced since the thread last read it"
 *     is_live[s]        the registry entry's claim is LIVE; the other states and the generations are in claim.pml
 *     ticket[s]         NONE, CHOOSING, or FIRST + the place of the large request that is being judged
 *     asking[s]         queued_bytes
 *     flight[s]         in_flight_bytes. How the registry entry is kept in step with the process's own slot is in
 *     registry entry.pml promised[s]       promised_bytes
 *     most[s]           private to the process: state.most of headroom.c, the last snapshot as a place; 0: forgotten
 *     available         what the kernel shows, less the line. The model has one line for small and large requests, and
 *                       none of the grace and of the sixteenth that soften what small requests meet: it is stricter
 *
 * Properties
 *     safety            the bytes that live processes hold or may still touch never exceed the room above the line
 *     exactness         (nobody dies or stops) when all requests have ended, none was refused that would still fit
 *     frugality         (nobody dies or stops) a request is judged no more than REFRESHES_MAX times
 *     liveness          every request of a process that neither dies nor stops ends, admitted or refused
 *     wakeups           (WAKEUPS) and without the steps of a wait: whoever must be woken is woken by the epoch
 *     reaping           what a process left that was dead before the last snapshot costs nobody a refusal
 *
 * Parameters (-D)
 *     PROCESSES ROOM    how many processes; bytes above the line
 *     MACHINE           bytes of the machine: a larger request is not announced
 *     S00 S01 S10 ...   bytes of request 0 and 1 of process 0, 1, 2; 0 if there is none
 *     SMALL             bit 2 * process + request: it is a small one
 *     YOUNG             the same bits: a large one that tries a cached snapshot first
 *     BEHIND            the same bits: a large one of CUDA whose books may be behind the driver's: when it does not fit
 *                       at the first snapshot, it gives its place back, the books are brought up, and it is asked for again
 *     KINDS             what a large admitted call may turn out to be: 1 eager, 2 lazy, 4 failing (a bit mask)
 *     TOUCH FREE        lazy memory may be touched and found by a scan; memory may be given back
 *     DEATH STOP        bit masks of processes: may be killed, may stop for ever, at any step
 *     EXACT             nobody dies or stops, and the 3 s are longer than any call: no request runs out of time
 *     STEPS             so often may a process's wait end by its step while others move; when nothing moves, always
 *     WAKEUPS           EXACT, and no wait ends by its step
 *     NESTED            process 1's second request is made from inside the real call of its first one, and has no
 *                       longest wait for what is in flight (sg_wait_for_flight_ns)
 *     SIBLINGS          processes 0 and 1 are two threads of one process: one registry entry, one lock
 *     LOOKED            every process has a snapshot at the start, which stays young
 *     REAPING           checks that property; of two processes with a request that fits alone
 *     BREAK_...         swaps or leaves out one thing; tests/model/run expects a violation from each
 *     FLAW_...          the same, but it is what the code does as long as tests/model/run lists it
 */

#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef ROOM
#define ROOM 1
#endif
#ifndef MACHINE
#define MACHINE 9
#endif
#ifndef S00
#define S00 1
#endif
#ifndef S01
#define S01 0
#endif
#ifndef S10
#define S10 1
#endif
#ifndef S11
#define S11 0
#endif
#ifndef S20
#define S20 1
#endif
#ifndef S21
#define S21 0
#endif
#ifndef SMALL
#define SMALL 0
#endif
#ifndef YOUNG
#define YOUNG 0
#endif
#ifndef BEHIND
#define BEHIND 0
#endif
#ifndef KINDS
#define KINDS 3
#endif
#ifndef DEATH
#define DEATH 0
#endif
#ifndef STOP
#define STOP 0
#endif
#ifndef STEPS
#define STEPS 1
#endif
#ifndef REFRESHES_MAX
#define REFRESHES_MAX 12
#endif
#if defined(WAKEUPS) && !defined(EXACT)
#define EXACT
#endif

#define NONE 0
#define CHOOSING 1
#define FIRST 2

#if defined(EXACT) || defined(BREAK_BOUND)
#define RUNS_OUT_OF_TIME false
#else
#define RUNS_OUT_OF_TIME true
#endif
#if defined(WAKEUPS) || defined(BREAK_BOUND)
#define STEP_IS_OVER false
#define IS_OVER timeout
#else
#define STEP_IS_OVER (steps < STEPS)
#define IS_OVER (timeout && waiting == 0)
#endif

/* ---- what the processes share ---- */

byte asked;
bool is_advanced[PROCESSES];
bool is_live[PROCESSES] = true;
byte ticket[PROCESSES];
byte asking[PROCESSES];
byte flight[PROCESSES];
byte promised[PROCESSES];

/* ---- private to a process ---- */

#ifdef LOOKED
byte most[PROCESSES] = ROOM;
#else
byte most[PROCESSES];
#endif
#ifdef SIBLINGS
bool is_locked[PROCESSES];
byte landed[PROCESSES]; /* what ever came to be there at once */
#endif
#ifdef BREAK_TORN
byte slack_at[PROCESSES] = ROOM; /* with LOOKED */
byte asked_at[PROCESSES];
#endif

/* ---- the kernel, and the truth that only the model knows ---- */

short available = ROOM;
byte taken[PROCESSES];     /* bytes the kernel has given */
byte committed[PROCESSES]; /* taken, may still be touched, or admitted and not called yet */
byte last;                 /* whose step was over last when nothing moved */
byte waiting;              /* processes that sleep in sg_peers_wait */
bool is_killed[PROCESSES];
bool is_stopped[PROCESSES];
bool is_done[PROCESSES];
byte refused[PROCESSES];   /* bytes of a refused request */

#if PROCESSES == 2
#define COMMITTED (committed[0] + committed[1])
#else
#define COMMITTED (committed[0] + committed[1] + committed[2])
#endif

#define SIZE(p, k)                                                                                                     \
    (p == 0 -> (k == 0 -> S00 : S01) : (p == 1 -> (k == 0 -> S10 : S11) : (k == 0 -> S20 : S21)))
#define IS_SMALL(p, k) ((SMALL >> (2 * p + k)) & 1)
#define IS_YOUNG(p, k) ((YOUNG >> (2 * p + k)) & 1)
#define IS_BEHIND(p, k) ((BEHIND >> (2 * p + k)) & 1)

#ifdef SIBLINGS
#define ENTRY_OF(p) (p < 2 -> 0 : p)
#define LOCK atomic { !is_locked[entry] -> is_locked[entry] = true }
#define UNLOCK is_locked[entry] = false
#else
#define ENTRY_OF(p) p
#define LOCK skip
#define UNLOCK skip
#endif

/* sg_peers_advance() */
#if PROCESSES == 2
#define ADVANCE d_step { is_advanced[0] = true; is_advanced[1] = true }
#else
#define ADVANCE d_step { is_advanced[0] = true; is_advanced[1] = true; is_advanced[2] = true }
#endif

/* ---- a refresh, sg_headroom_refresh(): what was asked, then the registry entries, then the kernel, then what is our o */

#define IS_OTHER(j) (j < PROCESSES && is_live[j] && ENTRY_OF(j) == j && j != entry)
#define IS_SKIPPED(j) (j < PROCESSES && (ENTRY_OF(j) != j || !is_live[j] || j == entry))

/* read_ticket() and is_before(): who is choosing is read again some times, and then stands before us. Without a ticket
 * (`mine` is NONE) all do. */
inline read_asking()
{
    atomic {
        seen = ticket[j];
        if
        :: seen == CHOOSING && ticket[j] != CHOOSING -> seen = ticket[j]
#ifdef WAKEUPS
        :: seen != CHOOSING
#else
        :: true
#endif
        fi
    };
    atomic {
        if
        :: seen == NONE
#ifdef BREAK_COUNT_CHOOSING
        :: seen == CHOOSING
        :: seen >= FIRST && (mine == NONE || seen < mine) -> before = before + asking[j]
#else
        :: seen != NONE && (seen == CHOOSING || mine == NONE || seen < mine) -> before = before + asking[j]
#endif
        :: seen >= FIRST && mine != NONE && seen >= mine -> behind = behind + asking[j]
        fi;
        seen = 0
    }
}

/* sg_peers_sum(), read_entry(). A request moves asking -> in flight -> promised -> the kernel, and enters the next
 * before it leaves the last: read in that order it may be seen twice, never missed. */
inline sum()
{
    do
    :: atomic { j == PROCESSES -> j = 0; break }
    :: atomic { IS_SKIPPED(j) -> j++ }
#if defined(BREAK_TICKET_LAST)
    :: atomic { IS_OTHER(j) -> flying = flying + flight[j] };
        held = held + promised[j];
        read_asking();
        j++
#elif defined(BREAK_PROMISE_READ_FIRST)
    :: atomic { IS_OTHER(j) -> skip };
        read_asking();
        held = held + promised[j];
        atomic { flying = flying + flight[j]; j++ }
#else
    :: atomic { IS_OTHER(j) -> skip };
        read_asking();
        flying = flying + flight[j];
        atomic { held = held + promised[j]; j++ }
#endif
    od
}

/* taken_of(), our own part: a sibling's request moves without the lock, from in flight to promised, or to what has
 * landed, of which the snapshot may not know. */
inline read_own()
{
#ifdef SIBLINGS
#ifdef BREAK_OWN_PROMISE_READ_FIRST
    own_held = promised[entry];
    own_flying = flight[entry];
#else
    own_flying = flight[entry];
#ifndef BREAK_NO_LANDED
    own_flying = own_flying + landed[entry] - landed_before;
#endif
    own_held = promised[entry];
#endif
#else
    own_flying = flight[entry];
    own_held = promised[entry];
#endif
}

#define TAKEN (held + flying + own_held + own_flying + before)
#ifdef BREAK_ASKING_IN_SLACK
#define SLACK (room - held - flying - own_held - own_flying)
#else
#define SLACK (room - TAKEN - behind)
#endif

/* note_slack(): one word, so that nobody reads half of an old look and half of a new one. */
inline note_slack()
{
    atomic {
        slack = SLACK;
#if SMALL || YOUNG
#ifdef BREAK_TORN
        slack_at[entry] = (slack > 0 -> slack : 0);
        most[entry] = 1
    };
    asked_at[entry] = from;
#else
        most[entry] = (slack > 0 -> from + slack : 0)
    };
#endif
#else
    };
#endif
}

/* `from`: everything asked for since comes off; of what is announced, its own bytes too. */
inline read_entries()
{
#ifdef BREAK_KERNEL_READ_FIRST
    room = available;
#endif
    atomic {
        from = asked;
#ifndef BREAK_SPEND_LATE
        if
        :: mine >= FIRST -> from = mine - FIRST
        :: else
        fi
#endif
    };
    sum()
}

inline look_at_kernel()
{
#ifdef SIBLINGS
#ifndef BREAK_LANDED_READ_LATE
    landed_before = landed[entry];
#endif
#endif
#ifndef BREAK_KERNEL_READ_FIRST
    room = available;
#endif
#ifdef BREAK_LANDED_READ_LATE
    landed_before = landed[entry];
#endif
#ifdef BREAK_ASKED_READ_LATE
    from = asked;
#endif
    read_own();
    note_slack()
}

/* Nobody but a sibling sees or changes what is read and written from here until the verdict. */
#ifdef SIBLINGS
#define LOOK read_entries(); look_at_kernel()
#define LOOK_REST skip
#else
#define LOOK read_entries()
#define LOOK_REST look_at_kernel()
#endif

inline forget_sums()
{
    flying = 0;
    held = 0;
    own_flying = 0;
    own_held = 0;
    before = 0;
    behind = 0;
    room = 0;
    slack = 0;
#ifdef SIBLINGS
    landed_before = 0;
#endif
    from = 0
}

/* ---- judging ---- */

/* sg_registry_announce(): the place is taken while CHOOSING shows, and before the registry entries are read. */
inline announce()
{
    asking[entry] = bytes;
    ticket[entry] = CHOOSING;
#ifdef BREAK_PLACE_LATE
    mine = FIRST + asked;
    ticket[entry] = mine;
#else
    atomic { mine = FIRST + asked; asked = asked + bytes };
    ticket[entry] = mine;
#endif
}

/* sg_headroom_take(), sg_registry_take(): it may also decline, when the snapshot is old or the slack is not large beside
 * it. */
inline take()
{
#ifdef BREAK_TORN
    limit = slack_at[entry];
    limit = limit + asked_at[entry];
#else
    limit = most[entry];
#endif
    atomic {
        if
        :: limit != 0 ->
            asked = asked + bytes;
            if
            :: asked <= limit -> is_admitted = true; commit()
            :: else
            fi
        :: true
        fi;
        limit = 0
    }
}

/* sg_registry_reap(), mark_dead() */
inline reap()
{
    atomic {
        is_dead_ignored = false;
        do
        :: j == PROCESSES -> j = 0; break
        :: j < PROCESSES ->
            if
            :: is_killed[j] ->
#ifndef BREAK_REAP
                if
                :: is_live[j] -> is_live[j] = false; ADVANCE
                :: else
                fi;
#endif
                is_dead_ignored = true
            :: else
            fi;
            j++
        od
    }
}

#define FITS (room >= bytes + TAKEN)
#define FITS_BUT_BEFORE (room >= bytes + TAKEN - before)
#define FITS_BUT_FLIGHT (room >= bytes + held + own_held)

/* sg_headroom_would_be_above_floor(): a small request that is judged is in flight itself. */
#ifdef BREAK_OWN_FLIGHT_LASTS
#define FITS_ALONE (room >= held + own_held + own_flying)
#else
#define FITS_ALONE (room >= bytes + held + own_held)
#endif

/* WAIT_FOR_TURN and WAIT_FOR_FLIGHT are two causes of SG_WAIT; only the second may have a wait_ns of 0. */
mtype = { NO_VERDICT, ADMIT, LOOK_AGAIN, WAIT_FOR_TURN, WAIT_FOR_FLIGHT, REFUSE };

/* sg_check_fits() of decide() and of find_change(). */
inline judge()
{
    if
    :: FITS -> verdict = ADMIT
#ifdef BREAK_NO_TURN
    :: !FITS && FITS_BUT_FLIGHT -> verdict = WAIT_FOR_FLIGHT
#else
    :: !FITS && FITS_BUT_BEFORE -> verdict = WAIT_FOR_TURN
    :: !FITS && !FITS_BUT_BEFORE && FITS_BUT_FLIGHT -> verdict = WAIT_FOR_FLIGHT
#endif
    :: else -> verdict = REFUSE
    fi
}

inline commit()
{
    committed[me] = committed[me] + bytes;
    assert(COMMITTED <= ROOM) /* safety */
}

/* sg_peers_wait(): the epoch, the step, or the end of the 3 s, after which it is judged once more. When all wait,
 * the steps are over one after the other: they are many, and differ. */
inline wait()
{
    atomic { waiting++; verdict = NO_VERDICT; is_reaped = false };
    atomic {
        if
        :: is_advanced[me]
        :: STEP_IS_OVER -> steps++
#if !defined(WAKEUPS) && !defined(BREAK_BOUND)
        :: timeout && (waiting == 1 || last != me + 1) -> last = me + 1
#endif
        :: RUNS_OUT_OF_TIME -> is_out_of_time = true
        fi;
        waiting--
    }
}

/* take_from_cached_snapshot(): the request is in flight before it is counted. sg_headroom_may_take() reads first whether
 * that is worth a try; it decides nothing, so it is one of the ways in which take() admits nothing. */
inline take_of_cached_snapshot()
{
#ifdef BREAK_YOUNG_FLIGHT_LATE
    take();
    if
    :: is_admitted -> flight[entry] = flight[entry] + bytes
    :: else
    fi
#else
    flight[entry] = flight[entry] + bytes;
    take();
    if
    :: is_admitted -> skip
    :: else -> flight[entry] = flight[entry] - bytes
    fi
#endif
}

/* One process, or with SIBLINGS one thread. */
proctype Process(byte me)
{
    byte entry = ENTRY_OF(me);
    byte k;     /* which request */
    byte bytes; /* of it */
    byte outer; /* bytes of the request whose real call makes this one (NESTED) */
    bool is_admitted;
    byte kind;
    byte mine;
    byte steps;
    bool is_out_of_time;
    bool is_reaped;
    bool is_dead_ignored; /* somebody was dead before the last snapshot */
#if BEHIND
    bool has_caught_up;
#endif
    mtype verdict = NO_VERDICT;
    byte seen;
    byte limit;
    byte from;
    byte j;
    byte flying;
    byte held;
    byte own_flying;
    byte own_held;
#ifdef SIBLINGS
    byte landed_before;
#endif
    byte before;
    byte behind;
    short room;
    short slack;
#ifdef EXACT
    byte looks;
#endif

#if DEATH || STOP
    {
#endif
        do
        :: k == 2 -> break
        :: atomic { k < 2 && SIZE(me, k) == 0 -> k++ }
        :: atomic { k < 2 && SIZE(me, k) != 0 ->
                bytes = SIZE(me, k);
                if
                :: IS_SMALL(me, k)
                :: else -> goto large
                fi
            };
#if SMALL
            /* -- a small request: sg_admission_ask_small(), take_credit(). In flight, then judge_small() -- */
            is_advanced[me] = false;
ask_small:
#ifndef BREAK_SMALL_FLIGHT_LATE
            flight[entry] = flight[entry] + bytes;
#endif
            take();
#ifdef BREAK_SMALL_FLIGHT_LATE
            flight[entry] = flight[entry] + bytes;
#endif
            if
            :: is_admitted -> goto settle_small
            :: else
            fi;
            LOCK;
            /* decide_small() */
#ifndef BREAK_NO_COUNT
            asked = asked + bytes;
#endif
look_small:
            LOOK;
            atomic { /* sg_headroom_slack() */
                LOOK_REST;
                slack = slack - (asked - from);
#ifdef EXACT
                looks++;
                assert(looks <= REFRESHES_MAX); /* frugality */
#endif
                if
                :: slack >= 0 -> is_admitted = true; commit()
                :: slack < 0 && !is_reaped ->
                    forget_sums(); reap(); is_reaped = true; most[entry] = 0; goto look_small
#ifndef BREAK_SMALL_IS_NOT_PATIENT
                :: slack < 0 && is_reaped && !is_out_of_time && FITS_ALONE -> verdict = WAIT_FOR_FLIGHT
#endif
                :: else -> verdict = REFUSE
                fi;
                forget_sums()
            };
            UNLOCK;
            if
            :: verdict == WAIT_FOR_FLIGHT ->
                flight[entry] = flight[entry] - bytes; /* two that wait must not wait for each other */
                wait();
                is_advanced[me] = false;
                goto ask_small
            :: verdict == REFUSE ->
                refused[me] = bytes;
                flight[entry] = flight[entry] - bytes
            :: is_admitted ->
settle_small:   /* sg_admission_settle_small() of private memory: no lock, and nobody is woken */
#ifdef BREAK_SMALL_PROMISE_LATE
                flight[entry] = flight[entry] - bytes;
                promised[entry] = promised[entry] + bytes;
#else
                promised[entry] = promised[entry] + bytes;
                flight[entry] = flight[entry] - bytes;
#endif
                atomic { is_reaped = false; kind = 2; goto granted }
            fi;
            goto next;
#endif

            /* -- a large request: sg_admission_ask() -- */
large:
#ifdef BREAK_SEEN_LATE
            skip;
#else
            is_advanced[me] = false;
#endif
#if YOUNG
            if
            :: IS_YOUNG(me, k) -> /* without the lock */
                take_of_cached_snapshot();
                if
                :: is_admitted -> goto call
                :: else
                fi
            :: else
            fi;
#endif
            LOCK;
            /* decide() */
#if YOUNG
            if
            :: IS_YOUNG(me, k) -> /* of the snapshot that a sibling took meanwhile */
                take_of_cached_snapshot();
                if
                :: is_admitted -> UNLOCK; goto call
                :: else
                fi
            :: else
            fi;
#endif
            if
            :: bytes <= MACHINE -> announce()
            :: else
            fi;
#if BEHIND
            if
            :: IS_BEHIND(me, k) && has_caught_up && !is_reaped -> /* was_short: decide_before_refusal() at once */
                atomic { reap(); is_reaped = true; most[entry] = 0 }
            :: else
            fi;
#endif
look_large:
            LOOK;
#ifdef SIBLINGS
            read_own(); /* fits() reads it again */
#endif
            atomic {
                LOOK_REST;
#ifdef BREAK_SEEN_LATE
                is_advanced[me] = false;
#endif
#ifdef BREAK_PLACE_LATE
                asked = asked + bytes;
#endif
#ifdef EXACT
                looks++;
                assert(looks <= REFRESHES_MAX); /* frugality */
#endif
                judge();
                if
#if BEHIND
                :: verdict != ADMIT && IS_BEHIND(me, k) && !has_caught_up -> verdict = LOOK_AGAIN
                :: verdict != ADMIT && (!IS_BEHIND(me, k) || has_caught_up) && !is_reaped -> /* decide_before_refusal() */
#else
                :: verdict != ADMIT && !is_reaped -> /* decide_before_refusal() */
#endif
                    forget_sums(); reap(); is_reaped = true; most[entry] = 0; verdict = NO_VERDICT; goto look_large
                :: else
                fi;
                forget_sums()
            };
            if
            :: verdict == ADMIT ->
#ifdef BREAK_ADMIT_ORDER
                ticket[entry] = NONE;
#endif
                atomic { flight[entry] = flight[entry] + bytes; is_admitted = true; commit() }
#ifdef BREAK_SPEND_LATE
#ifndef BREAK_NO_SPEND
                /* after a sibling could use the snapshot */
                most[entry] = (most[entry] > bytes -> most[entry] - bytes : 0)
#endif
#endif
            :: else
            fi;
#ifdef BREAK_WITHDRAW
            if
            :: verdict == ADMIT || verdict == REFUSE -> ticket[entry] = NONE
            :: else
            fi;
#else
            ticket[entry] = NONE; /* sg_registry_withdraw() */
#endif
#ifdef BREAK_WITHDRAWAL_WAKES
            ADVANCE;
#endif
            atomic {
                mine = 0;
#ifdef NESTED /* sg_wait_for_flight_ns() */
                is_out_of_time = is_out_of_time || (outer != 0 && verdict == WAIT_FOR_FLIGHT);
#endif
            }
            UNLOCK;
            if
            :: verdict == ADMIT -> skip
#if BEHIND
            :: verdict == LOOK_AGAIN -> /* call.c asks the driver, and us again */
#ifdef BREAK_BEHIND_FOR_EVER
                verdict = NO_VERDICT;
#else
                atomic { verdict = NO_VERDICT; has_caught_up = true };
#endif
                goto large
#endif
            :: (verdict == WAIT_FOR_TURN || verdict == WAIT_FOR_FLIGHT) && !is_out_of_time ->
                wait();
                goto large
            :: else ->
#ifdef REAPING
                assert(!is_dead_ignored); /* reaping */
#endif
                refused[me] = bytes;
#ifndef BREAK_SILENT_REFUSAL
                ADVANCE;
#endif
            fi;
            atomic {
                if
                :: !is_admitted -> goto next
                :: else
                fi
            };

            /* -- the real call, and sg_admission_settle() -- */
call:
#ifdef NESTED
            atomic {
                if
                :: me == 1 && k == 0 -> outer = bytes; goto next
                :: else
                fi
            };
settle:
#endif
            atomic {
                verdict = NO_VERDICT;
                is_reaped = false;
                if
                :: KINDS & 1 -> kind = 1
                :: KINDS & 2 -> kind = 2
                :: KINDS & 4 -> kind = 4
                fi
            };
            if
            :: kind == 1 -> atomic { available = available - bytes; taken[me] = taken[me] + bytes }
            :: kind == 2 -> skip
            :: kind == 4 -> committed[me] = committed[me] - bytes
            fi;
            /* no lock: for a device of its own it is held, which only leaves fewer ways */
#ifdef SIBLINGS
#ifndef BREAK_LANDED_LATE
            if
            :: kind == 1 -> landed[entry] = landed[entry] + bytes
            :: else
            fi;
#endif
#endif
#ifndef BREAK_PROMISE_LATE
            if
            :: kind == 2 -> promised[entry] = promised[entry] + bytes
            :: else
            fi;
#endif
#ifdef BREAK_EPOCH_FIRST
            ADVANCE;
#endif
            flight[entry] = flight[entry] - bytes;
#ifdef BREAK_PROMISE_LATE
            if
            :: kind == 2 -> promised[entry] = promised[entry] + bytes
            :: else
            fi;
#endif
#ifdef BREAK_LANDED_LATE
            if
            :: kind == 1 -> landed[entry] = landed[entry] + bytes
            :: else
            fi;
#endif
#ifndef BREAK_EPOCH_FIRST
            ADVANCE;
#endif

granted:    /* -- later: lazy memory is touched, then found by a scan; memory is given back -- */
#ifdef TOUCH
            if
            :: kind == 2 ->
#ifdef BREAK_TOUCH_ORDER
                promised[entry] = promised[entry] - bytes;
#endif
                atomic { available = available - bytes; taken[me] = taken[me] + bytes };
#ifndef BREAK_TOUCH_ORDER
                /* sg_headroom_scan(): under the lock, for a sibling's look reads its own promises after the kernel */
#ifdef BREAK_SCAN_UNLOCKED
                promised[entry] = promised[entry] - bytes;
#else
                LOCK;
                promised[entry] = promised[entry] - bytes;
                UNLOCK;
#endif
#endif
                kind = 1
            :: true
            fi;
#endif
#ifdef FREE
            if
            :: kind == 1 ->
                atomic {
                    available = available + bytes;
                    taken[me] = taken[me] - bytes;
                    committed[me] = committed[me] - bytes
                }
            :: kind == 2 ->
#ifdef BREAK_FREE_ORDER
                promised[entry] = promised[entry] - bytes;
                committed[me] = committed[me] - bytes
#else
                committed[me] = committed[me] - bytes;
                promised[entry] = promised[entry] - bytes
#endif
            :: true
            fi;
#endif

next:
            atomic {
                bytes = 0;
                kind = 0;
                is_admitted = false;
                is_out_of_time = false;
                is_reaped = false;
                is_dead_ignored = false;
#if BEHIND
                has_caught_up = false;
#endif
                verdict = NO_VERDICT;
#ifdef EXACT
                looks = 0;
#endif
                k++;
#ifdef NESTED
                if
                :: k == 2 && outer != 0 -> k = 0; bytes = outer; outer = 0; k = 1; goto settle
                :: else
                fi
#endif
            }
        od;
        is_done[me] = true
#if DEATH || STOP
    } unless { is_killed[me] || is_stopped[me] }
#endif
}

/* Kills and stops whom it may, when it likes. */
#define MAY_KILL(p) (((DEATH >> p) & 1) && !is_killed[p])
#define MAY_STOP(p) (((STOP >> p) & 1) && !is_stopped[p])

inline kill(p)
{
    is_killed[p] = true;
    available = available + taken[p];
    taken[p] = 0;
    committed[p] = 0
}

proctype Outcome()
{
    do
    :: atomic { MAY_KILL(0) -> kill(0) }
    :: atomic { MAY_KILL(1) -> kill(1) }
    :: MAY_STOP(0) -> is_stopped[0] = true
    :: MAY_STOP(1) -> is_stopped[1] = true
    :: break
    od
}

#define HAS_ENDED(p) (is_done[p] || is_killed[p] || is_stopped[p])
#define IS_RIGHTLY_REFUSED(p) (refused[p] == 0 || COMMITTED + refused[p] > ROOM)

/* When nothing moves any more. Who waits and is dead or stopped still counts in `waiting`. */
proctype Monitor()
{
    IS_OVER ||
#if DEATH || STOP
        timeout
#else
        false
#endif
        ->
    d_step {
        assert(HAS_ENDED(0) && HAS_ENDED(1)); /* liveness */
#if PROCESSES == 3
        assert(HAS_ENDED(2));
#endif
#ifdef EXACT
        assert(IS_RIGHTLY_REFUSED(0) && IS_RIGHTLY_REFUSED(1)); /* exactness */
#if PROCESSES == 3
        assert(IS_RIGHTLY_REFUSED(2));
#endif
#endif
    }
}

init
{
    atomic {
        run Process(0);
        run Process(1);
#if PROCESSES == 3
        run Process(2);
#endif
        run Monitor();
#if DEATH || STOP
        run Outcome()
#endif
    }
}
