/*
 * control.c - see control.h. tests/model/control.pml checks the order of what is written here.
 */
#include "observer/control.h"

#include "base/options.h"
#include "base/syscall.h"
#include "shared/claims.h"
#include "shared/peers.h"
#include "shared/registry.h"
#include "shared/registry_file.h"
#include "shared/segment.h"
#include "base/text.h"

#include <errno.h>
#include <time.h>

/* Who changes what is set is done within microseconds. */
enum { TRIES_MAX = 100 };
#define TRY_NS 10000000

extern char **environ;

int sg_control_begin(const char *directory)
{
    sg_options_read_quietly(environ);
    struct sg_text text = sg_text_begin(sg_options.dir, sizeof sg_options.dir);
    sg_text_add(&text, directory);
    return (int)sg_registry_enter();
}

static bool is_process_of(const struct sg_registry_entry *entry, uint64_t job)
{
    return entry->slot.job_hash == job && sg_entry_is_process(entry) && sg_entry_is_live(entry);
}

/* Counts the job's processes, and takes from one of them what its entry says of the job. */
static uint32_t count_processes(struct sg_job_words *words)
{
    struct sg_registry *registry = sg_entry_registry();
    uint32_t count = 0;
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (!is_process_of(entry, words->job))
            continue;
        if (count++ == 0 || words->run == 0) {
            words->run = sg_load(&entry->job_run);
            words->pid_namespace = entry->pid_namespace;
        }
    }
    return count;
}

/* Marks the job's dead entries first. */
static uint32_t find_processes(int fd, struct sg_job_words *words)
{
    (void)sg_registry_mark_dead_in(sg_entry_registry(), fd, &words->job);
    return count_processes(words);
}

uint32_t sg_control_count(uint64_t job)
{
    struct sg_job_words words = {.job = job};
    long fd = sg_registry_open();
    if (fd < 0)
        return 0;
    uint32_t count = find_processes((int)fd, &words);
    (void)sg_sys_close((int)fd);
    return count;
}

static void pause_shortly(void)
{
    const struct timespec pause = {0, TRY_NS};
    (void)sg_syscall(SYS_nanosleep, (long)&pause, 0, 0, 0, 0, 0);
}

/* Locks a byte of the registry's file for `fd`. */
static bool lock(int fd, uint32_t number)
{
    for (int i = 0; i < TRIES_MAX; i++) {
        if (sg_registry_file_lock(fd, number) == 0)
            return true;
        pause_shortly();
    }
    return false;
}

/* Writes the words, then counts the change: pairs with sg_settings_read(). */
static void write_words(struct sg_registry_entry *entry, const struct sg_settings *set)
{
    sg_store(&entry->set_user, set->user);
    if (set->limit_bytes != 0)
        sg_store(&entry->set_limit_bytes, set->limit_bytes);
    if (set->reserve_bytes != 0)
        sg_store(&entry->set_reserve_bytes, set->reserve_bytes);
    sg_fetch_add(&sg_entry_registry()->settings, UINT64_C(1));
}

/* Changes what is set already. While the entry's byte is locked, nobody else can take it over. -EAGAIN: the entry was
 * found dead meanwhile. -EBUSY: somebody else holds the lock. */
static int change(int fd, uint32_t number, struct sg_registry_entry *entry, const struct sg_settings *set)
{
    uint64_t claim = sg_load(&entry->claim);
    if (!lock(fd, number))
        return -EBUSY;
    if (sg_load(&entry->claim) != claim || SG_CLAIM_STATE(claim) != SG_CLAIM_LIVE)
        return -EAGAIN;
    write_words(entry, set);
    return sg_load(&entry->claim) == claim ? 0 : -EAGAIN;
}

static int make(const struct sg_job_words *words)
{
    struct sg_registry_entry *entry;
    long fd = sg_registry_add_job(words, &entry);
    if (fd < 0)
        return (int)fd;
    sg_fetch_add(&sg_entry_registry()->settings, UINT64_C(1)); /* as write_words() */
    (void)sg_sys_close((int)fd);
    return 0;
}

static int set_once(uint64_t job, uint64_t run, const struct sg_settings *set)
{
    struct sg_job_words words = {
        .job = job, .limit_bytes = set->limit_bytes, .reserve_bytes = set->reserve_bytes, .user = set->user};
    uint32_t number;
    long fd = sg_registry_open();
    if (fd < 0)
        return (int)fd;
    int result = lock((int)fd, SG_ENTRY_CAPACITY) ? 0 : -EBUSY;
    if (result == 0) {
        uint32_t processes = find_processes((int)fd, &words);
        struct sg_registry_entry *entry = sg_settings_find(sg_entry_registry(), job, &number);
        words.run = words.run != 0 ? words.run : run;
        if (entry != NULL)
            result = change((int)fd, number, entry, set);
        else
            result = processes != 0 || run != 0 ? make(&words) : -ENOENT;
    }
    (void)sg_sys_close((int)fd); /* the locks end with it */
    return result;
}

int sg_control_set(uint64_t job, uint64_t run, const struct sg_settings *set)
{
    int result = -EAGAIN;
    for (int i = 0; i < TRIES_MAX && result == -EAGAIN; i++)
        result = set_once(job, run, set);
    return result;
}

int sg_control_lower_claim(uint64_t job, uint64_t bytes)
{
    struct sg_granted_claim claim;
    do
        if (!sg_claims_find(job, &claim))
            return -ENOENT;
        else if (bytes > claim.bytes)
            return -ERANGE;
    while (!sg_claims_change(&claim, bytes));
    return 0;
}

void sg_control_give_up_claim(uint64_t job, uint32_t pid)
{
    struct sg_registry *registry = sg_entry_registry();
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        struct sg_registry_entry *entry = sg_entry_at(registry, i);
        struct sg_granted_claim claim = {.entry = entry, .owner = sg_load(&entry->claim)};
        if (entry->slot.job_hash != job || entry->slot.pid != pid || !sg_entry_is_of_job(entry))
            continue;
        claim.bytes = sg_load(&entry->claimed_bytes);
        if (claim.bytes != 0 && SG_CLAIM_STATE(claim.owner) == SG_CLAIM_LIVE)
            (void)sg_claims_change(&claim, 0);
    }
}

void sg_control_wake(void)
{
    sg_peers_advance();
    sg_peers_call();
}
