/*
 * registry entry.pml - a model of one process's registry entry: how its threads keep it in step with the process's own
 * words, how it is taken while they go on, and what another process reads there. admission.pml takes for granted what
 * is shown here.
 *
 * Checked by tests/model/run. Every statement is one access to shared memory, in the order in which
 * preload/core/account/ledger.c, own_entry.c (sg_entry_raise, _lower, _exchange, _reconcile), registry.c (use_entry,
 * sg_registry_take), headroom.c (sg_headroom_scan) and peers.c (sg_peers_sum, read_entry, growth_of) make it.
 *
 *     flight promised charged    the process's words: in_flight_bytes, promised_bytes, granted_bytes of lazy domains
 *     ever                       promises.ever_bytes
 *     entry_flight entry_promised  what the others see of it. Below zero is what C sees as more than there can be
 *     under_way began            transit: changes under way, and how many ever began
 *     has_entry is_switched      own.registry entry and own.ledger: the new ones. Nobody reads the old registry entry:
 *     it is not modelled resident untouched         RssAnon, and what a look at the index finds to be charged and not
 *     there scanned scans              the registry entry's scanned_anonymous_bytes, and what is different after each
 *     scan
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
 *     TOUCHED           the same, but of another block, which is there
 *     CLOSELY           what thread 0 takes is touched and found by a scan, while the other process scans
 *     SCAN              what thread 0 takes is not touched, and a scan finds it missing
 *     THREE             a third thread takes a byte, while thread 0 frees one that is there and that no scan has found
 *     yet JOIN              a third thread takes the registry entry meanwhile; the other process refreshes once it is live
 *     BREAK_... FLAW_   as in admission.pml
 *     BREAK_BOUND_UNLOCKED  bound_promises() takes the figure that it read for the same though it was lowered by a scan
 *                       and raised again since: what was promised meanwhile is not shown until the next scan
 *     BREAK_WITHDRAW_UNLOCKED  the same by a withdrawal
 */

#ifndef HELD
#define HELD 0
#endif
#if defined(TOUCHED) || defined(THREE)
#define THERE 1
#else
#define THERE 0
#endif
#ifdef THREE
#define UNFOUND 1
#else
#define UNFOUND 0
#endif

byte flight;
byte promised = HELD + UNFOUND;
byte charged = HELD + THERE;
byte ever;
byte resident = THERE;
byte untouched = HELD;
byte scanned = THERE - UNFOUND;
byte scans;
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
short entry_promised = HELD + UNFOUND;
#define has_entry true
#define is_live true
#endif

bool is_locked; /* sg_promises_lock */
#define LOCK atomic { !is_locked; is_locked = true }
#define UNLOCK is_locked = false

byte committed = HELD + THERE; /* admitted and not freed: the truth */
byte freed;

#define SHOWN(bytes) (bytes < 0 -> 99 : bytes)

#if defined(JOIN) || defined(CLOSELY) || defined(SCAN)
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

/* bound_promises(): no more is promised than is held. */
inline bring_down()
{
    do
    ::
#ifdef BREAK_BOUND
        seen = charged;
        was = promised;
#else
        was = promised;
        seen = charged;
#endif
        if
        :: was > seen ->
            exchange(promised, entry_promised, was, seen);
            if
            :: is_done -> is_done = false; break
            :: else
            fi
        :: else -> break
        fi
    od
}

inline bound()
{
#ifdef BREAK_BOUND_UNLOCKED
    bring_down();
#else
    was = promised;
    seen = charged;
    if
    :: was > seen -> LOCK; bring_down(); UNLOCK
    :: else
    fi;
#endif
    atomic { seen = 0; was = 0 }
}

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
    atomic { charged++; untouched++ };
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

/* sg_headroom_scan(): what it finds is there is promised no more. */
inline scan()
{
    at_scan = ever;
    found = untouched;
    there = resident;
#ifndef BREAK_SCAN
    scanned = there;
    scans++;
#endif
    LOCK;
    was = promised;
    do
    ::
        seen = ever - at_scan;
        exchange(promised, entry_promised, was, found + seen);
        if
        :: is_done -> is_done = false; break
        :: else
        fi
    od;
    UNLOCK;
#ifdef BREAK_SCAN
    scanned = there;
    scans++;
#endif
    atomic { seen = 0; was = 0; found = 0; there = 0; at_scan = 0 };
    bound();
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
    byte at_scan, found, there;
    if
#ifdef THREE
    :: me == 0 ->
        charged--;
        bound();
        atomic { committed--; resident--; freed++ }
    :: me == 2 ->
        take()
#else
    :: me == 0 ->
        take();
#endif
#ifdef CLOSELY
        atomic { resident++; untouched-- };
        scan()
#elif defined(SCAN)
        scan()
#endif
    :: me == 1 ->
#if defined(FREE)
        atomic { committed = committed - HELD; freed = freed + HELD };
#ifdef BREAK_WITHDRAW_LATE
        untouched = untouched - HELD;
#endif
        if
#ifdef BREAK_WITHDRAW_UNLOCKED
        :: lower(promised, entry_promised, HELD)
#else
        :: LOCK; lower(promised, entry_promised, HELD); UNLOCK /* sg_tracker_withdraw_block() */
#endif
        :: true
        fi;
#ifndef BREAK_WITHDRAW_LATE
        untouched = untouched - HELD; /* sg_block_table_remove() */
#endif
        charged = charged - HELD; /* sg_ledger_release() */
        bound()
#elif defined(TOUCHED)
        charged--;
        bound();
        atomic { committed--; resident--; freed++ }
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
    byte least, growth, then, sum, now, scans_then;
    is_live;
    least = committed + freed;
#ifdef CLOSELY
    scans_then = scans;
    then = scanned;
    growth = resident;
    growth = (growth > then -> growth - then : 0);
#endif
#ifdef BREAK_PROMISE_READ_FIRST
    sum = SHOWN(entry_promised);
    sum = sum + SHOWN(entry_flight);
#else
    sum = SHOWN(entry_flight);
    now = SHOWN(entry_promised);
#ifdef CLOSELY
#ifndef BREAK_SCAN
    /* a scan since: growth beyond its figure is another */
    if
#ifdef BREAK_SAME_FIGURE
    :: scanned != then -> growth = 0
#else
    :: scans != scans_then -> growth = 0
#endif
    :: else
    fi;
#endif
    now = (now > growth -> now - growth : 0);
#endif
    sum = sum + now;
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
#ifdef THREE
        run Thread(2);
#endif
#ifdef JOIN
        run Joiner();
#endif
        run Reader()
    }
}
