/*
 * model.c - builds the model from directories of segments: reads, groups by job, sums, and narrows to the scope.
 */
#include "model/model.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/procfs.h"
#include "common/text.h"
#include "common/tool.h"
#include "sparkguard_options.h"

/* What is read at most of directories that a pattern matched: strangers may have filled them. The library itself keeps
 * at most 128 segments of ended processes of one user. One takes about 32 KiB here. */
enum {
    FOUND_MAX = 4096,          /* segments of a directory */
    FOUND_OF_OWNER_MAX = 512,  /* segments that one user other than root owns, of all directories */
    FOUND_STRANGE_MAX = 2048,  /* segments of all such users */
    FOUND_COMPLAINTS_MAX = 16, /* of a directory */
};

/* Sorted names of the segments read in SPARKGUARD_DIR. Copies of them in the history are older and are skipped. */
struct seen {
    char **names;
    size_t count;
};

static void add_complaint(struct model *model, const char *directory, const char *name, const char *why)
{
    if (model->is_terse) {
        model->unsaid_count++;
        return;
    }
    model->complaints = tool_grow(model->complaints, model->complaint_count, sizeof *model->complaints);
    model->complaints[model->complaint_count++] = text_format("%s/%s: %s", directory, name, why);
}

void model_say_complaints(struct model *model)
{
    for (; model->said_count < model->complaint_count; model->said_count++)
        fprintf(stderr, "sparkguard-report: %s\n", text_printable(model->complaints[model->said_count], false));
}

void model_say_complaints_shortly(const struct model *model)
{
    if (model->complaint_count == 0)
        return;
    char *first = text_printable(model->complaints[0], false);
    size_t count = model->complaint_count + model->unsaid_count;
    fprintf(stderr, "sparkguard-report: %zu file%s not trusted, the first: %s\n", count, count == 1 ? " is" : "s are",
            first);
}

/* Marks jobs of one name, which are different users'. */
static void note_name(struct model *model, struct model_job *job)
{
    struct model_job *first;
    HASH_FIND(hh_name, model->by_name, job->name, strlen(job->name), first);
    if (first == NULL)
        HASH_ADD_KEYPTR(hh_name, model->by_name, job->name, strlen(job->name), job);
    else
        first->has_namesake = job->has_namesake = true;
}

/* Adds a process. `home` is the directory of its job, `directory` that of its file (the history for a copy). */
static void add_process(struct model *model, struct model_process *process, const char *home, const char *directory,
                        const char *name)
{
    struct model_job *job;
    process->segment_path = text_format("%s/%s", directory, name);
    char *key = text_format("%s %" PRIx64, process->job, process->job_hash);
    HASH_FIND_STR(model->by_key, key, job);
    if (job == NULL) {
        job = tool_allocate(1, sizeof *job);
        job->name = text_copy(process->job, SG_JOB_BYTES);
        job->hash = process->job_hash;
        job->key = text_copy(key, SIZE_MAX);
        job->directory = home;
        job->limit_bytes = SG_UNKNOWN;
        HASH_ADD_KEYPTR(hh, model->by_key, job->key, strlen(job->key), job);
        note_name(model, job);
        DL_APPEND(model->jobs, job);
    }
    DL_APPEND(job->processes, process);
}

static int compare_processes(const struct model_process *a, const struct model_process *b)
{
    if (a->started_ns != b->started_ns)
        return a->started_ns < b->started_ns ? -1 : 1;
    return a->pid < b->pid ? -1 : a->pid > b->pid;
}

static int compare_jobs(const struct model_job *a, const struct model_job *b)
{
    if (a->started_ns != b->started_ns)
        return a->started_ns < b->started_ns ? -1 : 1;
    int order = strcmp(a->name, b->name);
    return order != 0 ? order : strcmp(a->directory, b->directory);
}

static void sum_job(struct model_job *job, const struct model *model)
{
    const struct model_process *process;
    job->started_ns = INT64_MAX;
    DL_FOREACH (job->processes, process) {
        job->process_count++;
        if (process->started_ns < job->started_ns)
            job->started_ns = process->started_ns;
        job->refused_count = bytes_add(job->refused_count, process->refused_count);
        job->peak_bytes = bytes_max(job->peak_bytes, model_job_peak(process));
        if (process->last_seen_ns > job->last_seen_ns)
            job->last_seen_ns = process->last_seen_ns;
        if (process->state != SG_STATE_RUNNING)
            continue;
        job->running_count++;
        job->limit_bytes = bytes_min(job->limit_bytes, process->limit_bytes);
        job->is_limit_bound = job->is_limit_bound || process->is_limit_bound;
        job->is_reserve_bound = job->is_reserve_bound || process->is_reserve_bound;
        job->live_bytes = bytes_add(job->live_bytes, model_process_own_bytes(process));
    }
    if (job->running_count > 0)
        job->live_bytes = bytes_add(job->live_bytes, job->shared_bytes);
    const struct model_setting set = model_claims_setting_of(&model->claims, job);
    if (job->running_count > 0 && set.limit_bytes != 0) /* an idle process has not noted it yet */
        job->limit_bytes = job->is_limit_bound ? bytes_min(job->limit_bytes, set.limit_bytes) : set.limit_bytes;
    if (job->running_count == 0) /* the last run's limit: a later run may set another one */
        job->limit_bytes = job->runs[job->run_count - 1].limit_bytes;
    job->peak_bytes = bytes_max(job->peak_bytes, job->live_bytes);
}

static int compare_seen(const void *name, const void *seen)
{
    return strcmp(name, *(char *const *)seen);
}

static bool is_seen(const struct seen *seen, const char *name)
{
    return seen->count > 0 && bsearch(name, seen->names, seen->count, sizeof *seen->names, compare_seen) != NULL;
}

/* Returns whether a copy in the history belongs to a process that still runs. Such a process is shown with the
 * directory of its live segment, not with its history. */
static bool is_still_there(const struct model_segment *segment, const struct model_process *process)
{
    return segment->content->slot.state == SG_STATE_RUNNING && process->state != SG_STATE_KILLED;
}

static void read_live(struct model *model, struct model_segment *segment, int directory, const char *path,
                      const char *name, struct seen *seen)
{
    char why[MODEL_WHY_CAPACITY];
    enum model_verdict verdict = model_segment_read(segment, directory, name, why);
    if (verdict == MODEL_GOOD) {
        add_process(model, model_process_from(segment), path, path, name);
        seen->names[seen->count++] = text_copy(name, strlen(name));
    } else if (verdict == MODEL_BAD) {
        add_complaint(model, path, name, why);
        model->veiled_count += segment->has_owner;
    }
}

static void read_past(struct model *model, struct model_segment *segment, int directory, const char *name)
{
    char why[MODEL_WHY_CAPACITY];
    enum model_verdict verdict = model_segment_read(segment, directory, name, why);
    if (verdict == MODEL_BAD)
        add_complaint(model, model->history, name, why);
    if (verdict != MODEL_GOOD)
        return;
    struct model_process *process = model_process_from(segment);
    if (!is_still_there(segment, process))
        add_process(model, process, model->directories[0].path, model->history, name);
}

/* Returns why a file cannot be a registry of any version; NULL if it may be one, or is absent. */
static const char *ledger_fault(int directory)
{
    struct stat status;
    uint64_t magic = 0;
    if (fstatat(directory, SG_REGISTRY_NAME, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return NULL;
    if (!S_ISREG(status.st_mode))
        return "not a regular file";
    int file = openat(directory, SG_REGISTRY_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return NULL; /* another user's file may be unreadable */
    ssize_t length = pread(file, &magic, sizeof magic, 0);
    close(file);
    return length == (ssize_t)sizeof magic && (magic == SG_REGISTRY_MAGIC || magic == SG_REGISTRY_LINK_MAGIC)
               ? NULL
               : "not a ledger of the machine";
}

static void check_ledger(struct model *model, int directory, const char *path)
{
    const char *why = ledger_fault(directory);
    if (why == NULL)
        return;
    add_complaint(model, path, SG_REGISTRY_NAME, why);
    model->veiled_count++; /* no process can be counted in such a registry */
}

/* Whose segments are counted: a user's, or those of one directory. */
struct model_owner {
    uint64_t user, device, directory;
};

/* Segments read in directories that may be strangers'. */
struct model_found {
    struct model_owner owner;
    unsigned count;
    UT_hash_handle hh;
};

/* Returns whether another segment of this file's owner is read from a directory that may be a stranger's. Counts it.
 * The root of a container has the host's number: such a directory counts as an owner by itself. */
static bool may_read_found(struct model *model, int directory, const char *name, const struct model_directory *from)
{
    struct stat status;
    struct model_found *found;
    bool is_container = from->origin == MODEL_CONTAINER;
    if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0 || (status.st_uid == 0 && !is_container))
        return true; /* what is wrong with it is said where it is read */
    struct model_owner owner;
    memset(&owner, 0, sizeof owner); /* a key is compared with its padding */
    owner.user = is_container ? 0 : status.st_uid;
    owner.directory = is_container ? from->inode : 0;
    owner.device = is_container ? from->device : 0;
    HASH_FIND(hh, model->found, &owner, sizeof owner, found);
    if (model->found_count >= FOUND_STRANGE_MAX || (found != NULL && found->count >= FOUND_OF_OWNER_MAX))
        return false;
    if (found == NULL) {
        found = tool_allocate(1, sizeof *found);
        found->owner = owner;
        HASH_ADD(hh, model->found, owner, sizeof found->owner, found);
    }
    found->count++;
    model->found_count++;
    return true;
}

/* Reads all segments of a directory; NULL: of the history. Returns 0, or the errno of opening it. */
static int read_directory(struct model *model, struct model_segment *segment, const struct model_directory *from,
                          struct seen *seen)
{
    bool is_history = from == NULL, is_found = !is_history && model_directory_is_found(from);
    const char *path = is_history ? model->history : from->path;
    char **names = NULL;
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (is_found ? O_NOFOLLOW : 0));
    long count = directory < 0 ? -errno : model_segment_names(directory, &names);
    if (count < 0) {
        if (directory >= 0)
            close(directory);
        return (int)-count;
    }
    if (!is_history)
        seen->names = tool_allocate((size_t)count + 1, sizeof *seen->names);
    long read_count = 0, left_out = -1;
    size_t complaints = model->complaint_count;
    for (long i = 0; names != NULL && i < count; i++) {
        bool is_left = is_found && (read_count >= FOUND_MAX || !may_read_found(model, directory, names[i], from));
        if (is_left && left_out < 0)
            left_out = i;
        if (is_left)
            continue;
        read_count++;
        model->is_terse = is_found && model->complaint_count - complaints >= FOUND_COMPLAINTS_MAX;
        if (!is_history)
            read_live(model, segment, directory, path, names[i], seen);
        else if (!is_seen(seen, names[i]))
            read_past(model, segment, directory, names[i]);
    }
    model->is_terse = false;
    if (left_out >= 0)
        add_complaint(model, path, names[left_out], "is not read, nor are others of its owner: there are too many");
    if (!is_history) {
        check_ledger(model, directory, path);
        model_machine_observe(model, directory, from);
    }
    close(directory);
    return 0;
}

/* Returns whether another user has created the reader's default directory in /dev/shm. Its files cannot be trusted. */
static bool is_squatted(const struct model_directory *directory)
{
    const char *named = getenv("SPARKGUARD_DIR");
    struct stat info;
    bool is_by_default = directory->origin == MODEL_DEFAULT && (named == NULL || named[0] == '\0');
    return is_by_default && lstat(directory->path, &info) == 0 &&
           ((info.st_uid != geteuid() && info.st_uid != 0) || S_ISLNK(info.st_mode));
}

static int read_found(struct model *model, struct model_segment *segment, const struct model_directory *directory,
                      struct seen *seen)
{
    if (!is_squatted(directory))
        return read_directory(model, segment, directory, seen);
    add_complaint(model, directory->path, "", "it belongs to another user, so it is not trusted");
    return EPERM;
}

static void read_all(struct model *model)
{
    struct model_segment segment;
    host_pids_forget();
    model_segment_begin(&segment);
    for (size_t i = 0; i < model->directory_count; i++) {
        struct model_directory *directory = &model->directories[i];
        struct seen seen = {0};
        size_t complaints = model->complaint_count;
        directory->error = read_found(model, &segment, directory, &seen);
        if (model->history != NULL && i == 0)
            model->history_error = read_directory(model, &segment, NULL, &seen);
        directory->complaint_count = model->complaint_count - complaints;
        HASH_CLEAR(hh, model->by_key);
        HASH_CLEAR(hh_name, model->by_name);
    }
    HASH_CLEAR(hh, model->found);
}

uint64_t model_own_job(const char *name, bool is_new)
{
    const char *first = is_new ? NULL : getenv(SG_VARIABLE_FIRST);
    char *pid = first != NULL ? text_copy(first, strcspn(first, " ")) : text_copy("self", SIZE_MAX);
    char *path = text_format("/proc/%s/status", pid), text[512];
    bool is_roots =
        first != NULL && procfs_read_text(path, text, sizeof text) > 0 && procfs_number_after(text, "\nUid:") == 0;
    return name[0] != '\0' ? sg_job_hash(name, is_roots ? 0 : getuid()) : 0;
}

char *model_job_user(const struct model_job *job)
{
    return job->has_namesake && job->processes != NULL ? host_user_name(job->processes->user) : NULL;
}

struct model *model_build(const struct model_scope *scope)
{
    struct model *model = tool_allocate(1, sizeof *model);
    model->joins = scope->joins;
    model_directories_fill(model, scope);
    model->history = scope->wants_history ? model_history_directory() : NULL;
    read_all(model);
    struct model_job *job;
    DL_FOREACH (model->jobs, job) {
        DL_SORT(job->processes, compare_processes);
        model_runs_fill(job);
        sum_job(job, model);
    }
    DL_SORT(model->jobs, compare_jobs);
    model_other_directories_fill(model);
    model_machine_fill(model);
    model_places_fill(model);
    if (scope->wants_unguarded) {
        model_claims_name_rest(&model->claims);
        model_unguarded_fill(model, scope->wants_devices);
    }
    model_select(model, scope);
    if (scope->wants_verdicts)
        model_verdicts_fill(model); /* before processes are removed: a verdict is about the whole run */
    model_select_process(model, scope);
    model_parents_fill(model);
    return model;
}
