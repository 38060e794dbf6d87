/*
 * segment_reader.c - see segment_reader.h.
 */
#include "model/segment_reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/directory.h"
#include "base/options.h"
#include "common/procfs.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

/* Upper bounds of plausible figures. No machine has 64 PiB of memory, and no thread has 256 TiB of credit. Values with
 * the top bit set are counters that went below zero; model/process.c reads them as zero. */
#define BYTES_LIMIT (UINT64_C(1) << 56)
#define CREDIT_LIMIT (INT64_C(1) << 48)
#define FILE_CAPACITY ((SG_SEGMENT_BYTES(SG_RECORD_LIMIT) + 65535) & ~(size_t)65535) /* writers fill whole pages */

/* Readings of one file at most, until two copies agree. A running process may write all the time. */
enum { READS = 4 };

/* Names of one directory: its owner may have made a million. */
enum { NAMES_MAX = 65536 };

/* Number of waits of 5 ms, for all files together. */
enum { WAITS_MAX = 64 };

void model_segment_begin(struct model_segment *segment)
{
    *segment = (struct model_segment){.content = tool_allocate(1, 2 * (FILE_CAPACITY + 1))};
}

bool model_is_segment_name(const char *name)
{
    size_t length = strlen(name), suffix = strlen(SG_SEGMENT_SUFFIX);
    return name[0] != '.' && length > suffix && strcmp(name + length - suffix, SG_SEGMENT_SUFFIX) == 0;
}

char *model_default_directory(void)
{
    const char *directory = getenv("SPARKGUARD_DIR");
    if (directory != NULL && directory[0] != '\0')
        return text_copy(directory, strlen(directory));
    if (procfs_live_root[0] != '\0') /* a copy of a machine: nobody logs in there */
        return text_format("%s" SG_DEFAULT_DIR "%u", procfs_live_root, (unsigned)geteuid());
    char path[SG_PATH_CAPACITY];
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    (void)sg_directory_default(path, runtime != NULL && runtime[0] == '/' ? runtime : NULL);
    return text_copy(path, sizeof path);
}

static bool is_set(const char *text)
{
    return text != NULL && text[0] != '\0';
}

char *model_history_directory(void)
{
    const char *history = getenv("SPARKGUARD_HISTORY"), *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (is_set(history))
        return strcmp(history, "off") == 0 ? NULL : text_copy(history, strlen(history));
    if (is_set(state) && state[0] == '/')
        return text_format("%s/sparkguard", state);
    return is_set(home) ? text_format("%s/.local/state/sparkguard", home) : NULL;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

long model_segment_names(int directory, char ***names)
{
    int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (stream == NULL)
        return -errno;
    size_t count = 0;
    char **list = tool_allocate(1, sizeof *list);
    const struct dirent *entry;
    while (count < NAMES_MAX && (entry = readdir(stream)) != NULL) {
        if (!model_is_segment_name(entry->d_name))
            continue;
        list = tool_grow(list, count, sizeof *list);
        list[count++] = text_copy(entry->d_name, sizeof entry->d_name);
    }
    closedir(stream);
    qsort(list, count, sizeof *list, compare_names);
    *names = list;
    return (long)count;
}

bool model_is_locked(int fd)
{
    if (flock(fd, LOCK_SH | LOCK_NB) != 0)
        return errno == EWOULDBLOCK;
    flock(fd, LOCK_UN);
    return false;
}

/* Reads a whole file, but at most capacity + 1 bytes: a result above `capacity` shows that the file is too long.
 * Returns the length, or -errno. */
static ssize_t read_whole(int fd, char *bytes, size_t capacity)
{
    size_t length = 0;
    while (length <= capacity) {
        ssize_t got = pread(fd, bytes + length, capacity + 1 - length, (off_t)length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        length += (size_t)got;
    }
    return (ssize_t)length;
}

/* Formats the reason of a rejection. Returns false, so that a check can return the result. */
__attribute__((format(printf, 2, 3))) static bool blame(char why[MODEL_WHY_CAPACITY], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, MODEL_WHY_CAPACITY, format, arguments);
    va_end(arguments);
    return false;
}

static bool check_size(const struct sg_segment *content, size_t bytes, char why[MODEL_WHY_CAPACITY])
{
    if (bytes > FILE_CAPACITY)
        return blame(why, "longer than any segment can be (%zu bytes)", (size_t)FILE_CAPACITY);
    if (bytes < sizeof content->slot)
        return blame(why, "too short for a segment (%zu bytes)", bytes);
    if (content->slot.magic == 0)
        return blame(why, "incomplete: its process ended while setting it up");
    if (content->slot.magic != SG_ABI_MAGIC)
        return blame(why, "not a segment (wrong magic number)");
    if (content->slot.abi_version != SG_ABI_VERSION)
        return blame(why,
                     "written by ABI version %" PRIu32 ", this tool reads version %u; use the report of that version",
                     content->slot.abi_version, SG_ABI_VERSION);
    if (bytes < sizeof *content)
        return blame(why, "cut short (%zu of at least %zu bytes)", bytes, sizeof *content);
    if (content->segment_bytes < sizeof *content || content->segment_bytes > bytes)
        return blame(why, "says it has %" PRIu64 " bytes, has %zu", content->segment_bytes, bytes);
    if (content->record_capacity > SG_RECORD_LIMIT || SG_SEGMENT_BYTES(content->record_capacity) > bytes)
        return blame(why, "says it has room for %" PRIu32 " records, has room for %zu", content->record_capacity,
                     (bytes - sizeof *content) / sizeof content->record[0]);
    if (content->record_used > SG_RECORD_LIMIT)
        return blame(why, "says %" PRIu32 " records are used, of at most %d", content->record_used, SG_RECORD_LIMIT);
    return true;
}

static bool is_absurd(uint64_t bytes)
{
    return bytes >= BYTES_LIMIT && bytes <= INT64_MAX;
}

static bool check_slot(const struct sg_slot *slot, char why[MODEL_WHY_CAPACITY])
{
    if (slot->pid == 0 || slot->pid > INT32_MAX)
        return blame(why, "no process has the pid %" PRIu32, slot->pid);
    if (slot->state < SG_STATE_RUNNING || slot->state > SG_STATE_KILLED)
        return blame(why, "no process is in state %" PRIu32, slot->state);
    if (is_absurd(slot->promised_bytes) || is_absurd(slot->in_flight_bytes) || is_absurd(slot->inherited_bytes) ||
        is_absurd(slot->inherited_promise_bytes))
        return blame(why, "absurd figures: %" PRIu64 " bytes promised, %" PRIu64 " in flight, %" PRIu64 " inherited",
                     slot->promised_bytes, slot->in_flight_bytes, slot->inherited_bytes);
    return true;
}

static uint32_t usable_records(const struct sg_segment *content)
{
    return content->record_used < content->record_capacity ? content->record_used : content->record_capacity;
}

static bool check_sites(const struct sg_segment *content, char why[MODEL_WHY_CAPACITY])
{
    for (int i = 0; i < SG_CALLSITE_CLASSES * SG_CALLSITE_CAPACITY; i++) {
        const struct sg_callsite *site = &content->site[i / SG_CALLSITE_CAPACITY][i % SG_CALLSITE_CAPACITY];
        if (is_absurd(site->live_bytes) || is_absurd(site->peak_bytes) || (site->key & 7) >= SG_DOMAIN_COUNT)
            return blame(why, "absurd call site %d: %" PRIu64 " bytes live, domain %" PRIu64, i, site->live_bytes,
                         site->key & 7);
    }
    return true;
}

static bool check_bytes(const struct sg_segment *content, char why[MODEL_WHY_CAPACITY])
{
    if (content->peak_index > 1)
        return blame(why, "there is no peak number %" PRIu32, content->peak_index);
    const struct sg_peak *peak = &content->peak[content->peak_index];
    if (is_absurd(content->peak_seen_bytes) || is_absurd(peak->total_bytes))
        return blame(why, "absurd peak of %" PRIu64 " bytes", bytes_max(content->peak_seen_bytes, peak->total_bytes));
    uint64_t job_peak_bytes = bytes_max(content->job_peak_bytes, content->limit_peak_bytes);
    if (is_absurd(job_peak_bytes))
        return blame(why, "absurd peak of the job: %" PRIu64 " bytes", job_peak_bytes);
    if (is_absurd(content->unaccounted_bytes))
        return blame(why, "absurd figure: %" PRIu64 " bytes unaccounted", content->unaccounted_bytes);
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        const struct sg_domain_counters *domain = &content->domain[i];
        if (is_absurd(domain->granted_bytes) || is_absurd(domain->peak_bytes) || is_absurd(peak->domain_bytes[i]))
            return blame(why, "absurd figures in domain %d: %" PRIu64 " bytes live, peak %" PRIu64, i,
                         domain->granted_bytes, domain->peak_bytes);
    }
    for (uint32_t i = 0; i < usable_records(content); i++) {
        int64_t credit = content->record[i].credit_bytes;
        if (credit > CREDIT_LIMIT || credit < -CREDIT_LIMIT)
            return blame(why, "absurd credit of %" PRId64 " bytes in record %" PRIu32, credit, i);
    }
    return true;
}

static bool check_rings(const struct sg_segment *content, char why[MODEL_WHY_CAPACITY])
{
    for (unsigned i = 0; i < SG_REFUSAL_CAPACITY; i++) {
        const struct sg_refusal *refusal = &content->refusal[i];
        if (refusal->sequence == 0)
            continue;
        if ((refusal->sequence - 1) % SG_REFUSAL_CAPACITY != i)
            return blame(why, "refusal %" PRIu64 " is at place %u", refusal->sequence, i);
        if (refusal->domain >= SG_DOMAIN_COUNT || refusal->reason < SG_REASON_RESERVE ||
            refusal->reason > SG_REASON_DEVICE)
            return blame(why, "refusal %" PRIu64 " has domain %u and reason %u", refusal->sequence,
                         (unsigned)refusal->domain, (unsigned)refusal->reason);
    }
    for (unsigned i = 0; i < SG_PHASE_CAPACITY; i++)
        if (content->phase[i].sequence != 0 && (content->phase[i].sequence - 1) % SG_PHASE_CAPACITY != i)
            return blame(why, "phase %" PRIu64 " is at place %u", content->phase[i].sequence, i);
    for (unsigned i = 0; i < SG_EVENT_CAPACITY; i++)
        if (content->event[i].sequence != 0 && (content->event[i].sequence - 1) % SG_EVENT_CAPACITY != i)
            return blame(why, "event %" PRIu64 " is at place %u", content->event[i].sequence, i);
    return true;
}

static bool check(const struct sg_segment *content, size_t bytes, char why[MODEL_WHY_CAPACITY])
{
    return check_size(content, bytes, why) && check_slot(&content->slot, why) && check_bytes(content, why) &&
           check_sites(content, why) && check_rings(content, why);
}

/* Reads a file until its content is valid and, while it has an owner that may write, two copies agree. The lock is
 * tested before reading: without an owner the content is then final. A file without owner and magic is read again,
 * because its owner may be about to lock it. */
static enum model_verdict read_settled(struct model_segment *segment, int fd, char why[MODEL_WHY_CAPACITY])
{
    char *bytes = (char *)segment->content, *before = bytes + FILE_CAPACITY + 1;
    ssize_t length_before = -1;
    bool is_good = false;
    for (int reads = 0; reads < READS; reads++) {
        segment->has_owner = model_is_locked(fd);
        ssize_t length = read_whole(fd, bytes, FILE_CAPACITY);
        if (length < 0) {
            blame(why, "cannot be read: %s", strerror((int)-length));
            return MODEL_BAD;
        }
        is_good = check(segment->content, (size_t)length, why);
        bool is_set_up = (size_t)length >= sizeof segment->content->slot && segment->content->slot.magic != 0;
        if (!is_set_up) {
            if (reads == READS - 1 || segment->waited == WAITS_MAX)
                return segment->has_owner ? MODEL_GONE : MODEL_BAD;
            segment->waited++;
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        } else if (!segment->has_owner) {
            break;
        } else if (is_good && length == length_before && memcmp(bytes, before, (size_t)length) == 0) {
            break;
        }
        memcpy(before, bytes, (size_t)length);
        length_before = length;
    }
    segment->record_count = is_good ? usable_records(segment->content) : 0;
    return is_good ? MODEL_GOOD : MODEL_BAD;
}

enum model_verdict model_segment_read(struct model_segment *segment, int directory, const char *name,
                                      char why[MODEL_WHY_CAPACITY])
{
    struct stat status;
    segment->name = name;
    segment->has_owner = false;
    if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
        bool is_gone = errno == ENOENT;
        blame(why, "cannot be read: %s", strerror(errno));
        return is_gone ? MODEL_GONE : MODEL_BAD;
    }
    if (!S_ISREG(status.st_mode)) { /* test before open(2), which has side effects on a device */
        blame(why, "not a regular file");
        return MODEL_BAD;
    }
    if (status.st_nlink > 1) { /* a thousand names cost their maker nothing */
        blame(why, "it has several names, as no guarded program makes one");
        return MODEL_BAD;
    }
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        bool is_gone = errno == ENOENT;
        blame(why, "cannot be opened: %s", strerror(errno));
        segment->has_owner = !is_gone;
        return is_gone ? MODEL_GONE : MODEL_BAD;
    }
    enum model_verdict verdict = MODEL_BAD;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
        blame(why, "not a regular file");
    else
        verdict = read_settled(segment, fd, why);
    segment->owner = status.st_uid;
    segment->device = status.st_dev;
    segment->inode = status.st_ino;
    segment->modified_ns = status.st_mtim.tv_sec * INT64_C(1000000000) + status.st_mtim.tv_nsec;
    close(fd);
    return verdict;
}
