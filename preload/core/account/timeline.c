/*
 * timeline.c - see timeline.h.
 *
 * A process may be killed at any instruction, and the file must be readable then:
 *   - The magic is written last, and a sample is written before sample_count includes it.
 *   - Thinning goes from the oldest sample to the youngest. In between there are too many samples, never too few.
 *     Readers sort them by time.
 *   - While a sample is written, its time is 0 and readers ignore it. The samples it is merged from are still
 *     later in the file, except for the first and the last sample.
 */
#include "account/timeline.h"

#include "base/atomics.h"
#include "account/ledger.h"
#include "base/lock.h"
#include "base/options.h"
#include "shared/segment.h"
#include "base/file.h"
#include "base/syscall.h"
#include "shared/decision_lock.h"
#include "base/directory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#define FIRST_INTERVAL_NS UINT64_C(10000000)
#define LOCK_WAIT_NS UINT64_C(100000000) /* longest wait for a lock; afterwards the step is left out */

enum { UNTRIED, BEGUN, FAILED };

static struct {
    struct sg_lock lock;
    uint32_t state;           /* (atomic) */
    struct sg_timeline *line; /* (atomic) NULL: none */
    char path[SG_PATH_CAPACITY + 64];
} timeline;

static uint64_t live_of(const struct sg_sample *sample)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < SG_DOMAIN_CAPACITY; i++)
        sum += sample->live_bytes[i];
    return sum;
}

/* Merges `later` into `earlier`, which keeps its time. Returns whether `earlier` has changed. */
static bool merge(struct sg_sample *earlier, const struct sg_sample *later)
{
    bool is_less = later->usable_bytes<earlier->usable_bytes, is_more = live_of(later)> live_of(earlier);
    if (is_less) {
        earlier->usable_bytes = later->usable_bytes;
        earlier->reserve_bytes = later->reserve_bytes;
        earlier->floor_bytes = later->floor_bytes;
    }
    if (is_more)
        memcpy(earlier->live_bytes, later->live_bytes, sizeof earlier->live_bytes);
    return is_less || is_more;
}

/* Writes a sample in place. Pairs with readers in other processes and after a kill, and with sg_timeline_copy. */
static void put(struct sg_sample *place, const struct sg_sample *sample)
{
    sg_store_relaxed(&place->time_ns, 0);
    sg_fence(); /* readers must not see the new content under the old time */
    memcpy((char *)place + sizeof place->time_ns, (const char *)sample + sizeof sample->time_ns,
           sizeof *place - sizeof place->time_ns);
    sg_store_release(&place->time_ns, sample->time_ns);
}

/* Merges neighbouring samples and doubles the interval. */
static void thin(struct sg_timeline *line)
{
    for (uint32_t i = 0; i < SG_SAMPLE_CAPACITY / 2; i++) {
        struct sg_sample pair = line->sample[2 * i];
        (void)merge(&pair, &line->sample[2 * i + 1]);
        put(&line->sample[i], &pair);
    }
    sg_store_release(&line->sample_count, (uint32_t)(SG_SAMPLE_CAPACITY / 2));
    line->interval_ns *= 2;
}

/* If the clock was set back, the sample is merged into the last one. */
void sg_timeline_add(struct sg_timeline *line, const struct sg_sample *sample)
{
    uint32_t count = sg_load_relaxed(&line->sample_count);
    if (count > SG_SAMPLE_CAPACITY) /* another program has written to the file */
        return;
    if (count != 0 && sample->time_ns - line->sample[count - 1].time_ns < (int64_t)line->interval_ns) {
        struct sg_sample last = line->sample[count - 1];
        if (merge(&last, sample))
            put(&line->sample[count - 1], &last);
        return;
    }
    if (count == SG_SAMPLE_CAPACITY) {
        thin(line);
        count = SG_SAMPLE_CAPACITY / 2;
    }
    put(&line->sample[count], sample);
    sg_store_release(&line->sample_count, count + 1);
}

void sg_timeline_copy(struct sg_timeline *copy, const struct sg_timeline *line)
{
    enum { COPIES_MAX = 4 };
    for (int i = 0; i < COPIES_MAX; i++) {
        memcpy(copy, line, sizeof *copy);
        sg_fence(); /* the comparisons below must read `line` again, after the copy */
        copy->sample_count = copy->sample_count < SG_SAMPLE_CAPACITY ? copy->sample_count : SG_SAMPLE_CAPACITY;
        uint32_t last = copy->sample_count > 0 ? copy->sample_count - 1 : 0;
        bool is_still = memcmp(copy->sample, line->sample, last * sizeof copy->sample[0]) == 0;
        if (memcmp(&copy->sample[last], &line->sample[last], sizeof copy->sample[0]) != 0)
            copy->sample_count = last;
        if (is_still)
            break;
    }
}

void sg_timeline_sample(void)
{
    struct sg_timeline *line = sg_load_acquire(&timeline.line);
    const struct sg_machine *machine = &sg_own->machine;
    if (line == NULL || machine->time_ns == 0)
        return;
    struct sg_sample sample = {.time_ns = machine->time_ns,
                               .usable_bytes = machine->usable_bytes,
                               .reserve_bytes = machine->reserve_bytes,
                               .floor_bytes = machine->floor_bytes};
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++)
        sample.live_bytes[i] = sg_load_relaxed(&sg_own->domain[i].granted_bytes);
    sample.live_bytes[SG_DOMAIN_HEAP] = sg_ledger_live_heap_bytes();
    sg_timeline_add(line, &sample);
}

const struct sg_timeline *sg_timeline_current(void)
{
    return sg_load_acquire(&timeline.line);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Copies the samples of `before` into a new file. Its magic stays 0 meanwhile, so that readers take no half copy. */
static long copy_but_magic(struct sg_timeline *line, const struct sg_timeline *before)
{
    struct sg_timeline *copy =
        sg_sys_mmap(NULL, sizeof *copy, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sg_is_error(copy))
        return (long)copy;
    sg_timeline_copy(copy, before);
    memcpy((char *)line + sizeof line->magic, (const char *)copy + sizeof copy->magic,
           sizeof *line - sizeof line->magic);
    (void)sg_sys_munmap(copy, sizeof *copy);
    return 0;
}

/* Fills the new file `fd` and maps it as the time line. Returns 0 or a negative errno. */
static long make_in(int fd, const struct sg_timeline *before)
{
    (void)sg_sys_fchmod(fd, sg_segment_file_mode());
    long result = sg_file_allocate(fd, 0, sizeof(struct sg_timeline), false);
    if (result != 0)
        return result;
    struct sg_timeline *line = sg_sys_mmap(NULL, sizeof *line, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (sg_is_error(line))
        return (long)line;
    line->version = SG_TIMELINE_VERSION;
    line->interval_ns = FIRST_INTERVAL_NS;
    if (before != NULL && (result = copy_but_magic(line, before)) != 0) {
        (void)sg_sys_munmap(line, sizeof *line);
        return result;
    }
    sg_store_release(&line->magic, SG_TIMELINE_MAGIC);
    sg_store_release(&timeline.line, line);
    return 0;
}

/* Makes the file of the time line. `before`: the time line whose samples are copied, or NULL. Returns 0 or a negative
 * errno. */
static long make(const struct sg_timeline *before)
{
    sg_directory_name_timeline(timeline.path, sizeof timeline.path, sg_segment_path());
    long fd = sg_sys_openat((int)SG_AT_FDCWD, timeline.path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                            sg_segment_file_mode());
    if (fd < 0)
        return fd;
    long result = make_in((int)fd, before);
    if (result != 0)
        (void)sg_sys_unlinkat((int)SG_AT_FDCWD, timeline.path);
    (void)sg_sys_close((int)fd);
    return result;
}

static void take_first_sample(void)
{
    struct sg_lock_state state;
    if (!sg_lock_acquire_within(&sg_decision_lock, &state, LOCK_WAIT_NS))
        return;
    sg_timeline_sample();
    sg_lock_release(&sg_decision_lock, &state);
}

void sg_timeline_begin(void)
{
    struct sg_lock_state state;
    if (SG_LIKELY(sg_load_acquire(&timeline.state) != UNTRIED) || !sg_segment_is_own())
        return;
    if (!sg_lock_acquire_within(&timeline.lock, &state, LOCK_WAIT_NS))
        return;
    bool is_ours = sg_load(&timeline.state) == UNTRIED;
    bool is_made = is_ours && make(NULL) == 0;
    if (is_ours)
        sg_store(&timeline.state, (uint32_t)(is_made ? BEGUN : FAILED));
    sg_lock_release(&timeline.lock, &state);
    if (is_made)
        take_first_sample();
    else if (is_ours)
        sg_segment_add_event("no time line: its file could not be made");
}

/* The old mapping stays: another thread may be reading it. */
void sg_timeline_make_anew(void)
{
    struct sg_lock_state state;
    if (sg_load_acquire(&timeline.state) != BEGUN || !sg_lock_acquire_within(&timeline.lock, &state, LOCK_WAIT_NS))
        return;
    (void)make(timeline.line);
    if (sg_load(&timeline.state) != BEGUN) /* sg_timeline_drop ran meanwhile */
        (void)sg_sys_unlinkat((int)SG_AT_FDCWD, timeline.path);
    sg_lock_release(&timeline.lock, &state);
}

/* The mapping stays: another thread may be about to write to it. */
void sg_timeline_drop(void)
{
    if (sg_exchange(&timeline.state, (uint32_t)UNTRIED) != BEGUN)
        return;
    sg_store(&timeline.line, NULL);
    (void)sg_sys_unlinkat((int)SG_AT_FDCWD, timeline.path);
}

void sg_timeline_atfork_child(void)
{
    sg_lock_reset(&timeline.lock);
    if (sg_load(&timeline.state) == UNTRIED && sg_load(&timeline.line) == NULL)
        return;
    if (timeline.line != NULL)
        (void)sg_sys_munmap(timeline.line, sizeof *timeline.line);
    sg_store(&timeline.line, NULL);
    sg_store(&timeline.state, (uint32_t)UNTRIED);
}
