/*
 * control.pml - a model of how sparkguard --set changes the settings of a job while processes of the job begin.
 *
 * Checked by tests/model/run. Every statement is one access to shared memory, in the order in which the code makes it:
 * write_once and apply in tools/launch/set.c (Setter), take_entry and copy_settings in preload/shared/registry.c
 * (Joiner).
 *
 *     user, limit       two words of each registry entry of the job: who set the limit, and the limit. 0: not set.
 *                       Setter 1 writes 1 into both, setter 2 writes 2. OLD is what was set before
 *     is_live           the registry entry is published
 *
 * One entry is of a process that runs all the time, the other one of a process that begins. A setter goes through them
 * in their order.
 *
 * Properties
 *     agree             when all have ended, the entries of the job have the same words, and those are of one setter
 *
 * Parameters (-D)
 *     SETTERS           how many (1)
 *     OLD               what the running process's entry has at first (3); 0: nothing
 *     JOINS             the entry of the process that begins (1)
 *     BREAK_...         leaves out one thing; tests/model/run expects a violation from each
 */

#ifndef SETTERS
#define SETTERS 1
#endif

#ifndef OLD
#define OLD 3
#endif

#ifndef JOINS
#define JOINS 1
#endif
#define RUNS (1 - JOINS)

byte user[2], limit[2], ended;
bool is_live[2];

/* store(): a word that has the value already is not written. */
inline store(word, value)
{
    if
    :: word != value ->
        word = value;
        has_changed = true
    :: else -> skip
    fi
}

proctype Setter(byte me)
{
    bool has_changed;
    byte i;
    do
    :: has_changed = false;
        i = 0;
        do
        :: i == 2 -> break
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

inline read_settings()
{
    limit_now = limit[RUNS];
    user_now = user[RUNS]
}

inline write_settings()
{
    limit_before = limit_now;
    user_before = user_now;
    if
    :: limit_now != 0 ->
        user[JOINS] = user_now;
        limit[JOINS] = limit_now
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

proctype Joiner()
{
    byte limit_now, user_now, limit_before, user_before;
#ifdef BREAK_COPY_BEFORE_ONLY
    copy_settings();
    is_live[JOINS] = true;
#else
    is_live[JOINS] = true;
    copy_settings();
#endif
    ended++
}

proctype Monitor()
{
    ended == SETTERS + 1 ->
    atomic {
        assert(limit[0] == limit[1] && user[0] == user[1] && user[0] == limit[0] && limit[0] != OLD) /* agree */
    }
}

init
{
    atomic {
        is_live[RUNS] = true;
        user[RUNS] = OLD;
        limit[RUNS] = OLD;
        run Setter(1);
#if SETTERS == 2
        run Setter(2);
#endif
        run Joiner();
        run Monitor()
    }
}
