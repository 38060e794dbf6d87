/*
 * control.pml - a model of how sparkguard --set changes the settings of a job while processes of the job begin.
 *
 * Checked by tests/model/run. Every statement is one access to shared memory, in the order in which the code makes it:
 * write_once and apply in tools/launch/set.c (Setter), take_entry and copy_settings in preload/core/shared/registry.c
 * (Joiner).
 *
 *     user, limit       two words of each registry entry of the job: who set the limit, and the limit. 0: not set.
 *                       Setter 1 writes 1 into both, setter 2 writes 2. OLD is what was set before. The third word, the
 *                       reserve, is written and read next to the limit and is not modelled
 *     is_live           the registry entry is published
 *     is_settled        the registry entry has taken over what was set before: others copy from it
 *
 * One entry is of a process that runs all the time, the others of processes that begin. All go through the entries in
 * their order.
 *
 * Properties
 *     agree             when all have ended, the entries of the job have the same words, and those are of one setter
 *
 * Parameters (-D)
 *     SETTERS           how many (1)
 *     OLD               what the running process's entry has at first (3); 0: nothing
 *     RUNS              the entry of the running process (0)
 *     ENTRIES           how many entries there are (2)
 *     BREAK_...         leaves out one thing; tests/model/run expects a violation from each
 */

#ifndef SETTERS
#define SETTERS 1
#endif

#ifndef OLD
#define OLD 3
#endif

#ifndef RUNS
#define RUNS 0
#endif

#ifndef ENTRIES
#define ENTRIES 2
#endif

byte user[ENTRIES], limit[ENTRIES], ended;
bool is_live[ENTRIES], is_settled[ENTRIES];

/* store(): a word that has the value already is not written. */
inline store(word, value)
{
    if
    :: word != value -> atomic { word = value; has_changed = true }
    :: else -> skip
    fi
}

proctype Setter(byte me)
{
    bool has_changed;
    byte i;
    do
    :: atomic { has_changed = false; i = 0 };
        do
        :: i == ENTRIES -> i = 0; break
        :: else ->
            if
            :: is_live[i] ->
#ifdef BREAK_USER_IS_NOT_CHECKED
                user[i] = me;
#else
                store(user[i], me);
#endif
                store(limit[i], me)
            :: else -> skip
            fi;
            i++
        od;
#ifdef BREAK_ONE_PASS
        break
#else
        if
        :: !has_changed -> break
        :: else -> skip
        fi
#endif
    od;
    ended++
}

/* find_settings(): of the first settled entry. Nothing is read as 0. */
inline read_settings()
{
    atomic { limit_now = 0; user_now = 0; i = 0 };
    do
    :: i == ENTRIES -> break
#ifdef BREAK_COPY_FROM_ANY
    :: i < ENTRIES && i != me && is_live[i] && limit[i] != 0 ->
#else
    :: i < ENTRIES && i != me && is_settled[i] ->
#endif
        limit_now = limit[i];
        user_now = user[i];
        break
    :: else -> i++
    od
}

inline write_settings()
{
    atomic { limit_before = limit_now; user_before = user_now };
    if
    :: limit_now != 0 ->
        user[me] = user_now;
        limit[me] = limit_now
    :: else -> skip
    fi
}

/* copy_settings(): until two readings are equal. */
inline copy_settings()
{
    read_settings();
#ifdef BREAK_COPY_ONCE
    write_settings();
#else
    do
    :: write_settings();
        read_settings();
        if
        :: limit_now == limit_before && user_now == user_before -> break
        :: else -> skip
        fi
    od
#endif
}

proctype Joiner(byte me)
{
    byte i, limit_now, user_now, limit_before, user_before;
#ifdef BREAK_COPY_BEFORE_ONLY
    copy_settings();
    is_live[me] = true;
#else
    is_live[me] = true;
    copy_settings();
#endif
    atomic {
        limit_now = 0;
        user_now = 0;
        limit_before = 0;
        user_before = 0;
        is_settled[me] = true;
        ended++
    }
}

proctype Monitor()
{
    byte i;
    ended == SETTERS + ENTRIES - 1 ->
    atomic {
        do
        :: i < ENTRIES ->
            assert(limit[i] == limit[0] && user[i] == limit[0] && limit[0] != OLD); /* agree */
            i++
        :: else -> break
        od
    }
}

init
{
    atomic {
        is_live[RUNS] = true;
        is_settled[RUNS] = true;
        user[RUNS] = OLD;
        limit[RUNS] = OLD;
        run Setter(1);
#if SETTERS == 2
        run Setter(2);
#endif
        run Joiner((RUNS + 1) % ENTRIES);
#if ENTRIES == 3
        run Joiner((RUNS + 2) % ENTRIES);
#endif
        run Monitor()
    }
}
