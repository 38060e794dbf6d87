/*
 * state_read.c - reads the record of a sweep and checks all of it. If it is another file, another sweep's record,
 * incomplete or has absurd figures, one sentence says so, and nothing of it is used.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json.h"
#include "common/text.h"
#include "common/tool.h"
#include "sweep/sweep.h"

/* Limits: a file of 4096 runs with notes of a few hundred bytes, and sizes below 64 PiB. */
#define FILE_LIMIT ((off_t)8 << 20)
#define BYTES_LIMIT (UINT64_C(1) << 56)
#define TIME_LIMIT ((uint64_t)INT64_MAX / 2)

struct reader {
    struct sweep *sweep;
    const char *boot;
    bool is_same_boot;
    bool is_absurd; /* a figure was missing, of another type or out of its range */
    char *why;
};

__attribute__((format(printf, 2, 3))) static bool reject_record(struct reader *reader, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reader->why, SWEEP_WHY_CAPACITY, format, arguments);
    va_end(arguments);
    return false;
}

/* Returns a whole number below `most`. If there is none, marks the record as absurd and returns 0. */
static uint64_t whole_number_of(struct reader *reader, const json_t *object, const char *key, uint64_t most)
{
    const json_t *value = json_object_get(object, key);
    json_int_t number = json_integer_value(value);
    if (json_is_integer(value) && number >= 0 && (uint64_t)number < most)
        return (uint64_t)number;
    reader->is_absurd = true;
    return 0;
}

/* The same for a figure that may be unknown, which is null: then returns SG_UNKNOWN, as a signed number -1. */
static uint64_t figure_of(struct reader *reader, const json_t *object, const char *key, uint64_t most)
{
    return json_is_null(json_object_get(object, key)) ? SG_UNKNOWN : whole_number_of(reader, object, key, most);
}

/* Returns a string; "" if there is none. */
static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static enum sweep_status status_of(struct reader *reader, const json_t *object)
{
    const char *name = text_of(object, "status");
    for (int status = SWEEP_PENDING + 1; status < SWEEP_STATUS_COUNT; status++)
        if (strcmp(name, sweep_status_name[status]) == 0)
            return (enum sweep_status)status;
    reader->is_absurd = true;
    return SWEEP_PENDING;
}

/* Judges a run that was active when the sweep ended: if the machine has booted since, the machine went down during the
 * run. */
static void judge_cut_short(const struct reader *reader, struct sweep_run *run)
{
    if (run->status != SWEEP_UNDER_WAY)
        return;
    run->status = reader->is_same_boot ? SWEEP_INTERRUPTED : SWEEP_LOST;
    sweep_set_note(run, text_copy(reader->is_same_boot ? "the sweep was killed" : "the machine went down", 64));
}

static bool read_run(struct reader *reader, const json_t *object, size_t place)
{
    struct sweep *sweep = reader->sweep;
    uint64_t index = whole_number_of(reader, object, "run", sweep->run_count);
    if (reader->is_absurd)
        return reject_record(reader, "run %zu of the record is none of this sweep", place);
    struct sweep_run *run = &sweep->run[index];
    if (run->status != SWEEP_PENDING)
        return reject_record(reader, "run %zu of the record is there twice", place);
    run->status = status_of(reader, object);
    run->attempts = (unsigned)whole_number_of(reader, object, "attempts", UINT32_MAX);
    run->peak_bytes = figure_of(reader, object, "peak_bytes", BYTES_LIMIT);
    run->needed_bytes = figure_of(reader, object, "needed_bytes", BYTES_LIMIT);
    run->headroom_bytes = figure_of(reader, object, "headroom_bytes", BYTES_LIMIT);
    run->start_headroom_bytes = figure_of(reader, object, "room_bytes", BYTES_LIMIT);
    run->predicted_bytes = figure_of(reader, object, "predicted_bytes", BYTES_LIMIT);
    run->refused_count = whole_number_of(reader, object, "refused_count", INT64_MAX);
    run->started_ns = (int64_t)whole_number_of(reader, object, "started_ns", TIME_LIMIT);
    run->duration_ns = (int64_t)figure_of(reader, object, "duration_ns", TIME_LIMIT);
    run->exit_code = (int)figure_of(reader, object, "exit_code", 256);
    run->signal = (int)whole_number_of(reader, object, "signal", 65);
    if (reader->is_absurd)
        return reject_record(reader, "run %zu of the record has absurd figures", place);
    sweep_set_note(run, text_copy(text_of(object, "note"), 400));
    judge_cut_short(reader, run);
    return true;
}

/* Adds the runs of --refine again, in their order, before runs are found by their indexes. */
static bool read_refinements(struct reader *reader, const json_t *list)
{
    const json_t *object;
    size_t place;
    json_array_foreach(list, place, object)
    {
        size_t parameter = whole_number_of(reader, object, "parameter", SWEEP_PARAMETERS);
        size_t behind = whole_number_of(reader, object, "behind", reader->sweep->run_count);
        if (reader->is_absurd || sweep_refine_add(reader->sweep, parameter, text_of(object, "value"), behind) == NULL)
            return reject_record(reader, "refinement %zu of the record is none of this sweep", place);
    }
    return true;
}

static bool read_record(struct reader *reader, const json_t *root)
{
    struct sweep *sweep = reader->sweep;
    const json_t *version = json_object_get(root, "sparkguard-sweep"), *runs = json_object_get(root, "runs"), *run;
    size_t place;
    if (!json_is_integer(version))
        return reject_record(reader, "is not the record of a sweep");
    if (json_integer_value(version) != SWEEP_STATE_VERSION)
        return reject_record(reader, "is of another version of sparkguard-sweep");
    if (strcmp(text_of(root, "identity"), sweep->identity) != 0)
        return reject_record(reader, "is the record of another sweep");
    const char *boot = text_of(root, "boot");
    reader->is_same_boot = boot[0] != '\0' && strcmp(boot, reader->boot) == 0;
    sweep->begun_ns = (int64_t)whole_number_of(reader, root, "begun_ns", TIME_LIMIT);
    sweep->is_complete = json_is_true(json_object_get(root, "complete"));
    sweep->total_bytes = figure_of(reader, root, "total_bytes", BYTES_LIMIT);
    sweep->reserve_bytes = figure_of(reader, root, "reserve_bytes", BYTES_LIMIT);
    if (reader->is_absurd || !json_is_boolean(json_object_get(root, "complete")) || !json_is_array(runs))
        return reject_record(reader, "has absurd figures");
    if (!read_refinements(reader, json_object_get(root, "refinements")))
        return false;
    json_array_foreach(runs, place, run) if (!read_run(reader, run, place)) return false;
    return true;
}

static bool read_text(struct reader *reader, const char *text, size_t length)
{
    json_error_t error;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL && json_error_code(&error) == json_error_premature_end_of_input)
        return reject_record(reader, "is incomplete");
    if (root == NULL)
        return reject_record(reader, "is not the record of a sweep: line %d is not JSON", error.line);
    return read_record(reader, root);
}

static bool read_state(struct reader *reader, int fd)
{
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
        return reject_record(reader, "not a regular file");
    if (status.st_uid != geteuid())
        return reject_record(reader, "belongs to another user");
    if (status.st_size > FILE_LIMIT)
        return reject_record(reader, "is larger than any record");
    char *text = tool_allocate((size_t)status.st_size + 1, 1);
    ssize_t length = read(fd, text, (size_t)status.st_size);
    return length >= 0 ? read_text(reader, text, (size_t)length)
                       : reject_record(reader, "cannot be read: %s", strerror(errno));
}

int sweep_state_read(struct sweep *sweep, const char *path, const char *boot, char why[SWEEP_WHY_CAPACITY])
{
    struct reader reader = {.sweep = sweep, .boot = boot, .why = why};
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return -ENOENT;
    if (fd < 0) {
        reject_record(&reader, "cannot be opened: %s", strerror(errno));
        return -EINVAL;
    }
    bool is_good = read_state(&reader, fd);
    close(fd);
    return is_good ? 0 : -EINVAL;
}
