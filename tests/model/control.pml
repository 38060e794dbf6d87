/*
 * control.pml - a model of what sparkguard --set sets for a job, and of how long that lives.
 *
 * Checked by tests/model/run. Every statement is one access to shared memory or to the kernel, in the order in which
 * the code makes it: set_once, change and make in preload/core/observer/control.c and lock_free_entry in
 * preload/core/shared/registry.c (Setter), sg_settings_read in preload/core/shared/settings.c and end_old_settings and
 * take_entry in registry.c (Member), sg_registry_mark_dead_in and is_job_alive in registry.c (Reaper).
 *
 *     claim[e]          an entry that a job may have: 0 is free or dead, else it is live, and the number is unique to one
 *                       owner
 *     job[e]            the job whose entry it is; MINE is the job of the members, OTHER another one
 *     user, limit       two of its words: who set the limit, and the limit. Setter 1 writes 1 into both, setter 2 writes 2
 *     holder[e]         who holds the lock on the entry's byte; setters holds the one behind the bytes of all entries
 *     changes           the count in the head of the registry
 *     lives[m]          a process of the job lives: it is seen, or has an entry
 *
 * Processes: members of the job, which begin, decide once and end; setters; a reaper; and a thief, who takes a dead entry
 * for a job of his own.
 *
 * Properties
 *     kept              a member that decides after a setter was done, while the job lived all the time, decides by what
 *                       a setter wrote, and not by nothing
 *     current           it decides by the last words or counts as behind: then its next request reads again
 *     one               when all is quiet, no two live entries have what is set for one job
 *     whole             the words of the job are those of one setter, as long as the job lives
 *     foreign           nobody writes into an entry that another job has
 *     ended             what is set for a job that has ended is not found by a later run
 *
 * Parameters (-D)
 *     SETTERS           how many (1)
 *     MEMBERS           how many run at the same time (1); member 0 lives from the start
 *     ENDS              member 0 may end
 *     THIEF             somebody takes dead entries
 *     BREAK_...         leaves out one thing; tests/model/run expects a violation from each
 */

#ifndef SETTERS
#define SETTERS 1
#endif

#ifndef MEMBERS
#define MEMBERS 1
#endif

#define ENTRIES 2
#define NOBODY 0
#define MINE 1
#define OTHER 2

byte claim[ENTRIES], generation, job[ENTRIES], user[ENTRIES], limit[ENTRIES], holder[ENTRIES], setters, changes;
bool lives[MEMBERS];
byte done, last; /* ghosts: setters that are done, and what the last of them wrote */
bool has_ended;  /* a ghost: no process of the job lived for a moment */

inline end_member(m)
{
    atomic {
        lives[m] = false;
        i = 0;
        is_alive = false;
        do
        :: i == MEMBERS -> break
        :: else -> is_alive = is_alive || lives[i]; i++
        od;
        has_ended = has_ended || !is_alive;
        i = 0;
        is_alive = false
    }
}

/* sg_settings_find(): the first one. */
inline find()
{
    atomic { e = 0 };
    do
    :: e == ENTRIES -> break
    :: atomic { e < ENTRIES && claim[e] != 0 && job[e] == MINE -> break }
    :: else -> e++
    od
}

/* is_dead(): each process of the job. Who holds the entry's own lock does not matter. */
inline examine()
{
#ifdef BREAK_LOCK_COUNTS
    is_alive = (holder[e] != NOBODY && holder[e] != me);
#else
    is_alive = false;
#endif
    atomic { i = 0 };
    do
    :: i == MEMBERS || is_alive -> break
    :: else ->
#ifdef BREAK_LOCK_ONLY
        skip;
#else
        is_alive = lives[i];
#endif
        i++
    od;
    i = 0
}

/* The claim was read before: only what was live then is marked. */
inline mark()
{
    atomic {
        if
#ifdef BREAK_MARK_BLIND
        :: true -> claim[e] = 0
#else
        :: claim[e] == seen -> claim[e] = 0
        :: else
#endif
        fi
    }
}

/* lock_free_entry(), with the lock: what is set for a job is live, and nobody holds its lock. */
inline look_again()
{
    if
#ifndef BREAK_NOT_LOOKED_AGAIN
    :: holder[e] == me && claim[e] != 0 -> holder[e] = NOBODY
#endif
    :: else
    fi
}

inline take_free_entry()
{
    atomic { e = 0 };
    do
    :: e == ENTRIES -> e = 0
    :: else ->
        if
        :: claim[e] == 0 ->
            atomic {
                if
                :: holder[e] == NOBODY -> holder[e] = me
                :: else
                fi
            };
            look_again()
        :: else
        fi;
        if
        :: holder[e] == me -> break
        :: else -> e++
        fi
    od
}

inline write_words()
{
    assert(job[e] == MINE || claim[e] == 0); /* foreign */
    user[e] = me;
    assert(job[e] == MINE || claim[e] == 0); /* foreign */
    limit[e] = me;
#ifndef BREAK_COUNT_FIRST
    changes++
#endif
}

proctype Setter(byte me)
{
    byte e, i, seen;
    bool is_alive, is_done;
    do
    :: is_done -> break
    :: else ->
#ifndef BREAK_NO_SETTERS_LOCK
        atomic { setters == NOBODY -> setters = me };
#endif
        find();
        if
        :: e < ENTRIES ->
            seen = claim[e];
            examine();
            if
            :: !is_alive && seen != 0 -> mark(); find()
            :: else
            fi
        :: else
        fi;
        if
        :: e < ENTRIES ->
            seen = claim[e];
#ifndef BREAK_NO_ENTRYS_LOCK
            atomic { holder[e] == NOBODY -> holder[e] = me };
#endif
            if
            :: claim[e] == seen && seen != 0 ->
#ifdef BREAK_COUNT_FIRST
                changes++;
#endif
                write_words();
                is_done = (claim[e] == seen)
            :: else
            fi;
            atomic {
                if
                :: holder[e] == me -> holder[e] = NOBODY
                :: else
                fi
            }
        :: else ->
            take_free_entry();
            job[e] = MINE;
            user[e] = me;
            limit[e] = me;
            atomic { generation++; claim[e] = generation };
            changes++;
            holder[e] = NOBODY;
            is_done = true
        fi;
        d_step {
            if
            :: is_done -> done++; last = me
            :: else
            fi;
            e = 0;
            seen = 0
        };
#ifndef BREAK_NO_SETTERS_LOCK
        setters = NOBODY
#else
        skip
#endif
    od
}

/* sg_settings_read(), and whether the next request would read again. */
inline read_settings()
{
#ifndef BREAK_COUNT_READ_LAST
    known = changes;
#endif
    find();
    if
    :: e < ENTRIES -> by_user = user[e]; by = limit[e]
    :: else -> by = 0; by_user = 0
    fi;
#ifdef BREAK_COUNT_READ_LAST
    known = changes
#else
    skip
#endif
}

proctype Member(byte m)
{
    byte e, i, me, seen, by, by_user, known, done_before;
    bool is_alive, ended_before;
    me = 10 + m;
    if
    :: m != 0 ->
        find(); /* end_old_settings() */
        if
        :: e < ENTRIES ->
            seen = claim[e];
            examine();
            if
#ifdef BREAK_OLD_SETTINGS_STAY
            :: true
#else
            :: !is_alive && seen != 0 -> mark()
            :: else
#endif
            fi
        :: else
        fi;
        lives[m] = true /* its entry is published */
    :: else
    fi;
    d_step { done_before = done; ended_before = has_ended; seen = 0 };
    read_settings();
    atomic {
        assert(by != 0 || done_before == 0 || has_ended); /* kept */
        assert(by == 0 || by == last || known != changes || done != SETTERS || has_ended); /* current */
        assert(by == 0 || by == by_user || known != changes || done != SETTERS || has_ended) /* whole */
    };
    if
#ifdef ENDS
    :: m == 0 -> end_member(m)
#endif
    :: true
    fi
}

/* Another run of the job, after its end: whoever begins it is a member that finds nobody else. */
proctype LaterRun()
{
    byte e, i, me, seen;
    bool is_alive;
    me = 20;
end_waits:
    atomic { has_ended && done == SETTERS && setters == NOBODY -> skip };
    find();
    if
    :: e < ENTRIES ->
        seen = claim[e];
        examine();
        if
#ifdef BREAK_OLD_SETTINGS_STAY
        :: true
#else
        :: !is_alive && seen != 0 -> mark()
        :: else
#endif
        fi
    :: else
    fi;
    is_alive = false;
    atomic {
        i = 0;
        do
        :: i == MEMBERS -> break
        :: else -> is_alive = is_alive || lives[i]; i++
        od
    };
    atomic { find(); assert(e == ENTRIES || is_alive) /* ended */ }
}

proctype Reaper()
{
    byte e, i, me, seen;
    bool is_alive;
    me = 30;
    do
    :: e == ENTRIES -> break
    :: else ->
        seen = claim[e];
        if
        :: seen != 0 && job[e] == MINE ->
            examine();
            if
            :: !is_alive -> mark()
            :: else
            fi
        :: else
        fi;
        e++
    od
}

proctype Thief()
{
    byte e, me;
    me = 40;
    do
    :: e == ENTRIES -> break
    :: else ->
        if
        :: claim[e] == 0 && job[e] != 0 ->
            atomic {
                if
                :: holder[e] == NOBODY -> holder[e] = me
                :: else
                fi
            };
            look_again();
            if
            :: holder[e] == me ->
                job[e] = OTHER;
                user[e] = 0;
                limit[e] = 0;
                atomic { generation++; claim[e] = generation };
                break
            :: else
            fi
        :: else
        fi;
        e++
    od
}

proctype Monitor()
{
    byte i, found;
    timeout ->
    d_step {
        do
        :: i == ENTRIES -> break
        :: else ->
            found = found + (claim[i] != 0 && job[i] == MINE -> 1 : 0);
            assert(!(claim[i] != 0 && job[i] == MINE) || user[i] == limit[i]); /* whole */
            i++
        od;
        assert(found < 2) /* one */
    }
}

init
{
    byte i;
    atomic {
        lives[0] = true;
        i = 0;
        do
        :: i == SETTERS -> break
        :: else -> i++; run Setter(i)
        od;
        i = 0;
        do
        :: i == MEMBERS -> break
        :: else -> run Member(i); i++
        od;
        run Reaper();
#ifdef ENDS
        run LaterRun();
#endif
#ifdef THIEF
        run Thief();
#endif
        run Monitor();
        i = 0
    }
}
