/*
 * tenants.pml - a model of how another tenant sees what is left of a job's claim.
 *
 * Checked by tests/model/run. Every statement is one access to shared memory or to the kernel, in the order in which the
 * library makes it: sg_peers_sum with sg_claims_read, the kernel's figure and sg_claims_end in sg_headroom_refresh (Tenant),
 * and sg_admission_settle and the frees of the claimed job's process (Job).
 *
 *     flight, granted   the words of the job's registry entry
 *     resident          what the kernel shows of the job: its memory in use
 *     is_ending         PF_EXITING of the job's process; the kernel frees memory only after it is set
 *     is_marked         the entry of the dead process is marked dead
 *     taken             what the tenant was granted
 *
 * Processes: the job takes and frees memory within its claim, and may die at any step between; the tenant asks for one
 * byte after another.
 *
 * Properties
 *     claimed           the tenant never holds what the job has claimed: taken + CLAIM <= MACHINE
 *     use               what is free besides the claim can be had: without changes meanwhile, the first request is granted
 *
 * Parameters (-D)
 *     STEPS             how often the job takes or frees (3)
 *     RETAKES           the job may take again after it has freed. Then `claimed` does not hold: between the tenant's two
 *                       readings the job may free a byte, let the kernel be read without it, and take it again. The
 *                       readings are equal then. The machine is in no danger, because the job's next request is judged
 *                       as ever; but it may be refused
 *     QUIET             the job does nothing; checks `use`
 *     DIES              the job's process may die. Then `claimed` does not hold either: until its entry is marked dead, what it
 *                       held counts as held. A look that asks the kernel (CLOSELY) sees that the process is ending
 *     CLOSELY           every look asks the kernel, as before a refusal and for a new claim
 *     BREAK_...         leaves out one thing; tests/model/run expects a violation from each
 */

#ifndef STEPS
#define STEPS 3
#endif

#define MACHINE 3
#define CLAIM 2

byte flight, granted, resident, taken;
bool is_ending, is_marked;

inline take()
{
    flight++;
    resident++;
    granted++;
    flight--
}

inline give()
{
#ifdef BREAK_FREES_LATE
    resident--;
    granted--
#else
    granted--;
    resident--
#endif
}

active proctype Job()
{
    byte steps;
    bool has_given;
#ifndef QUIET
    do
    :: steps < STEPS && granted < CLAIM && !has_given ->
        take();
        steps++
    :: steps < STEPS && granted > 0 ->
        give();
#ifndef RETAKES
        has_given = true;
#endif
        steps++
    :: break
    od;
#ifdef DIES
    is_ending = true;
    resident = 0;
    is_marked = true
#endif
#endif
    skip
}

/* What the job holds by its entry, at least and at most. A byte that moves from flight to granted is in both words for a
 * moment, so only granted is held for certain. */
inline read_held(least, most, is_examined)
{
    if
    :: is_marked ->
        least = 0;
        most = 0
    :: else ->
        most = flight;
        least = granted;
        most = most + least;
        if
        :: is_examined && is_ending ->
            least = 0
        :: else -> skip
        fi
    fi
#ifdef BREAK_FLIGHT_IS_HELD
    least = most;
#endif
}

active proctype Tenant()
{
    byte least_before, least_after, most_before, most_after, seen_flight, seen_resident, most, least, left, requests;
    do
    :: requests == 3 -> break
    :: else ->
        requests++;
        seen_flight = (is_marked -> 0 : flight);
        read_held(least_before, most_before, false);
        seen_resident = resident;
#ifdef CLOSELY
        read_held(least_after, most_after, true);
#else
        read_held(least_after, most_after, false);
#endif
        least = (least_before > least_after -> least_after : least_before);
#ifdef BREAK_BEFORE_ONLY
        least = least_before;
#endif
#ifdef BREAK_AFTER_ONLY
        least = least_after;
#endif
        most = (most_before > most_after -> most_before : most_after);
        most = (most > CLAIM -> CLAIM : most);
        least = (least > CLAIM -> CLAIM : least);
#ifdef BREAK_DOUBT_IS_HELD
        least = most;
#endif
        left = CLAIM - most + (most - least); /* certain, and in doubt: both are taken */
        if
        :: seen_resident + seen_flight + left + taken + 1 <= MACHINE ->
            taken++;
            assert(taken + CLAIM <= MACHINE) /* claimed */
        :: else -> skip
        fi
    od;
#ifdef QUIET
    assert(taken == MACHINE - CLAIM) /* use */
#endif
}
