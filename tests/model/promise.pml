/*
 * promise.pml - a model of what a process is promised: its owner grants, touches, gives back and protects memory, a thread
 * of the owner observes how much of it has no pages, and another process asks the kernel the same.
 *
 * Checked by tests/model/run. Every statement is one access to shared memory, or one thing that the kernel does, in the
 * order in which preload/core/account/ledger.c (sg_ledger_promise, _close_private, _reopen_private, _observe,
 * _begin_scan, _end_scan, _give_array, _take_array), tracker.c (read_missing), base/procfs.c (sg_procfs_missing_bytes) and
 * shared/peers.c (kernel_bound, read_closely) make it. A word of the process and the word of its entry are one here:
 * entry.pml shows that they stay in step.
 *
 *     data anon         the kernel's figures: writable private memory, and what of it has pages. They contain OTHER bytes
 *                       that were never granted, as stacks and .bss are
 *     resident          granted bytes that have pages: MemAvailable lacks them
 *     flight promised shared ever unwritable   words of the entry; shared: shared_promised_bytes
 *     returned          of the registry: bytes whose pages went back to the machine and may be touched again
 *     ahead most is_open   of a thread's record: ahead_bytes, ahead_most_bytes, and whether it may have array credit
 *     committed freed   the truth: what was granted, credit among it, and what was given up of it
 *
 * Property
 *     seen              what was granted before a process looks, and is not given up meanwhile, is in what it sums up: in
 *                       flight, promised as far as the kernel confirms it, or resident by then
 *
 * Parameters (-D)
 *     HELD              bytes that are granted and resident at first (1)
 *     TAKE GIVE_BACK PROTECT ARRAYS TOUCH_OTHER   what the threads of the owner do, each in a thread of its own
 *     SCAN              the owner scans; else it only observes
 *     ASK               the other process asks the kernel; else it believes the promise
 *     BREAK_...         what nobody must do
 */
#ifndef HELD
#define HELD 1
#endif
#ifdef TOUCH_OTHER
#define OTHER 2
#else
#define OTHER 0
#endif
#ifdef ARRAYS
#define ARRAY 1
#else
#define ARRAY 0
#endif

byte data = HELD + OTHER + ARRAY;
byte anon = HELD + ARRAY;
byte resident = HELD + ARRAY;
byte committed = HELD + ARRAY;
byte freed;
byte flight, ever, shared, promised, unwritable;
byte returned; /* of the registry: returned_bytes */
byte ahead, most, credit;
bool is_open = true;

#define LESS(a, b) (a > b -> a - b : 0)
#define LEAST(a, b) (a < b -> a : b)

/* sg_ledger_promise() of private memory */
inline promise()
{
    ever++;
    promised++
}

#ifdef TAKE
proctype Taker()
{
    flight++;
    committed++; /* from here on a refresh must see it */
    data++;      /* mmap */
#ifdef BREAK_PROMISE_LATE
    flight--;
    promise();
#else
    promise();
    flight--;
#endif
    if
    :: atomic { anon++; resident++ }
    :: skip
    fi
}
#endif

#ifdef GIVE_BACK
proctype Giver()
{
#ifdef BREAK_GIVE_BACK_EARLY
    promise();
    returned++;
    atomic { anon--; resident-- };
#else
#ifndef BREAK_GIVE_BACK_LATE
    flight++;
#endif
#ifndef BREAK_NOT_RETURNED
    returned++;
#endif
    atomic { anon--; resident-- };
    promise();
#ifndef BREAK_GIVE_BACK_LATE
    flight--;
#endif
#endif
    if
    :: atomic { anon++; resident++ }
    :: skip
    fi
}
#endif

#ifdef PROTECT
/* A byte with a page, or without one. */
proctype Protector(bool has_page)
{
#ifndef BREAK_NO_UNWRITABLE
    unwritable++;
#endif
    data--;
    data++;
#ifndef BREAK_NO_UNWRITABLE
#ifdef BREAK_REOPEN_LATE
    unwritable--;
    promise()
#else
    promise();
    unwritable--
#endif
#endif
}
#endif

#ifdef TOUCH_OTHER
proctype Toucher()
{
    anon++;
    anon++
}
#endif

#ifdef ARRAYS
/* sg_ledger_give_array(), then the real free; the real malloc, then sg_ledger_take_array(). */
proctype Arrays()
{
    byte rounds;
    do
    :: rounds < 3 ->
        rounds++;
        if
        :: ahead < 1 ->
#ifdef BREAK_AHEAD_SHOWN_LATE
            if
            :: most == 0 -> ever++; shared++; promised++; most = 1
            :: else -> promise()
            fi;
            returned++;
            ahead = 1
#else
            if
            :: most == 0 -> most = 1; ahead = 1; ever++; shared++; promised++
            :: else -> ahead = 1; promise()
            fi;
            returned++
#endif
        :: else -> skip
        fi;
        credit = 1;
        atomic { data--; anon--; resident-- }; /* the real free */
        data++;                                /* the real malloc, elsewhere */
        credit = 0;
        ahead--;
        if
        :: atomic { anon++; resident++ }
        :: break /* it stays untouched */
        fi
    :: else -> break
    od
}
#endif

/* sg_procfs_missing_bytes(), then what was made unwritable */
inline ask_kernel(missing)
{
#ifdef BREAK_UNWRITABLE_FIRST
    closed = unwritable;
#endif
    missing = data;
    pages = anon;
#ifndef BREAK_UNWRITABLE_FIRST
    closed = unwritable;
#endif
    missing = LESS(missing, pages) + closed;
    pages = 0;
    closed = 0
}

proctype Observer()
{
    byte begin, missing, pages, closed, before, now, was_shared, most_then;
#ifdef BREAK_EVER_LATE
    ask_kernel(missing);
    begin = ever;
    most_then = most;
#else
    begin = ever;
    most_then = (is_open -> most : 0);
    ask_kernel(missing);
#endif
#ifdef SCAN
    /* shared memory: nothing but what is promised ahead; what came since is counted again */
    atomic { was_shared = shared; shared = most_then + (ever - begin) };
    do
    :: before = promised;
        now = missing + ever - begin;
        now = LEAST(now, LESS(before, was_shared)) + most_then + (ever - begin);
        atomic {
            if
            :: promised == before -> promised = now; break
            :: else
            fi
        }
    od
#else
    do
    :: before = promised;
#ifdef BREAK_NOT_SINCE
        now = missing + shared;
#else
        now = missing + shared + ever - begin;
#endif
        if
        :: now >= before -> break
        :: else
        fi;
        atomic {
            if
            :: promised == before -> promised = now; break
            :: else
            fi
        }
    od
#endif
}

proctype Reader()
{
    byte least, bound, pages, closed, sum, before, shown, back;
    atomic { least = committed; back = returned };
    before = ever;
#ifdef ASK
    ask_kernel(bound);
#endif
#ifdef BREAK_FLIGHT_READ_LAST
    shown = promised;
    bound = bound + shared + ever - before;
    sum = flight;
#else
    sum = flight;
    shown = promised;
    bound = bound + shared + ever - before;
#endif
#ifdef ASK
    sum = sum + LEAST(shown, bound);
#else
    sum = sum + shown;
#endif
    assert(sum + resident + freed + returned - back >= least) /* seen */
}

init
{
    atomic {
#ifdef TAKE
        run Taker();
#endif
#ifdef GIVE_BACK
        run Giver();
#endif
#ifdef PROTECT
        run Protector(true);
#endif
#ifdef TOUCH_OTHER
        run Toucher();
#endif
#ifdef ARRAYS
        run Arrays();
#endif
        run Observer();
        run Reader()
    }
}
