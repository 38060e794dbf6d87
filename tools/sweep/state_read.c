/*
 * state_read.c - reads the record of a sweep and checks all of it. If it is another file, another sweep's record,
 * incomplete or has absurd figures, one sentence says so, and nothing of it is used.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sweep/sweep.h"
#include "common/text.h"
#include "common/tool.h"

/* Limits: a file of 4096 runs with notes of a few hundred bytes, and sizes below 64 PiB. */
#define FILE_LIMIT ((off_t)4 << 20)
#define BYTES_LIMIT (UINT64_C(1) << 56)
#define TIME_LIMIT (INT64_MAX / 2)

enum { HEAD_LINES = 6 };

struct reader {
    struct sweep *sweep;
    const char *boot;
    bool is_same_boot;
    char *why;
    size_t line, runs;
};

__attribute__((format(printf, 2, 3))) static bool blame(struct reader *reader, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reader->why, SWEEP_WHY_CAPACITY, format, arguments);
    va_end(arguments);
    return false;
}

/* Parses a whole number or "-", and the blank after it. Returns NULL if it is neither, or too large. */
static char *take_number(char *text, uint64_t most, uint64_t *number)
{
    char *end;
    if (text == NULL)
        return NULL;
    if (text[0] == '-' && (text[1] == ' ' || text[1] == '\0')) {
        *number = SG_UNKNOWN;
        return text + 1 + (text[1] == ' ');
    }
    if (text[0] < '0' || text[0] > '9')
        return NULL;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return errno == 0 && *number < most && (*end == ' ' || *end == '\0') ? end + (*end == ' ') : NULL;
}

/* The same for a number that may be -1. */
static char *take_signed(char *text, int64_t most, int64_t *number)
{
    uint64_t value = 0;
    if (text != NULL && strncmp(text, "-1 ", 3) == 0) {
        *number = -1;
        return text + 3;
    }
    text = take_number(text, (uint64_t)most, &value);
    *number = (int64_t)value;
    return value == SG_UNKNOWN ? NULL : text;
}

/* Judges a run that was active when the sweep ended: if the machine has booted since, the machine went down during the
 * run. */
static void judge(const struct reader *reader, struct sweep_run *run)
{
    if (run->status != SWEEP_UNDER_WAY)
        return;
    run->status = reader->is_same_boot ? SWEEP_INTERRUPTED : SWEEP_LOST;
    sweep_set_note(run, text_copy(reader->is_same_boot ? "the sweep was killed" : "the machine went down", 64));
}

static bool read_run(struct reader *reader, char *text)
{
    uint64_t index = 0, status = 0, attempts = 0;
    int64_t exit_code = -1, signal = 0;
    struct sweep *sweep = reader->sweep;
    text = take_number(text, sweep->run_count, &index);
    if (text == NULL || index == SG_UNKNOWN)
        return blame(reader, "line %zu: there is no such run", reader->line);
    struct sweep_run *run = &sweep->run[index];
    if (run->status != SWEEP_PENDING)
        return blame(reader, "line %zu: run %zu is there twice", reader->line, (size_t)index);
    text = take_number(text, SWEEP_STATUS_COUNT, &status);
    text = take_number(text, UINT32_MAX, &attempts);
    text = take_number(text, BYTES_LIMIT, &run->peak_bytes);
    text = take_number(text, BYTES_LIMIT, &run->needed_bytes);
    text = take_number(text, BYTES_LIMIT, &run->headroom_bytes);
    text = take_number(text, BYTES_LIMIT, &run->room_bytes);
    text = take_number(text, BYTES_LIMIT, &run->predicted_bytes);
    text = take_number(text, INT64_MAX, &run->refused_count);
    text = take_signed(text, TIME_LIMIT, &run->started_ns);
    text = take_signed(text, TIME_LIMIT, &run->duration_ns);
    text = take_signed(text, 256, &exit_code);
    text = take_signed(text, 65, &signal);
    if (text == NULL || status == SWEEP_PENDING || status == SG_UNKNOWN || attempts == SG_UNKNOWN ||
        run->refused_count == SG_UNKNOWN || signal < 0)
        return blame(reader, "line %zu: absurd figures", reader->line);
    run->status = (enum sweep_status)status;
    run->attempts = (unsigned)attempts;
    run->exit_code = (int)exit_code;
    run->signal = (int)signal;
    sweep_set_note(run, text_copy(text, 400));
    judge(reader, run);
    reader->runs++;
    return true;
}

/* Parses the lines before the runs, in their fixed order. */
static bool read_head(struct reader *reader, char *line)
{
    static const char *const keys[HEAD_LINES] = {"sparkguard-sweep ", "identity ", "boot ", "begun ",
                                                 "complete ",         "machine "};
    struct sweep *sweep = reader->sweep;
    const char *key = keys[(reader->line - 1) % HEAD_LINES];
    char *text = line + strlen(key);
    uint64_t complete = 0;
    if (strncmp(line, key, strlen(key)) != 0)
        return blame(reader, reader->line == 1 ? "is not the record of a sweep" : "line %zu: is not in its place",
                     reader->line);
    switch (reader->line) {
    case 1:
        return strcmp(text, "1") == 0 || blame(reader, "is of another version of sparkguard-sweep");
    case 2:
        return strcmp(text, sweep->identity) == 0 || blame(reader, "is the record of another sweep");
    case 3:
        reader->is_same_boot = text[0] != '\0' && strcmp(text, reader->boot) == 0;
        return true;
    case 4:
        return take_signed(text, TIME_LIMIT, &sweep->begun_ns) != NULL || blame(reader, "line 4: absurd time");
    case 5:
        if (take_number(text, 2, &complete) == NULL || complete == SG_UNKNOWN)
            return blame(reader, "line 5: neither complete nor not");
        sweep->is_complete = complete == 1;
        return true;
    default:
        return take_number(take_number(text, BYTES_LIMIT, &sweep->total_bytes), BYTES_LIMIT, &sweep->reserve_bytes) !=
                   NULL ||
               blame(reader, "line 6: absurd figures");
    }
}

/* Cuts the text to lines and parses them. The last line must be "end" with the number of runs. */
static bool read_lines(struct reader *reader, char *text)
{
    char *line;
    uint64_t count;
    bool has_ended = false;
    while ((line = strsep(&text, "\n")) != NULL && (text != NULL || line[0] != '\0')) {
        reader->line++;
        if (has_ended || text == NULL)
            return blame(reader, "line %zu: more than a record holds", reader->line);
        if (reader->line <= HEAD_LINES) {
            if (!read_head(reader, line))
                return false;
        } else if (strncmp(line, "run ", 4) == 0) {
            if (!read_run(reader, line + 4))
                return false;
        } else if (strncmp(line, "end ", 4) == 0) {
            has_ended = take_number(line + 4, SWEEP_CONFIGURATIONS + 1, &count) != NULL && count == reader->runs;
            if (!has_ended)
                return blame(reader, "line %zu: runs are missing", reader->line);
        } else {
            return blame(reader, "line %zu: not a line of a record", reader->line);
        }
    }
    return has_ended || blame(reader, "is incomplete");
}

static bool read_file(struct reader *reader, int fd)
{
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
        return blame(reader, "not a regular file");
    if (status.st_uid != geteuid())
        return blame(reader, "belongs to another user");
    if (status.st_size > FILE_LIMIT)
        return blame(reader, "is larger than any record");
    char *text = tool_allocate((size_t)status.st_size + 1, 1);
    ssize_t length = read(fd, text, (size_t)status.st_size);
    bool is_good = length >= 0 ? strlen(text) == (size_t)length || blame(reader, "is not text")
                               : blame(reader, "cannot be read: %s", strerror(errno));
    is_good = is_good && read_lines(reader, text);
    free(text);
    return is_good;
}

int sweep_state_read(struct sweep *sweep, const char *path, const char *boot, char why[SWEEP_WHY_CAPACITY])
{
    struct reader reader = {.sweep = sweep, .boot = boot, .why = why};
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return -ENOENT;
    if (fd < 0) {
        blame(&reader, "cannot be opened: %s", strerror(errno));
        return -EINVAL;
    }
    bool is_good = read_file(&reader, fd);
    close(fd);
    return is_good ? 0 : -EINVAL;
}
