/*
 * claim.pml - a model of how a registry entry of the registry changes hands.
 *
 * Checked by tests/model/run. Every statement is one access to shared memory or to the kernel, in the order in which
 * preload/core/shared/registry.c makes it: lock_free_entry, keep_lock and use_entry (Newcomer), sg_registry_leave and
 * sg_registry_come_back (Owner), mark_dead (Reaper).
 *
 *     claim             generation << 2 | EMPTY, LIVE or DEAD
 *     holder            who holds the open-file-description lock on the registry entry's byte; the kernel lets go at
 *     his death owner             who believes that the registry entry is his: from use_entry until he dies or is gone
 *     word              one word of the rest of the registry entry: whose it was filled for
 *
 * That lock_free_entry leaves alone what is LIVE only saves it asking the kernel; no property rests on it.
 *
 * Processes: an owner who sits there, may leave it (its threads may go on changing its words a while) and dies at any
 * step; two newcomers, who may stop for ever at any step, and of whom the first may die; a reaper, who may stop too.
 *
 * Properties
 *     one-owner         nobody sits down where a live owner sits
 *     marked            no reaper turns the claim of a live owner, who has not left, into DEAD
 *     own-words         the registry entry of a live owner is filled for him, and nobody else's once he sits there
 *     recovery          when nothing moves any more, a registry entry whose holder is dead can be taken over or marked
 *     dead
 *
 * Parameters (-D)
 *     STOP              bit mask of processes that may stop: 1 and 2 the newcomers, 3 the reaper
 *     LEAVES            the owner leaves
 *     RETURNS           and comes back: it did not end
 *     TRIES             how often newcomers and the reaper try (2)
 *     STOPPED_AT_LOCK   recovery is checked also if a newcomer stopped between getting the byte and sitting down,
 *                       and the owner before had sat down and died since the newcomer read the claim. Then it does
 *                       not hold: that registry entry stays as it is until the stopped process goes on or dies. Nothing
 *                       wrong is decided by it
 *     BREAK_...         swaps or leaves out one thing; tests/model/run expects a violation from each
 */

#ifndef STOP
#define STOP 0
#endif

#ifndef TRIES
#define TRIES 2
#endif

#define EMPTY 0
#define LIVE 1
#define DEAD 2
#define STATE(claim) ((claim) & 3)

#define NOBODY 4
#define OWNER 0
#define REAPER 3
#define PROCESSES 4

byte claim = 1 << 2 | LIVE;
byte holder = OWNER;
byte word = OWNER;
byte owner = OWNER;
bool is_here = true;    /* the owner has not left */
bool is_killed[PROCESSES + 1];
bool is_stopped[PROCESSES + 1];
bool is_done[PROCESSES];

inline use_entry()
{
    generation = (claim >> 2) + 1;
    word = me; /* fill_entry(), sg_entry_reconcile() */
    atomic {
        assert(owner == NOBODY || is_killed[owner]); /* one-owner */
        owner = me;
        claim = generation << 2 | LIVE
    }
}

/* lock_free_entry(): what is LIVE is left alone, whoever holds the byte. Otherwise the lock decides. */
proctype Newcomer(byte me)
{
    byte seen, generation, tries;
    {
        do
        :: tries == TRIES -> break
        :: tries < TRIES ->
            tries++;
            seen = claim;
            if
            :: STATE(seen) != LIVE ->
                atomic {
                    if
#ifdef BREAK_NO_LOCK
                    :: true -> holder = me
#else
                    :: holder == NOBODY -> holder = me; seen = 0
                    :: else -> seen = 1
#endif
                    fi
                };
                if
                :: holder == me -> break
                :: else
                fi
            :: else
            fi
        od;
        if
        :: holder == me ->
#ifdef BREAK_FILL_LATE
            generation = (claim >> 2) + 1;
            atomic {
                assert(owner == NOBODY || is_killed[owner]);
                owner = me;
                claim = generation << 2 | LIVE
            };
            assert(word == me); /* own-words */
            word = me;
#else
            use_entry();
#endif
            assert(word == me) /* own-words */
        :: else
        fi;
        is_done[me] = true
    } unless { is_killed[me] || is_stopped[me] }
}

proctype Owner(byte me)
{
    byte seen;
    {
#ifdef LEAVES
        /* sg_registry_leave(): the byte stays locked, so nobody else sits down before we are gone */
        atomic { claim = (claim >> 2) << 2 | EMPTY; is_here = false };
#ifdef BREAK_UNLOCK_AT_LEAVE
        holder = NOBODY;
#endif
        assert(word == me); /* own-words */
#ifdef RETURNS
        /* sg_registry_come_back() */
        seen = claim;
        if
        :: STATE(seen) == EMPTY ->
            atomic {
                if
                :: claim == seen ->
                    claim = seen | LIVE;
                    is_here = true
                :: else
                fi
            };
            assert(word == me) /* own-words */
        :: else
        fi;
#endif
#endif
        is_done[me] = true
    } unless { is_killed[me] || is_stopped[me] }
}

/* mark_dead(): the claim first, then the kernel, then the exchange: only what was LIVE before nobody held the byte. */
proctype Reaper(byte me)
{
    byte seen, rounds;
    bool is_free;
    {
        do
        :: rounds == TRIES -> break
        :: rounds < TRIES ->
            rounds++;
#ifdef BREAK_ASK_FIRST
            is_free = (holder == NOBODY);
            seen = claim;
#else
            seen = claim;
            is_free = (holder == NOBODY);
#endif
            if
            :: STATE(seen) == LIVE && is_free ->
                atomic {
                    if
#ifdef BREAK_NO_EXCHANGE
                    :: true ->
#else
                    :: claim == seen ->
#endif
                        claim = (seen >> 2) << 2 | DEAD;
                        assert(owner == NOBODY || is_killed[owner] || !is_here) /* marked */
                    :: else
                    fi
                }
            :: else
            fi
        od;
        atomic { is_done[me] = true; seen = 0; is_free = false }
    } unless { is_killed[me] || is_stopped[me] }
}

inline kill(p)
{
    is_killed[p] = true;
    if
    :: holder == p -> holder = NOBODY
    :: else
    fi
}

proctype Outcome()
{
    do
    :: atomic { !is_killed[OWNER] -> kill(OWNER) }
    :: atomic { !is_killed[1] -> kill(1) }
    :: atomic { ((STOP >> 1) & 1) && !is_stopped[1] -> is_stopped[1] = true }
    :: atomic { ((STOP >> 2) & 1) && !is_stopped[2] -> is_stopped[2] = true }
    :: atomic { ((STOP >> REAPER) & 1) && !is_stopped[REAPER] -> is_stopped[REAPER] = true }
    :: break
    od
}

/* When nothing moves any more: whoever comes now, undisturbed, can mark the registry entry of a dead owner, or take it
 * over. */
#define IS_STUCK (is_killed[owner] && holder != NOBODY && (is_killed[holder] || STATE(claim) == LIVE))

proctype Monitor()
{
    timeout ->
    d_step {
        assert(holder == NOBODY || !is_killed[holder]); /* recovery */
#ifdef STOPPED_AT_LOCK
        assert(!IS_STUCK) /* recovery */
#else
        assert(!IS_STUCK || is_stopped[holder]) /* recovery */
#endif
    }
}

init
{
    atomic {
        run Owner(OWNER);
        run Newcomer(1);
        run Newcomer(2);
        run Reaper(REAPER);
        run Outcome();
        run Monitor()
    }
}
