/*
 * state.c - keeps the record of a sweep on disk, where it survives the sweep and a power cut.
 *
 * The record is a JSON file that is replaced as a whole: a new file is written and synced, renamed, and the folder is
 * synced. So the record is always complete and at most one run old. A lock on a second file excludes another sweep of
 * the same command.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json.h"
#include "common/procfs.h"
#include "sweep/sweep.h"
#include "common/text.h"
#include "common/tool.h"

void sweep_boot_id(char boot[64])
{
    if (procfs_read_text("/proc/sys/kernel/random/boot_id", boot, 64) < 0)
        boot[0] = '\0';
    boot[strcspn(boot, " \n")] = '\0';
}

static void make_folders(char *path)
{
    for (char *slash = path + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
}

static void find_path(struct sweep *sweep)
{
    if (sweep->state_file != NULL) {
        sweep->state = text_copy(sweep->state_file, SIZE_MAX);
        return;
    }
    char *folder = model_history_directory();
    if (folder == NULL)
        return;
    sweep->state = text_format("%s/sweep-%016" PRIx64, folder, sg_hash_text(sweep->identity));
    if (!sweep->is_dry)
        make_folders(sweep->state);
}

static bool lock(struct sweep *sweep)
{
    char *path = text_format("%s.lock", sweep->state);
    sweep->lock_fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    int failure = sweep->lock_fd < 0 || flock(sweep->lock_fd, LOCK_EX | LOCK_NB) != 0 ? errno : 0;
    if (failure == EWOULDBLOCK)
        fprintf(stderr, "sparkguard-sweep: another sparkguard-sweep runs this command (its record is %s)\n",
                sweep->state);
    else if (failure != 0)
        fprintf(stderr, "sparkguard-sweep: %s: %s; give another path with --state=FILE\n", path, strerror(failure));
    return failure == 0;
}

void sweep_state_forget(struct sweep *sweep)
{
    sweep_refine_forget(sweep);
    for (size_t i = 0; i < sweep->run_count; i++) {
        struct sweep_run *run = &sweep->run[i], old = *run;
        *run = sweep_new_run();
        memcpy(run->place, old.place, sizeof old.place);
    }
    sweep->is_complete = false;
    sweep->begun_ns = sweep->session_ns;
}

/* Marks runs as pending again: interrupted runs, runs that were not started and may fit now, and with --retry all that
 * did not end well. */
static void reopen(struct sweep *sweep)
{
    for (size_t i = 0; i < sweep->run_count; i++) {
        struct sweep_run *run = &sweep->run[i];
        bool is_unstarted = run->status == SWEEP_TOO_LARGE || run->status == SWEEP_SKIPPED;
        if (is_unstarted || (sweep->wants_retry && run->status != SWEEP_OK)) {
            run->status = SWEEP_PENDING;
            run->note[0] = '\0';
        }
    }
    sweep->is_complete = false;
}

static void say_cut_short(const struct sweep *sweep, const struct sweep_run *run)
{
    if (sweep->is_dry || (run->status != SWEEP_INTERRUPTED && run->status != SWEEP_LOST))
        return;
    bool is_again = run->status == SWEEP_INTERRUPTED || sweep->wants_retry;
    fprintf(stderr, "sparkguard-sweep: %s was under way when %s; %s\n", sweep_run_text(sweep, run),
            run->status == SWEEP_LOST ? "the machine went down" : "the sweep ended",
            is_again ? "it is run again" : "it is not run again without --retry");
}

/* Removes the log of earlier sweeps of the command. */
static void drop_log(const struct sweep *sweep)
{
    if (!sweep->is_dry)
        (void)unlink(text_format("%s.log", sweep->state));
}

/* Continues a record, or discards it. */
static void continue_record(struct sweep *sweep)
{
    size_t measured = 0;
    for (size_t i = 0; i < sweep->run_count; i++)
        measured += sweep->run[i].status >= SWEEP_OK && sweep->run[i].status <= SWEEP_TIMED_OUT;
    if (sweep->is_complete && !sweep->wants_resume && !sweep->wants_retry && !sweep->wants_refinement) {
        if (!sweep->is_dry)
            fputs("sparkguard-sweep: measuring again; --resume shows the earlier measurements instead\n", stderr);
        sweep_state_forget(sweep);
        drop_log(sweep);
    } else if (sweep->is_complete && !sweep->wants_retry) {
        if (!sweep->is_dry && sweep->wants_refinement)
            fprintf(stderr, "sparkguard-sweep: going on with the measurements of %s; --fresh measures all again\n",
                    text_time_local(sweep->begun_ns));
    } else {
        if (!sweep->is_dry)
            fprintf(stderr, "sparkguard-sweep: continuing the sweep of %s: %zu of %zu measured\n",
                    text_time_local(sweep->begun_ns), measured, sweep->run_count);
        for (size_t i = 0; i < sweep->run_count; i++)
            say_cut_short(sweep, &sweep->run[i]);
        reopen(sweep);
    }
}

int sweep_state_open(struct sweep *sweep)
{
    char boot[64], why[SWEEP_WHY_CAPACITY] = "";
    sweep->session_ns = sweep->begun_ns = tool_now_ns();
    find_path(sweep);
    if (sweep->state == NULL && sweep->wants_resume) {
        fputs("sparkguard-sweep: no record is kept (SPARKGUARD_HISTORY=off), so there is nothing to resume\n", stderr);
        return SWEEP_NOTHING_FITS;
    }
    if (sweep->state == NULL)
        return 0;
    if (!sweep->is_dry && !lock(sweep))
        return SWEEP_UNTRUSTED;
    sweep_boot_id(boot);
    int result = sweep->is_fresh ? -ENOENT : sweep_state_read(sweep, sweep->state, boot, why);
    if (result == 0) {
        continue_record(sweep);
        return 0;
    }
    if (result == -ENOENT && sweep->wants_resume) {
        fprintf(stderr, "sparkguard-sweep: nothing to resume: %s does not exist\n", sweep->state);
        return SWEEP_NOTHING_FITS;
    }
    if (result == -ENOENT) {
        drop_log(sweep);
        return 0;
    }
    fprintf(stderr, "sparkguard-sweep: %s: %s; --fresh starts a new one\n", sweep->state, why);
    return SWEEP_UNTRUSTED;
}

/* An unknown time or status is -1, which is SG_UNKNOWN as an unsigned number: null. */
static json_t *state_of_run(const struct sweep_run *run, size_t index)
{
    json_t *object = json_object();
    json_object_set_new(object, "run", json_of_number(index));
    json_object_set_new(object, "status", json_of_text(sweep_status_name[run->status]));
    json_object_set_new(object, "attempts", json_of_number(run->attempts));
    json_object_set_new(object, "peak_bytes", json_of_number(run->peak_bytes));
    json_object_set_new(object, "needed_bytes", json_of_number(run->needed_bytes));
    json_object_set_new(object, "headroom_bytes", json_of_number(run->headroom_bytes));
    json_object_set_new(object, "room_bytes", json_of_number(run->start_headroom_bytes));
    json_object_set_new(object, "predicted_bytes", json_of_number(run->predicted_bytes));
    json_object_set_new(object, "refused_count", json_of_number(run->refused_count));
    json_object_set_new(object, "started_ns", json_of_number((uint64_t)run->started_ns));
    json_object_set_new(object, "duration_ns", json_of_number((uint64_t)run->duration_ns));
    json_object_set_new(object, "exit_code", json_of_number((uint64_t)run->exit_code));
    json_object_set_new(object, "signal", json_integer(run->signal));
    json_object_set_new(object, "note", json_of_text(run->note));
    return object;
}

static json_t *state_of_refinements(const struct sweep *sweep)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sweep->refinement_count; i++) {
        const struct sweep_refinement *added = &sweep->refinement[i];
        json_t *object = json_object();
        json_object_set_new(object, "parameter", json_of_number(added->parameter));
        json_object_set_new(object, "behind", json_of_number(added->behind));
        json_object_set_new(object, "value", json_of_text(added->value));
        json_array_append_new(list, object);
    }
    return list;
}

static bool put_all(const struct sweep *sweep, FILE *stream)
{
    char boot[64];
    json_t *root = json_object(), *runs = json_array();
    sweep_boot_id(boot);
    json_object_set_new(root, "sparkguard-sweep", json_integer(SWEEP_STATE_VERSION));
    json_object_set_new(root, "identity", json_of_text(sweep->identity));
    json_object_set_new(root, "boot", json_of_text(boot));
    json_object_set_new(root, "begun_ns", json_of_number((uint64_t)sweep->begun_ns));
    json_object_set_new(root, "complete", json_boolean(sweep->is_complete));
    json_object_set_new(root, "total_bytes", json_of_number(sweep->total_bytes));
    json_object_set_new(root, "reserve_bytes", json_of_number(sweep->reserve_bytes));
    if (sweep->refinement_count > 0)
        json_object_set_new(root, "refinements", state_of_refinements(sweep));
    json_object_set_new(root, "runs", runs);
    for (size_t i = 0; i < sweep->run_count; i++)
        if (sweep->run[i].status != SWEEP_PENDING)
            json_array_append_new(runs, state_of_run(&sweep->run[i], i));
    json_print(root, stream);
    return fflush(stream) == 0 && ferror(stream) == 0 && fsync(fileno(stream)) == 0;
}

static bool sync_folder(const char *path)
{
    int fd = open(dirname(text_copy(path, SIZE_MAX)), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool is_synced = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL); /* some file systems do not support fsync */
    if (fd >= 0)
        close(fd);
    return is_synced;
}

bool sweep_state_write(const struct sweep *sweep)
{
    if (sweep->state == NULL)
        return true;
    size_t mark = tool_arena_mark();
    char *beside = text_format("%s.new", sweep->state);
    (void)unlink(beside); /* left by a sweep that was killed while writing; this process holds the lock */
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *stream = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool is_written = stream != NULL && put_all(sweep, stream);
    int failure = is_written ? 0 : errno;
    if (stream != NULL)
        fclose(stream);
    is_written = is_written && rename(beside, sweep->state) == 0 && sync_folder(sweep->state);
    if (!is_written) {
        fprintf(stderr, "sparkguard-sweep: cannot write the record %s: %s\n", sweep->state,
                strerror(failure != 0 ? failure : errno));
        (void)unlink(beside);
    }
    tool_arena_release(mark);
    return is_written;
}

void sweep_state_close(struct sweep *sweep)
{
    if (sweep->lock_fd >= 0)
        close(sweep->lock_fd);
}
