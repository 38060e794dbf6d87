/*
 * set.c - see set.h.
 *
 * Each process of the job has the words in its own registry entry, and reads them at its next decision. A process that
 * begins meanwhile copies them from the others. So the words are written again until a pass finds nothing to change.
 */
#define _GNU_SOURCE
#include "launch/set.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/text.h"
#include "launch/bounds.h"
#include "launch/launch.h"
#include "launch/raise.h"
#include "model/model.h"
#include "sparkguard_abi.h"
#include "sparkguard_options.h"

enum { PASSES_MAX = 100 };

/* What is to be set. A word of 0 is left as it is. */
struct order {
    uint64_t limit_bytes; /* SG_UNKNOWN: none */
    uint64_t reserve_bytes;
    uint64_t claim_bytes; /* SG_UNKNOWN: none */
};

struct ledger {
    int fd;
    struct sg_registry *registry;
    size_t entry_bytes;
};

/* Returns the memory that a percentage of a limit or reserve refers to; 0: unknown. */
static uint64_t base_of(const struct model *model, bool is_limit)
{
    uint64_t machine = model->machine.ordinary_bytes, reserve = model->machine.reserve_bytes;
    if (machine == SG_UNKNOWN)
        return 0;
    return is_limit && reserve != SG_UNKNOWN ? bytes_less(machine, reserve) : machine;
}

/* Returns false, after a message on stderr, if the text is not NAME=VALUE with a name and a value that can be set. */
static bool take(struct order *order, const struct model *model, const char *text)
{
    static const struct {
        const char *name;
        size_t offset;
    } words[] = {{"limit", offsetof(struct order, limit_bytes)},
                 {"reserve", offsetof(struct order, reserve_bytes)},
                 {"claim", offsetof(struct order, claim_bytes)}};
    const char *equals = strchr(text, '=');
    struct sg_size size;
    for (size_t i = 0; equals != NULL && i < sizeof words / sizeof words[0]; i++) {
        bool is_limit = words[i].offset == offsetof(struct order, limit_bytes),
             is_claim = words[i].offset == offsetof(struct order, claim_bytes);
        if (strlen(words[i].name) != (size_t)(equals - text) ||
            strncmp(text, words[i].name, (size_t)(equals - text)) != 0)
            continue;
        uint64_t *word = (uint64_t *)(void *)((char *)order + words[i].offset);
        bool is_none = (is_limit || is_claim) && strcmp(equals + 1, "none") == 0;
        if (!is_none && sg_parse_size(equals + 1, &size) != 0)
            break;
        uint64_t bytes = is_none ? SG_UNKNOWN : sg_size_of(size, base_of(model, is_limit));
        *word = bytes != 0 ? bytes : is_claim ? SG_UNKNOWN : 1; /* 0: not set */
        return true;
    }
    char *printable = text_printable(text, false);
    fprintf(stderr,
            "sparkguard: --set: %s is not limit=SIZE, limit=none, reserve=SIZE, claim=SIZE or claim=none; nothing is "
            "changed\n",
            printable);
    free(printable);
    return false;
}

/* Returns the exit code of a registry that cannot be used; 0: it is mapped. */
static int map_ledger(struct ledger *ledger, const char *directory)
{
    char *path = text_format("%s/" SG_REGISTRY_NAME, directory);
    struct stat status;
    ledger->fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int failure = ledger->fd < 0 ? errno : 0;
    free(path);
    if (failure != 0)
        return failure == EACCES || failure == EPERM ? SET_NOT_ALLOWED : SET_NO_JOB;
    if (fstat(ledger->fd, &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_size < (off_t)sizeof(struct sg_registry))
        return SET_NO_JOB;
    void *mapped = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, ledger->fd, 0);
    if (mapped == MAP_FAILED)
        return SET_NO_JOB;
    ledger->registry = mapped;
    ledger->entry_bytes = ledger->registry->entry_bytes; /* read once: another process may write anything there later */
    bool is_usable = sg_registry_is_usable(ledger->registry, (uint64_t)status.st_size) &&
                     ledger->entry_bytes >= SG_ENTRY_FROZEN_BYTES && ledger->entry_bytes <= SG_ENTRY_BYTES_MAX &&
                     SG_REGISTRY_BYTES(ledger->entry_bytes) <= (uint64_t)status.st_size;
    return is_usable ? 0 : SET_NO_JOB;
}

static struct sg_registry_entry *entry_at(const struct ledger *ledger, uint32_t number)
{
    return (struct sg_registry_entry *)(void *)((char *)ledger->registry->entry + number * ledger->entry_bytes);
}

/* Returns a living entry of the job, or NULL if entry `number` is not one. */
static struct sg_registry_entry *entry_of(const struct ledger *ledger, uint32_t number, uint64_t job)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = number, .l_len = 1};
    struct sg_registry_entry *entry = entry_at(ledger, number);
    bool is_live = SG_CLAIM_STATE(__atomic_load_n(&entry->claim, __ATOMIC_ACQUIRE)) == SG_CLAIM_LIVE;
    if (!is_live || entry->slot.job_hash != job || fcntl(ledger->fd, F_OFD_GETLK, &lock) != 0)
        return NULL;
    return lock.l_type != F_UNLCK ? entry : NULL;
}

static bool store(uint64_t *word, uint64_t value)
{
    if (value == 0 || __atomic_load_n(word, __ATOMIC_RELAXED) == value)
        return false;
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    return true;
}

/* Writes the words into the job's entries once. Returns whether anything changed; *processes: how many the job has. */
static bool write_once(const struct ledger *ledger, uint64_t job, const struct order *order, size_t *processes)
{
    bool has_changed = false;
    *processes = 0;
    for (uint32_t i = 0; i < SG_ENTRY_CAPACITY; i++) {
        struct sg_registry_entry *entry = entry_of(ledger, i, job);
        if (entry == NULL || (entry->slot.flags & SG_SLOT_CLAIM) != 0)
            continue;
        ++*processes;
        if (order->limit_bytes != 0 || order->reserve_bytes != 0)
            has_changed = store(&entry->set_user, (uint64_t)getuid() + 1) || has_changed;
        has_changed = store(&entry->set_limit_bytes, order->limit_bytes) || has_changed;
        has_changed = store(&entry->set_reserve_bytes, order->reserve_bytes) || has_changed;
    }
    return has_changed;
}

/* Returns the job's granted claim, or NULL if it has none. *owner names the owner of the entry. */
static struct sg_registry_entry *claim_of(const struct ledger *ledger, uint64_t job, uint64_t *owner)
{
    for (uint32_t i = 0; i < SG_ENTRY_CAPACITY; i++) {
        *owner = __atomic_load_n(&entry_at(ledger, i)->claim, __ATOMIC_ACQUIRE);
        struct sg_registry_entry *entry = entry_of(ledger, i, job);
        if (entry != NULL && (entry->slot.flags & SG_SLOT_CLAIM) != 0 && entry->claimed_bytes != 0)
            return entry;
    }
    return NULL;
}

static void wake(uint32_t *word)
{
    __atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* The job that is to change. */
struct chosen {
    uint64_t hash;
    uid_t owner; /* another user than this process's if the job has a process of one */
};

/* Chooses this user's job of the name; for root, without one, the job of the only other user who has one. Returns an
 * exit code, 0: chosen. */
static int choose(const struct model *model, const char *name, struct chosen *chosen)
{
    const struct model_job *job = NULL, *at;
    const struct model_process *process;
    size_t others = 0;
    *chosen = (struct chosen){model_own_job(name, false), geteuid()};
    DL_FOREACH (model->jobs, at) {
        bool is_own = at->hash == chosen->hash;
        others += at->running_count != 0 && !is_own;
        if (at->running_count != 0 && (is_own || job == NULL || job->hash != chosen->hash))
            job = at;
    }
    if (job == NULL)
        return 0;
    if (job->hash != chosen->hash && (geteuid() != 0 || others > 1))
        return geteuid() != 0 ? SET_NOT_ALLOWED : SET_SEVERAL;
    chosen->hash = job->hash;
    bool is_ours = false;
    DL_FOREACH (job->processes, process)
        if (process->state == SG_STATE_RUNNING) {
            is_ours = is_ours || process->user == geteuid();
            chosen->owner = process->user != geteuid() ? process->user : chosen->owner;
        }
    if (name[0] == '@' && is_ours) /* each user of a shared job may change it */
        chosen->owner = geteuid();
    return geteuid() == 0 || chosen->owner == geteuid() ? 0 : SET_NOT_ALLOWED;
}

static int complain(int code, const char *job)
{
    char *printable = text_printable(job, false);
    fprintf(stderr, "sparkguard: --set: ");
    fprintf(stderr,
            code == SET_NOT_ALLOWED ? "job %s runs for another user"
            : code == SET_SEVERAL   ? "several users run a job %s: call this tool as one of them (setpriv --reuid=USER)"
                                    : "no process of job %s runs and shares",
            printable);
    fprintf(stderr, "; nothing is changed\n");
    free(printable);
    return code == SET_SEVERAL ? SET_NOT_ALLOWED : code;
}

/* Root would run a process with the library in the user's directory, so only the user itself can raise a claim. */
static int raise_claim(const struct launch *launch, uid_t owner, uint64_t bytes, uint64_t machine_bytes)
{
    if (owner != geteuid()) {
        fputs("sparkguard: --set: only the job's user can raise its claim; nothing is changed\n", stderr);
        return SET_NOT_ALLOWED;
    }
    return launch_bounds_allow(owner, bytes, 0, machine_bytes) ? launch_raise(launch, bytes) : SET_NOT_ALLOWED;
}

/* Lowers the claim to `bytes`. Returns false if it is smaller already, or if it has ended. */
static bool lower(struct sg_registry_entry *entry, uint64_t owner, uint64_t bytes)
{
    uint64_t now = __atomic_load_n(&entry->claimed_bytes, __ATOMIC_ACQUIRE), lowered = bytes;
    do
        if (bytes > now || __atomic_load_n(&entry->claim, __ATOMIC_ACQUIRE) != owner)
            return false;
    while (!__atomic_compare_exchange_n(&entry->claimed_bytes, &now, bytes, false, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE));
    if (__atomic_load_n(&entry->claim, __ATOMIC_ACQUIRE) == owner)
        return true;
    /* The claim of another job, which has taken the entry since. While it waits, it has nothing to be lowered. */
    if (__atomic_load_n(&entry->claim_wanted_bytes, __ATOMIC_ACQUIRE) != 0)
        return false;
    __atomic_compare_exchange_n(&entry->claimed_bytes, &lowered, now, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    return false;
}

/* Changes the claim. Lower it may be at any time; the library decides on a larger one. */
static int set_claim(const struct ledger *ledger, const struct launch *launch, const struct chosen *job, uint64_t bytes,
                     uint64_t machine_bytes)
{
    uint64_t claim_owner;
    struct sg_registry_entry *entry = claim_of(ledger, job->hash, &claim_owner);
    if (entry != NULL)
        return lower(entry, claim_owner, bytes) ? 0 : raise_claim(launch, job->owner, bytes, machine_bytes);
    fputs("sparkguard: --set: the job has no claim; nothing is changed\n", stderr);
    return SET_NOT_ALLOWED;
}

static int apply(const struct ledger *ledger, const struct launch *launch, const struct chosen *job,
                 const struct order *order, uint64_t machine_bytes)
{
    size_t processes = 0;
    const struct order nothing = {0};
    if (!write_once(ledger, job->hash, &nothing, &processes) && processes == 0)
        return complain(SET_NO_JOB, launch->set_job);
    uint64_t claim_bytes = order->claim_bytes != SG_UNKNOWN ? order->claim_bytes : 0;
    int code = order->claim_bytes != 0 ? set_claim(ledger, launch, job, claim_bytes, machine_bytes) : 0;
    for (int pass = 0; code == 0 && pass < PASSES_MAX && write_once(ledger, job->hash, order, &processes); pass++)
        continue;
    wake(&ledger->registry->epoch); /* requests that wait are judged again */
    wake(&ledger->registry->call);  /* idle processes take over what was set, and note it in their records */
    return code;
}

static int set(const struct launch *launch, const struct model *model)
{
    struct order order = {0};
    struct ledger ledger = {.fd = -1};
    for (char **word = launch->program; *word != NULL; word++)
        if (!take(&order, model, *word))
            return LAUNCH_USAGE;
    int code = map_ledger(&ledger, launch->directory);
    struct chosen job;
    if (code == 0)
        code = choose(model, launch->set_job, &job);
    if (code != 0)
        return complain(code, launch->set_job);
    const uint64_t machine_bytes = base_of(model, false);
    if (!launch_bounds_allow(job.owner, order.limit_bytes, order.reserve_bytes, machine_bytes))
        return SET_NOT_ALLOWED;
    return apply(&ledger, launch, &job, &order, machine_bytes);
}

int launch_set(const struct launch *launch)
{
    const struct model_scope scope = {.directories = &launch->directory, .directory_count = 1, .job = launch->set_job};
    struct model *model = model_build(&scope);
    int code = set(launch, model);
    model_free(model);
    return code;
}
