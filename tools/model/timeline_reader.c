/*
 * timeline_reader.c - see timeline_reader.h.
 */
#include "model/timeline_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"

#define BYTES_LIMIT (UINT64_C(1) << 56) /* as in segment_reader.c: no machine has more memory */

static enum model_verdict reject_timeline(char why[MODEL_WHY_CAPACITY], const char *text)
{
    snprintf(why, MODEL_WHY_CAPACITY, "%s", text);
    return MODEL_BAD;
}

static enum model_verdict read_samples(struct sg_timeline *line, int fd, char why[MODEL_WHY_CAPACITY])
{
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
        return reject_timeline(why, "not a regular file");
    if (status.st_size < (off_t)offsetof(struct sg_timeline, sample) || status.st_size > (off_t)sizeof *line)
        return reject_timeline(why, "a time line of another size");
    ssize_t got = pread(fd, line, sizeof *line, 0);
    if (got < status.st_size)
        return reject_timeline(why, got < 0 ? strerror(errno) : "cut short");
    if (line->magic == 0)
        return MODEL_GONE;
    if (line->magic != SG_TIMELINE_MAGIC)
        return reject_timeline(why, "not a time line (wrong magic number)");
    if (line->version != SG_TIMELINE_VERSION)
        return reject_timeline(why, "a time line of another version; use the report of that version");
    if (line->sample_count > SG_SAMPLE_CAPACITY)
        return reject_timeline(why, "says it has more samples than there is room for");
    if ((size_t)got < offsetof(struct sg_timeline, sample) + line->sample_count * sizeof line->sample[0])
        return reject_timeline(why, "cut short");
    return line->sample_count == 0 ? MODEL_GONE : MODEL_GOOD;
}

/* Keeps the leading samples on which two readings agree. A running process rewrites its last sample all the time, and
 * all samples while it merges other_directories. */
static enum model_verdict read_still(struct sg_timeline *line, int fd, char why[MODEL_WHY_CAPACITY])
{
    enum { READINGS_MAX = 32 };
    static struct sg_timeline again;
    enum model_verdict verdict = read_samples(&again, fd, why);
    uint32_t count = 1, agreed = 0;
    for (int i = 0; verdict == MODEL_GOOD && (agreed == 0 || agreed + 1 < count) && i < READINGS_MAX; i++) {
        *line = again;
        verdict = read_samples(&again, fd, why);
        count = line->sample_count < again.sample_count ? line->sample_count : again.sample_count;
        for (agreed = 0; agreed < count; agreed++)
            if (memcmp(&line->sample[agreed], &again.sample[agreed], sizeof line->sample[0]) != 0)
                break;
    }
    line->sample_count = agreed;
    return verdict;
}

static bool is_absurd(const struct sg_sample *sample)
{
    bool is_wrong = sample->time_ns < 0;
    const uint64_t of_machine[] = {sample->usable_bytes, sample->reserve_bytes, sample->floor_bytes};
    for (size_t i = 0; i < sizeof of_machine / sizeof of_machine[0]; i++)
        is_wrong = is_wrong || (of_machine[i] >= BYTES_LIMIT && of_machine[i] != SG_UNKNOWN);
    for (int i = 0; i < SG_DOMAIN_CAPACITY; i++)
        is_wrong = is_wrong || sample->live_bytes[i] >= BYTES_LIMIT;
    return is_wrong;
}

static int compare_times(const void *a, const void *b)
{
    const struct sg_sample *first = a, *second = b;
    return (first->time_ns > second->time_ns) - (first->time_ns < second->time_ns);
}

enum model_verdict model_timeline_read(struct model_timeline *timeline, const char *segment_path,
                                       char why[MODEL_WHY_CAPACITY])
{
    size_t stem = strlen(segment_path) - strlen(SG_SEGMENT_SUFFIX);
    char *path = text_format("%.*s%s", (int)stem, segment_path, SG_TIMELINE_SUFFIX);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    int error = errno;
    if (fd < 0) {
        reject_timeline(why, strerror(error));
        return error == ENOENT ? MODEL_GONE : MODEL_BAD;
    }
    static struct sg_timeline line;
    enum model_verdict verdict = read_still(&line, fd, why);
    close(fd);
    for (uint32_t i = 0; verdict == MODEL_GOOD && i < line.sample_count; i++)
        if (is_absurd(&line.sample[i]))
            verdict = reject_timeline(why, "absurd figures in the time line");
    if (verdict == MODEL_GOOD) {
        timeline->count = 0;
        timeline->samples = tool_allocate(line.sample_count + 1, sizeof *timeline->samples);
        for (uint32_t i = 0; i < line.sample_count; i++)
            if (line.sample[i].time_ns != 0) /* 0: the sample was being written */
                timeline->samples[timeline->count++] = line.sample[i];
        qsort(timeline->samples, timeline->count, sizeof *timeline->samples, compare_times);
    }
    if (verdict != MODEL_GOOD || timeline->count > 0)
        return verdict;
    timeline->samples = NULL;
    return MODEL_GONE;
}
