/*
 * registry entry.pml - a model of one process's registry entry: how its threads keep it in step with the process's own
 * words, how it is taken while they go on, and what another process reads there. admission.pml takes for granted what
 * is shown here. promise.pml has what the words mean.
 *
 * Checked by tests/model/run. Every statement is one access to shared memory, in the order in which
 * preload/core/account/ledger.c, own_entry.c (sg_entry_raise, _lower, _exchange, _reconcile), registry.c (use_entry,
 * sg_registry_take), headroom.c (sg_headroom_scan) and peers.c (sg_peers_sum, read_entry) make it.
 *
 *     flight promised            the process's words: in_flight_bytes, promised_bytes
 *     ever                       the same: ever_promised_bytes
 *     entry_flight entry_promised  what the others see of it. Below zero is what C sees as more than there can be
 *     under_way began            transit: changes under way, and how many ever began
 *     has_entry is_switched      own.registry entry and own.ledger: the new ones. Nobody reads the old registry entry:
 *     it is not modelled
 *     resident untouched         granted bytes that have pages, and that have none
 *
 * Properties
 *     seen              what was admitted before a refresh, and is not freed during it, is in what the refresh sums up: in
 *                       flight, promised, or by then in the kernel's figures
 *     shown             a live registry entry never shows less than the process's words
 *     counted           when the registry entry is live, what the process was admitted and is not there has been added
 *                       to asked_bytes: snapshots that others took before know of it
 *
 * Parameters (-D)
 *     HELD              bytes of a block that thread 1 has, promised and not touched
 *     FREE              thread 1 frees that block; else it takes a byte as thread 0 does
 *     OBSERVE           what thread 0 takes is touched and found by an observation, while the other process reads
 *     JOIN              a third thread takes the registry entry meanwhile; the other process refreshes once it is live
 *     BREAK_... FLAW_   as in admission.pml
 */

#ifndef HELD
#define HELD 0
#endif
byte flight;
byte promised = HELD;
byte ever;
byte resident;
byte untouched = HELD;
byte under_way;
byte began;
#ifdef JOIN
short entry_flight;
short entry_promised;
bool has_entry;
bool is_switched;
bool is_live;
byte asked;
#else
short entry_flight;
short entry_promised = HELD;
#define has_entry true
#define is_live true
#endif

byte committed = HELD; /* admitted and not freed: the truth */
byte freed;

#define SHOWN(bytes) (bytes < 0 -> 99 : bytes)

#if defined(JOIN) || defined(OBSERVE)
#define BEGIN_CHANGE atomic { under_way++; began++ }
#define END_CHANGE under_way--
#else
#define BEGIN_CHANGE skip
#define END_CHANGE skip
#endif

/* ---- changes ---- */

/* By `bytes`, which may be less than nothing, where own.registry entry pointed. */
inline change(shown, bytes)
{
    is_ours = has_entry;
    atomic {
        if
        :: is_ours -> shown = shown + bytes
        :: else
        fi;
        is_ours = false
    }
}

/* sg_entry_raise() */
inline raise(word, shown, bytes)
{
    BEGIN_CHANGE;
#ifdef BREAK_RAISE_LATE
    word = word + bytes;
    change(shown, bytes);
#else
    change(shown, bytes);
    word = word + bytes;
#endif
    END_CHANGE
}

/* sg_entry_lower() */
inline lower(word, shown, bytes)
{
    BEGIN_CHANGE;
#ifdef BREAK_LOWER_EARLY
    change(shown, -bytes);
    word = (word > bytes -> word - bytes : 0);
#else
    atomic { delta = (word < bytes -> word : bytes); word = word - delta };
    change(shown, -delta);
    delta = 0;
#endif
    END_CHANGE
}

/* sg_entry_exchange(): `is_done`, else what is there in `expected` */
inline exchange(word, shown, expected, desired)
{
    BEGIN_CHANGE;
    delta = desired - expected;
    is_done = false;
#ifndef BREAK_LOWER_EARLY
    if
    :: delta > 0 -> change(shown, delta)
    :: else
    fi;
#else
    change(shown, delta);
#endif
    atomic {
        if
        :: word == expected ->
            word = desired;
            is_done = true
        :: else -> expected = word
        fi
    };
    if
    :: delta > 0 && !is_done -> change(shown, -delta)
#ifndef BREAK_LOWER_EARLY
    :: delta < 0 && is_done -> change(shown, delta)
#else
    :: delta < 0 && !is_done -> change(shown, -delta)
#endif
    :: else
    fi;
    delta = 0;
    END_CHANGE
}

/* sg_entry_reconcile(), one sum: `is_quiet` if nothing changed meanwhile. */
inline reconcile_sum(word, shown)
{
    atomic { is_quiet = (under_way == 0); began_before = began };
    lost = word;
    lost = lost - shown;
#if defined(BREAK_RECONCILE_UNDER_WAY)
    is_quiet = true;
#elif defined(BREAK_RECONCILE_BEGAN)
    is_quiet = is_quiet && under_way == 0;
#else
    is_quiet = is_quiet && under_way == 0 && began == began_before;
#endif
    if
    :: is_quiet && lost != 0 -> shown = shown + lost
    :: else
    fi;
    atomic { lost = 0; began_before = 0 }
}

/* ---- what threads do ---- */

/* A small request of 1 byte: in flight, admitted, charged, settled. */
inline take()
{
    raise(flight, entry_flight, 1);
#ifdef JOIN
    /* sg_registry_take(): in the old ledger if that is the process's; else it is counted in the new one */
    if
    :: is_switched -> asked++
    :: !is_switched
    fi;
    atomic { committed++; assert(!is_live || asked + resident + freed >= committed) }; /* counted */
#else
    committed++;
#endif
    untouched++;
#ifdef BREAK_PROMISE_LATE
    lower(flight, entry_flight, 1);
    ever++;
    raise(promised, entry_promised, 1)
#else
    ever++;
    raise(promised, entry_promised, 1);
    lower(flight, entry_flight, 1)
#endif
}

/* sg_ledger_observe(): what has pages is promised no more. */
inline observe()
{
    at_scan = ever;
    found = untouched;
    was = promised;
    do
    ::
        seen = ever - at_scan;
        if
        :: found + seen >= was -> break
        :: else
        fi;
        exchange(promised, entry_promised, was, found + seen);
        if
        :: is_done -> is_done = false; break
        :: else
        fi
    od;
    atomic { seen = 0; was = 0; found = 0; at_scan = 0 };
    reconcile_sum(flight, entry_flight);
    reconcile_sum(promised, entry_promised)
}

#define LOCALS                                                                                                         \
    bool is_ours;                                                                                                      \
    bool is_done;                                                                                                      \
    short delta;                                                                                                       \
    byte seen;                                                                                                         \
    byte was;                                                                                                          \
    bool is_quiet;                                                                                                     \
    byte began_before;                                                                                                 \
    short lost

proctype Thread(byte me)
{
    LOCALS;
    byte at_scan, found;
    if
    :: me == 0 ->
        take();
#ifdef OBSERVE
        atomic { resident++; untouched-- };
        observe()
#endif
    :: me == 1 ->
#ifdef FREE
        atomic { committed = committed - HELD; freed = freed + HELD; untouched = untouched - HELD }
#else
        take()
#endif
    fi
}

#ifdef JOIN
/* use_entry(), and what it does until nothing was under way while it compared */
proctype Joiner()
{
    LOCALS;
    has_entry = true;
    is_switched = true;
#ifdef BREAK_RECONCILE_ONCE
    under_way == 0;
    reconcile_sum(flight, entry_flight);
    reconcile_sum(promised, entry_promised);
#else
#ifndef BREAK_NO_RECONCILE
    do
    :: reconcile_sum(flight, entry_flight);
        if
        :: is_quiet -> break
        :: else
        fi
    od;
    do
    :: reconcile_sum(promised, entry_promised);
        if
        :: is_quiet -> break
        :: else
        fi
    od;
#endif
#endif
#ifdef BREAK_COUNT_PROMISE_FIRST
    was = promised;
    seen = flight;
#else
    seen = flight;
    was = promised;
#endif
#ifndef BREAK_NO_COUNT
    asked = asked + seen + was;
#endif
    atomic {
        is_live = true;
        assert(asked + resident + freed >= committed) /* counted */
    }
}
#endif

proctype Reader()
{
    byte least, sum;
    is_live;
    least = committed + freed;
#ifdef BREAK_PROMISE_READ_FIRST
    sum = SHOWN(entry_promised);
    sum = sum + SHOWN(entry_flight);
#else
    sum = SHOWN(entry_flight);
    sum = sum + SHOWN(entry_promised);
#endif
    atomic {
        assert(sum + resident + freed >= least); /* seen */
#if !defined(BREAK_PROMISE_LATE) && !defined(BREAK_PROMISE_READ_FIRST)
        assert(SHOWN(entry_flight) >= flight && SHOWN(entry_promised) >= promised) /* shown */
#endif
    }
}

init
{
    atomic {
        run Thread(0);
        run Thread(1);
#ifdef JOIN
        run Joiner();
#endif
        run Reader()
    }
}
