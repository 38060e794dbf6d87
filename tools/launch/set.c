/*
 * set.c - see launch.h. What is set stands in an entry of the job in the registry; the core writes it
 * (observer/control.h).
 */
#include "launch/launch.h"

#include <errno.h>
#include <inttypes.h>
#include <langinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/bad_value.h"
#include "common/bytes.h"
#include "common/procfs.h"
#include "common/suggest.h"
#include "common/text.h"
#include "model/model.h"
#include "observer/control.h"
#include "sparkguard_abi.h"
#include "sparkguard_options.h"

/* A reserve that keeps nothing: 0 would leave it as it is. */
enum { NO_RESERVE = 1 };

/* What is to be set. A word of 0 is left as it is. */
struct order {
    uint64_t limit_bytes;   /* SG_UNKNOWN: none */
    uint64_t reserve_bytes; /* NO_RESERVE: none */
    uint64_t claim_bytes;   /* SG_UNKNOWN: none */
    bool is_forced;
};

/* Returns the memory that a percentage of a limit or reserve refers to; 0: unknown. */
static uint64_t base_of(const struct model *model, bool is_limit)
{
    uint64_t machine = model->machine.ordinary_bytes, reserve = model->machine.reserve_bytes;
    if (machine == SG_UNKNOWN)
        return 0;
    return is_limit && reserve != SG_UNKNOWN ? bytes_less(machine, reserve) : machine;
}

static const char *const names[] = {"limit", "reserve", "claim"};
enum { LIMIT, RESERVE, CLAIM, NAME_COUNT };

/* Says that a word sets nothing, with the name that it nearly has. */
static void complain_of_word(const char *text)
{
    char *printable = text_printable(text, false), *name = text_copy(text, strcspn(text, "="));
    const char *near = text[strlen(name)] == '=' ? suggest_word(name, names, NAME_COUNT) : NULL;
    if (near != NULL && strcmp(near, name) != 0)
        fprintf(stderr, "sparkguard: %s: %s sets nothing; did you mean %s%s? nothing is changed\n", launch_set_name,
                printable, near, strchr(printable, '='));
    else
        fprintf(
            stderr,
            "sparkguard: %s: %s is not limit=SIZE, reserve=SIZE or claim=SIZE; for example limit=60G or limit=none; "
            "nothing is changed\n",
            launch_set_name, printable);
}

/* Returns false, after a message on stderr, if the text is not NAME=VALUE with a name and a value that can be set. */
static bool parse_setting(struct order *order, const struct model *model, const char *text)
{
    uint64_t *const words[NAME_COUNT] = {&order->limit_bytes, &order->reserve_bytes, &order->claim_bytes};
    const size_t length = strcspn(text, "=");
    struct sg_size size;
    int which = 0;
    if (strcmp(text, "--force") == 0)
        return order->is_forced = true;
    while (which < NAME_COUNT && (strlen(names[which]) != length || strncmp(text, names[which], length) != 0))
        which++;
    const char *value = text[length] == '=' ? text + length + 1 : "";
    if (which == NAME_COUNT || sg_parse_size(value, &size) != 0) {
        complain_of_word(text);
        return false;
    }
    bad_value_warn_of_zero("sparkguard", names[which], value);
    if (which != LIMIT) /* check_limit asks about that */
        bad_value_warn_of_unit("sparkguard", names[which], value, "64G");
    uint64_t bytes = sg_size_of(size, base_of(model, which == LIMIT));
    *words[which] = bytes != 0 ? bytes : which != RESERVE ? SG_UNKNOWN : NO_RESERVE; /* 0: not set */
    return true;
}

/* The job that is to change. */
struct chosen {
    uint64_t hash;
    uid_t owner;          /* another user than this process's if the job has a process of one */
    uint64_t run;         /* SG_RUN of its first process; 0: that has ended, or is not known */
    uint64_t limit_bytes; /* now; SG_UNKNOWN: none */
    uint64_t reserve_bytes, claim_bytes, held_bytes;
};

/* Returns the run of a job whose first process lives; 0: there is none. */
static uint64_t living_run(const struct model_job *job)
{
    const struct model_process *process;
    struct procfs_stat stat;
    DL_FOREACH (job->processes, process)
        if (process->run_key != 0 && procfs_stat((uint32_t)SG_RUN_PID(process->run_key), &stat) == 0 &&
            stat.start_ticks == SG_RUN_TICKS(process->run_key))
            return process->run_key;
    return 0;
}

static void take_state(struct chosen *chosen, const struct model *model, const struct model_job *job)
{
    const struct model_setting set = model_claims_setting_of(&model->claims, job);
    const struct model_job_claims claims = model_claims_of(&model->claims, job);
    chosen->hash = job->hash;
    chosen->run = living_run(job);
    chosen->limit_bytes = job->running_count != 0 ? job->limit_bytes : SG_UNKNOWN;
    chosen->reserve_bytes = set.reserve_bytes != 0 ? set.reserve_bytes : model->machine.reserve_bytes;
    chosen->claim_bytes = claims.is_held ? claims.bytes : 0;
    chosen->held_bytes = job->running_count != 0 ? job->live_bytes : 0;
}

/* Chooses this user's job of the name; for root, without one, the job of the only other user who has one. Returns an
 * exit code, 0: chosen. */
static int choose_job(const struct model *model, const char *name, struct chosen *chosen)
{
    const struct model_job *job = NULL, *at;
    const struct model_process *process;
    size_t others = 0;
    *chosen = (struct chosen){.hash = model_own_job(name, false), .owner = geteuid(), .limit_bytes = SG_UNKNOWN};
    DL_FOREACH (model->jobs, at) {
        bool is_own = at->hash == chosen->hash, is_running = at->running_count != 0 || living_run(at) != 0;
        others += is_running && !is_own;
        if (is_running && (is_own || job == NULL || job->hash != chosen->hash))
            job = at;
    }
    if (job == NULL)
        return 0;
    if (job->hash != chosen->hash && (geteuid() != 0 || others > 1))
        return geteuid() != 0 ? SET_NOT_ALLOWED : SET_SEVERAL;
    take_state(chosen, model, job);
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

static int complain_of_setting(int code, const char *job)
{
    char *printable = text_printable(job, false);
    fprintf(stderr, "sparkguard: %s: ", launch_set_name);
    fprintf(stderr,
            code == SET_NOT_ALLOWED ? "job %s runs for another user"
            : code == SET_SEVERAL   ? "several users run a job %s: call this tool as one of them (setpriv --reuid=USER)"
                                    : "no process of job %s runs and shares",
            printable);
    fprintf(stderr, "; nothing is changed\n");
    return code == SET_SEVERAL ? SET_NOT_ALLOWED : code;
}

/* Root would run a process with the library in the user's directory, so only the user itself can raise a claim. */
static int raise_claim(const struct launch *launch, uid_t owner, uint64_t bytes, uint64_t machine_bytes)
{
    if (owner != geteuid()) {
        fprintf(stderr, "sparkguard: %s: only the job's user can raise its claim; nothing is changed\n",
                launch_set_name);
        return SET_NOT_ALLOWED;
    }
    return launch_bounds_allow(owner, bytes, 0, machine_bytes) ? launch_raise(launch, bytes) : SET_NOT_ALLOWED;
}

/* Changes the claim. Lower it may be at any time; the library decides on a larger one. */
static int set_claim(const struct launch *launch, const struct chosen *job, uint64_t bytes, uint64_t machine_bytes)
{
    int failure = sg_control_lower_claim(job->hash, bytes);
    if (failure == -ERANGE)
        return raise_claim(launch, job->owner, bytes, machine_bytes);
    if (failure == 0)
        return 0;
    fprintf(stderr, "sparkguard: %s: the job has no claim; nothing is changed\n", launch_set_name);
    return SET_NOT_ALLOWED;
}

static int apply(const struct launch *launch, const struct chosen *job, const struct order *order,
                 uint64_t machine_bytes)
{
    const struct sg_settings set = {order->limit_bytes, order->reserve_bytes, (uint64_t)getuid() + 1};
    int code = 0, failure = 0;
    if (sg_control_count(job->hash) == 0 && job->run == 0)
        return complain_of_setting(SET_NO_JOB, launch->set_job);
    if (order->claim_bytes != 0)
        code = set_claim(launch, job, order->claim_bytes != SG_UNKNOWN ? order->claim_bytes : 0, machine_bytes);
    if (code == 0 && (order->limit_bytes != 0 || order->reserve_bytes != 0))
        failure = sg_control_set(job->hash, job->run, &set);
    sg_control_wake();
    if (failure == -ENOENT)
        return complain_of_setting(SET_NO_JOB, launch->set_job);
    if (failure != 0)
        fprintf(stderr, "sparkguard: %s: the job cannot be changed now: %s; nothing is changed\n", launch_set_name,
                failure == -EBUSY    ? "another sparkguard --set is at work"
                : failure == -ENOSPC ? "the machine's ledger is full"
                                     : strerror(-failure));
    return failure != 0 ? SET_NOT_ALLOWED : code;
}

/* ---- what is refused, and what is said --------------------------------------------------------------------------- */

/* Returns whether the limit is one that the job can live with. Prints why not. */
static bool check_limit(const struct order *order, const struct chosen *job, const char *name)
{
    uint64_t bytes = order->limit_bytes;
    if (bytes == 0 || bytes == SG_UNKNOWN || order->is_forced || (bytes >= SG_LIMIT_LEAST && bytes >= job->held_bytes))
        return true;
    char *printable = text_printable(name, false);
    const char *limit = text_size(bytes);
    if (bytes < SG_LIMIT_LEAST && bytes < 1024)
        fprintf(stderr, "sparkguard: %s: limit=%" PRIu64 " is %s; did you mean %" PRIu64 "G?", launch_set_name, bytes,
                limit, bytes);
    else if (bytes < SG_LIMIT_LEAST)
        fprintf(stderr, "sparkguard: %s: a limit of %s is less than any program needs (16 MiB);", launch_set_name,
                limit);
    else
        fprintf(stderr, "sparkguard: %s: job %s holds %s, more than %s: its next requests would be refused;",
                launch_set_name, printable, text_size(job->held_bytes), limit);
    fputs(" nothing is changed (--force sets it)\n", stderr);
    return false;
}

static char *size_or_none(uint64_t bytes)
{
    return text_copy(bytes <= NO_RESERVE || bytes == SG_UNKNOWN ? "none" : text_size(bytes), SIZE_MAX);
}

/* Adds "NAME OLD -> NEW" to the line. */
static void add_change(char **line, const char *name, uint64_t before, uint64_t now)
{
    char *old = size_or_none(before), *new = size_or_none(now);
    const char *arrow = strcmp(nl_langinfo(CODESET), "UTF-8") == 0 ? "\u2192" : "->";
    if (now != 0)
        *line = text_format("%s%s%s %s %s %s", *line, (*line)[0] != '\0' ? ", " : "", name, old, arrow, new);
}

static void say_set(const struct launch *launch, const struct chosen *job, const struct order *order)
{
    char *name = text_printable(launch->set_job, false), *line = text_copy("", SIZE_MAX);
    add_change(&line, "limit", job->limit_bytes, order->limit_bytes);
    add_change(&line, "reserve", job->reserve_bytes, order->reserve_bytes);
    add_change(&line, "claim", job->claim_bytes, order->claim_bytes);
    printf("job %s: %s; it holds %s\n", name, line, text_size(job->held_bytes));
}

static int set(const struct launch *launch, const struct model *model)
{
    struct order order = {.is_forced = launch->is_forced};
    struct chosen job;
    for (char **word = launch->program; *word != NULL; word++)
        if (!parse_setting(&order, model, *word))
            return LAUNCH_USAGE;
    int failure = sg_control_begin(launch->directory);
    int code = failure == 0                              ? choose_job(model, launch->set_job, &job)
               : failure == -EACCES || failure == -EPERM ? SET_NOT_ALLOWED
                                                         : SET_NO_JOB;
    if (code != 0)
        return complain_of_setting(code, launch->set_job);
    const uint64_t machine_bytes = base_of(model, false);
    if (!launch_bounds_allow(job.owner, order.limit_bytes, order.reserve_bytes, machine_bytes) ||
        !check_limit(&order, &job, launch->set_job))
        return SET_NOT_ALLOWED;
    code = apply(launch, &job, &order, machine_bytes);
    if (code == 0 && !launch->is_quiet)
        say_set(launch, &job, &order);
    return code;
}

int launch_set(const struct launch *launch)
{
    const struct model_scope scope = {.directories = &launch->directory, .directory_count = 1, .job = launch->set_job};
    return set(launch, model_build(&scope));
}
