/*
 * claims.c - see claims.h.
 */
#include "shared/claims.h"

#include "base/atomics.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/log.h"
#include "base/pages.h"
#include "base/procfs.h"
#include "base/syscall.h"
#include "base/text.h"
#include "shared/own_entry.h"
#include "shared/registry.h"
#include "shared/same_bytes.h"
#include "shared/segment.h"

#include <string.h>

/* Whether a process with less is ending does not matter. */
#define EXAMINED_BYTES_MIN (UINT64_C(1) << 20)

/* Each process is granted this much heap before its first decision, and has promised none of it. */
#define UNPROMISED_BYTES (UINT64_C(1) << 20)

/* Bytes that a process or a job holds. A byte that moves from flight to granted is in both words for a moment, so bytes
 * in flight are not held for certain. */
struct held {
    uint64_t least, most;
};

/* A job with a granted claim. */
struct claimed_job {
    uint64_t job;
    uint64_t claimed_bytes; /* by all its claims */
    bool was_read;          /* before the kernel's figures */
    struct held before, now;
    uint64_t changed_bytes; /* ranges of shared memory of processes that have changed theirs since they were gathered */
    struct held left;       /* what the claims in earlier entries do not cover: a job may have several */
};

/* The jobs with claims, and their numbers plus one by the hash of the job's name (0: free). */
enum { PLACES = 2 * SG_CLAIM_JOBS };
static struct claimed_job jobs[SG_CLAIM_JOBS];
static uint16_t places[PLACES];
static uint32_t job_count;

static bool has_begun, counts_own;
static uint64_t certain_bytes[SG_ENTRY_CAPACITY]; /* the certain rest of each granted claim, for the observer */

/* Whoever waits for a claim tries again within a second, and stamps its entry. An older stamp is a stopped
 * process's. */
#define STOPPED_NS UINT64_C(3000000000)

/* The claim that this process has queued; NULL: none. */
static struct sg_registry_entry *queued SG_AT_FORK;

/* Returns the bytes that a process holds of the machine's memory, without the ranges of shared memory and the memory of
 * its parent, which other processes of the job may hold as well. *named: the ranges alone. */
static struct held held_by_process(const struct sg_registry_entry *entry, uint64_t *named)
{
    const struct sg_slot *slot = &entry->slot;
    bool is_unified = (sg_load(&slot->flags) & SG_SLOT_UNIFIED) != 0;
    uint64_t bounded = sg_load(&entry->bounded_flight_bytes), unbounded = sg_load(&entry->unbounded_flight_bytes);
    uint64_t flight = sg_entry_cut(bounded) + sg_entry_cut(unbounded);
    uint64_t private_bytes = sg_entry_private_bytes(slot, entry, named);
    uint64_t device = is_unified ? 0 : sg_entry_cut(sg_load(&slot->device_bytes));
    uint64_t bytes = sg_above(private_bytes, device + UNPROMISED_BYTES) + sg_entry_cut(sg_load(&slot->sparse_bytes));
    return (struct held){bytes, bytes + flight};
}

/* Whether the process is known to be ending: its memory may be freed already. A process of another PID namespace cannot
 * be found, and counts as running until its entry is marked dead. */
static bool is_ending(const struct sg_registry_entry *entry, uint64_t bytes)
{
    return bytes >= EXAMINED_BYTES_MIN && sg_procfs_is_ending(entry->slot.pid, entry->slot.start_ticks);
}

/* About the bytes that the processes of a job hold: of the ranges of shared memory, only the largest sum of one process
 * counts. Without the lock that the exact sum needs. */
static struct held about_held_by(uint64_t job)
{
    struct sg_registry *registry = sg_entry_registry();
    struct held sum = {0, 0};
    uint64_t most_named = 0;
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        uint64_t named;
        if (entry->slot.job_hash != job || !sg_entry_is_running(entry))
            continue;
        struct held held = held_by_process(entry, &named);
        sg_entry_add_cut(&sum.least, held.least);
        sg_entry_add_cut(&sum.most, held.most);
        most_named = named > most_named ? named : most_named;
    }
    return (struct held){sum.least + most_named, sum.most + most_named};
}

uint64_t sg_claims_held_by(uint64_t job)
{
    return about_held_by(job).most;
}

/* Whether the entry is of a job itself and lives: it may be a claim, granted or waiting. */
static bool is_of_live_job(const struct sg_registry_entry *entry)
{
    return SG_UNLIKELY(sg_entry_is_of_job(entry)) && sg_entry_is_live(entry);
}

static bool is_granted_claim(const struct sg_registry_entry *entry)
{
    return is_of_live_job(entry) && sg_load(&entry->claimed_bytes) != 0;
}

/* The place of a job, or the free place where it belongs. There are more places than jobs. */
static uint16_t *place_of(uint64_t job)
{
    uint32_t at = (uint32_t)(job ^ job >> 32) % PLACES;
    while (places[at] != 0 && jobs[places[at] - 1].job != job)
        at = (at + 1) % PLACES;
    return &places[at];
}

static struct claimed_job *find_job(uint64_t job)
{
    uint16_t place = *place_of(job);
    return place != 0 ? &jobs[place - 1] : NULL;
}

/* Finds the jobs with claims, and what each has claimed. Those that were known stay. */
static void find_claims(struct sg_registry *registry, uint32_t used)
{
    for (uint32_t i = 0; i < job_count; i++)
        jobs[i].claimed_bytes = 0;
    for (uint32_t i = 0; i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (SG_LIKELY(!is_granted_claim(entry)))
            continue;
        uint16_t *place = place_of(entry->slot.job_hash);
        if (*place == 0 && job_count < SG_CLAIM_JOBS) {
            jobs[job_count] = (struct claimed_job){.job = entry->slot.job_hash};
            *place = (uint16_t)++job_count;
        }
        if (*place != 0)
            sg_entry_add_cut(&jobs[*place - 1].claimed_bytes, sg_load(&entry->claimed_bytes));
    }
}

static void forget_jobs(void)
{
    if (job_count != 0)
        memset(places, 0, sizeof places);
    job_count = 0;
}

static void add_process(uint32_t number, const struct sg_registry_entry *entry, bool is_examined)
{
    struct claimed_job *job = find_job(entry->slot.job_hash);
    uint64_t named;
    if (job == NULL || !sg_entry_is_running(entry))
        return;
    struct held held = held_by_process(entry, &named);
    uint64_t gathered;
    sg_entry_add_cut(&job->now.most, held.most);
    if (sg_same_bytes_has_changed(number, entry, &gathered)) {
        sg_entry_add_cut(&job->now.most, named);
        sg_entry_add_cut(&job->changed_bytes, gathered);
    }
    sg_same_bytes_note_heir(entry);
    if (!is_examined || !is_ending(entry, held.least))
        sg_entry_add_cut(&job->now.least, held.least);
}

/* A reading adds up what each job with a claim holds: what its processes hold alone, then the ranges of shared memory
 * that they hold together, and memory of parents that have ended. */
static void begin_reading(struct sg_registry *registry, uint32_t used)
{
    find_claims(registry, used);
    for (uint32_t i = 0; i < job_count; i++) {
        jobs[i].now = (struct held){0, 0};
        jobs[i].changed_bytes = 0;
    }
    sg_same_bytes_begin_heirs();
}

static void end_reading(void)
{
    for (uint32_t i = 0; i < job_count; i++) {
        uint64_t together = sg_same_bytes_held_by(jobs[i].job), changed = jobs[i].changed_bytes;
        sg_entry_add_cut(&jobs[i].now.least, together > changed ? together - changed : 0);
        sg_entry_add_cut(&jobs[i].now.most, together);
    }
    uint64_t bytes, of;
    for (uint32_t i = 0; sg_same_bytes_heirs(i, &of, &bytes); i++) {
        struct claimed_job *job = find_job(of);
        if (job == NULL)
            continue;
        sg_entry_add_cut(&job->now.least, bytes);
        sg_entry_add_cut(&job->now.most, bytes);
    }
}

/* A whole reading. `is_examined`: what an ending process holds is not certain. */
static void add_up(struct sg_registry *registry, uint32_t used, bool is_examined)
{
    begin_reading(registry, used);
    for (uint32_t i = 0; i < used; i++)
        add_process(i, sg_entry_at(registry, i), is_examined);
    end_reading();
}

void sg_claims_count_own(bool does_count)
{
    counts_own = does_count;
}

bool sg_claims_begin(void)
{
    struct sg_registry *registry = sg_entry_registry();
    has_begun = sg_load(&registry->claim_places) != 0;
    if (SG_LIKELY(!has_begun))
        return false;
    forget_jobs();
    begin_reading(registry, sg_entry_count(registry));
    return true;
}

void sg_claims_read(uint32_t number, const struct sg_registry_entry *entry)
{
    add_process(number, entry, false);
}

void sg_claims_keep(void)
{
    end_reading();
    for (uint32_t i = 0; i < job_count; i++) {
        jobs[i].before = jobs[i].now;
        jobs[i].was_read = true;
    }
}

/* The rest of a claim: the part that is certain, and the part that is in doubt. */
struct rest {
    uint64_t bytes, in_doubt_bytes;
};

/* Bytes in doubt count as in flight: both are taken for now, and a request that does not fit because of them waits. */
static void add_rest(struct sg_peer_sums *sums, const struct rest *rest)
{
    sg_entry_add_cut(&sums->claimed_bytes, rest->bytes);
    sg_entry_add_cut(&sums->flight_bytes, rest->in_doubt_bytes);
}

/* What a job holds, by both readings. */
static void compare_readings(struct claimed_job *job)
{
    struct held before = job->was_read ? job->before : (struct held){0, job->now.most};
    job->left.least = sg_smaller(before.least, job->now.least);
    job->left.most = sg_larger(before.most, job->now.most);
}

static uint64_t take_from(uint64_t *left, uint64_t most)
{
    uint64_t taken = sg_smaller(*left, most);
    *left -= taken;
    return taken;
}

/* The rest of the job's next claim: the part that the job's bytes leave. */
static struct rest take_rest(struct claimed_job *job, uint64_t size)
{
    uint64_t most = take_from(&job->left.most, size), least = take_from(&job->left.least, size);
    return (struct rest){size - most, sg_above(most, least)};
}

void sg_claims_end(struct sg_peers *peers, bool is_examined)
{
    struct sg_registry *registry = sg_entry_registry();
    const struct sg_registry_entry *own = sg_entry_own();
    if (SG_LIKELY(!has_begun))
        return;
    const uint32_t used = sg_entry_count(registry);
    add_up(registry, used, is_examined);
    for (uint32_t i = 0; i < job_count; i++)
        compare_readings(&jobs[i]);
    const struct claimed_job *of_own = find_job(sg_own->slot.job_hash);
    if (of_own != NULL && of_own->claimed_bytes > of_own->now.most)
        peers->own_claim_bytes = of_own->claimed_bytes - of_own->now.most;
    for (uint32_t i = 0; i < used; i++) {
        struct sg_registry_entry *entry = sg_entry_at(registry, i);
        struct claimed_job *job = is_granted_claim(entry) ? find_job(entry->slot.job_hash) : NULL;
        if (SG_LIKELY(job == NULL))
            continue;
        const struct rest rest = take_rest(job, sg_entry_cut(sg_load(&entry->claimed_bytes)));
        certain_bytes[i] = rest.bytes;
        if (job == of_own && !counts_own)
            continue;
        add_rest(&peers->machine, &rest);
        for (unsigned k = 0; k < SG_ENTRY_LEVELS && own->level[k] != 0; k++)
            if (sg_entry_is_member(entry, own->level[k]))
                add_rest(&peers->level[k], &rest);
    }
}

uint64_t sg_claims_rest(uint32_t number)
{
    const struct sg_registry_entry *claim = sg_entry_at(sg_entry_registry(), number);
    bool is_known = has_begun && is_granted_claim(claim) && find_job(claim->slot.job_hash) != NULL;
    return is_known ? certain_bytes[number] : 0;
}

static uint64_t share_of(const struct sg_registry_entry *claim)
{
    uint64_t share = sg_load(&claim->claim_share);
    return share < SG_SHARE_MIN ? SG_SHARE_MIN : share > SG_SHARE_MAX ? SG_SHARE_MAX : share;
}

uint64_t sg_claims_lent_to(uint64_t job)
{
    struct sg_registry *registry = sg_entry_registry();
    uint64_t claimed = 0, share = SG_SHARE_MIN;
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (entry->slot.job_hash != job || !is_of_live_job(entry))
            continue;
        claimed += sg_entry_cut(sg_load(&entry->claimed_bytes));
        share = sg_larger(share, share_of(entry));
    }
    return sg_above(about_held_by(job).least, claimed) / share;
}

/* ---- the claim that this process makes --------------------------------------------------------------------------- */

/* Whether a user may have one more claim: the first one, or one of half of what other users leave. `user`: its number
 * plus one. */
static bool may_claim(struct sg_registry *registry, uint64_t user)
{
    uint32_t own = 0, others = 0;
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (!is_of_live_job(entry) || entry->claim_place == 0)
            continue;
        if (sg_load(&entry->set_user) == user)
            own++;
        else
            others++;
    }
    return own == 0 || 2 * own + others < SG_CLAIM_JOBS;
}

long sg_claims_queue(uint64_t bytes, int64_t priority, uint64_t share)
{
    struct sg_registry *registry = sg_entry_shared_registry();
    struct sg_registry_entry *entry = NULL;
    const uint64_t user = (uint32_t)sg_syscall(SYS_getuid, 0, 0, 0, 0, 0, 0) + UINT64_C(1);
    if (registry == NULL)
        return -ENOLCK;
    if (!may_claim(registry, user))
        return -EDQUOT;
    const uint64_t place = sg_fetch_add(&registry->claim_places, UINT64_C(1)) + 1;
    const struct sg_job_words words = {.job = sg_own->slot.job_hash,
                                       .run = sg_own->run,
                                       .pid_namespace = sg_own->pid_namespace,
                                       .wanted_bytes = bytes,
                                       .place = place,
                                       .share = share,
                                       .priority = priority,
                                       .user = user};
    long fd = sg_registry_add_job(&words, &entry);
    if (fd >= 0)
        queued = entry;
    return fd;
}

/* Whether the claim of entry `a` is decided on before that of `b`. */
static bool is_before(const struct sg_registry_entry *a, const struct sg_registry_entry *b)
{
    int64_t priority_a = (int64_t)sg_load(&a->claim_priority), priority_b = (int64_t)sg_load(&b->claim_priority);
    return priority_a != priority_b ? priority_a > priority_b : sg_load(&a->claim_place) < sg_load(&b->claim_place);
}

/* Whether the claim's process has not tried for long. Its own time may be a little later than `now`. */
static bool is_stopped(const struct sg_registry_entry *entry, uint64_t now)
{
    int64_t ago = (int64_t)(now - sg_load(&entry->published_ns));
    return ago >= (int64_t)STOPPED_NS || ago <= -(int64_t)STOPPED_NS;
}

uint64_t sg_claims_count_before(void)
{
    struct sg_registry *registry = sg_entry_registry();
    const uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    uint64_t count = 0;
    sg_store(&queued->published_ns, now);
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        count += entry != queued && is_of_live_job(entry) && sg_load(&entry->claim_wanted_bytes) != 0 &&
                 !is_stopped(entry, now) && is_before(entry, queued);
    }
    return count;
}

bool sg_claims_are_full(void)
{
    struct sg_registry *registry = sg_entry_registry();
    forget_jobs();
    find_claims(registry, sg_entry_count(registry));
    return job_count == SG_CLAIM_JOBS && find_job(sg_own->slot.job_hash) == NULL;
}

void sg_claims_grant(void)
{
    const struct sg_registry_entry *own = sg_entry_own();
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++) /* known since the first snapshot */
        sg_store(&queued->level[i], sg_load(&own->level[i]));
    sg_store(&queued->claim_asked_bytes, sg_load(&queued->claim_wanted_bytes));
    sg_store(&queued->claimed_bytes, sg_load(&queued->claim_wanted_bytes)); /* before it leaves the queue */
    sg_store(&queued->claim_wanted_bytes, 0);
}

void sg_claims_give_up(void)
{
    sg_store(&queued->claim_wanted_bytes, 0);
}

/* ---- a granted claim --------------------------------------------------------------------------------------------- */

bool sg_claims_find(uint64_t job, struct sg_granted_claim *found)
{
    struct sg_registry *registry = sg_entry_registry();
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        struct sg_registry_entry *entry = sg_entry_at(registry, i);
        *found = (struct sg_granted_claim){.entry = entry, .owner = sg_load(&entry->claim)};
        if (entry->slot.job_hash != job || !is_of_live_job(entry))
            continue;
        found->bytes = sg_load(&entry->claimed_bytes);
        if (found->bytes != 0 && sg_load(&entry->claim) == found->owner)
            return true;
    }
    return false;
}

uint64_t sg_claims_more(uint64_t bytes)
{
    struct sg_registry *registry = sg_entry_registry();
    (void)sg_same_bytes_gather();
    forget_jobs();
    add_up(registry, sg_entry_count(registry), true);
    const struct claimed_job *job = find_job(sg_own->slot.job_hash);
    if (job == NULL) /* its first claim */
        return bytes;
    return sg_above(bytes, sg_above(job->now.least, job->claimed_bytes));
}

bool sg_claims_are_judged_here(const struct sg_registry_entry *claim)
{
    const struct sg_registry_entry *own = sg_entry_own();
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++) {
        uint64_t level = sg_load(&claim->level[i]);
        if (level != 0 && !sg_entry_is_member(own, level))
            return false;
    }
    return true;
}

bool sg_claims_change(const struct sg_granted_claim *found, uint64_t bytes)
{
    struct sg_registry_entry *entry = found->entry;
    uint64_t from = found->bytes, to = bytes;
    if (sg_load(&entry->claim) != found->owner)
        return false;
    if (bytes < from) /* first: nobody may take the change for a loss */
        sg_store(&entry->claim_asked_bytes, bytes);
    if (!sg_cas_u64(&entry->claimed_bytes, &from, bytes))
        return false;
    sg_store(&entry->claim_asked_bytes, bytes);
    if (sg_load(&entry->claim) == found->owner)
        return true;
    (void)sg_cas_u64(&entry->claimed_bytes, &to, found->bytes); /* the claim of another job, of the same size */
    return false;
}

static void say_loss(uint64_t from, uint64_t to)
{
    char line[192];
    struct sg_text text = sg_text_begin(line, sizeof line);
    sg_text_add(&text, "sparkguard: the claim of this job has ");
    sg_text_add(&text, to == 0 ? "ended; it was " : "shrunk from ");
    sg_text_add_size(&text, from);
    if (to != 0) {
        sg_text_add(&text, " to ");
        sg_text_add_size(&text, to);
    }
    sg_text_add(&text, "; its launcher did not ask for that");
    sg_log_line(line);
    sg_segment_add_event(line + sizeof "sparkguard: " - 1);
}

void sg_claims_note_loss(void)
{
    static struct sg_granted_claim known; /* its bytes: what was asked for */
    if (known.entry == NULL) {
        if (sg_claims_find(sg_own->slot.job_hash, &known))
            known.bytes = sg_load(&known.entry->claim_asked_bytes);
        return;
    }
    bool is_there = sg_load(&known.entry->claim) == known.owner;
    uint64_t bytes = is_there ? sg_load(&known.entry->claimed_bytes) : 0,
             asked = sg_load(&known.entry->claim_asked_bytes);
    if (asked != known.bytes) /* it was changed on purpose, or another process of the job has told of the loss */
        known.bytes = is_there ? asked : 0;
    else if (bytes < asked && sg_cas_u64(&known.entry->claim_asked_bytes, &asked, bytes))
        say_loss(known.bytes, bytes);
    if (!is_there)
        known.entry = NULL;
}
