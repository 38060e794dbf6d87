/*
 * tmpfs_usage.c - see tmpfs_usage.h. The library decides by the same rules (preload/core/shared/same_bytes.c).
 */
#include "model/tmpfs_usage.h"

#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

/* Units of shared memory that were counted already, as sorted ranges that do not touch. */
struct covered {
    struct sg_memory_file *range; /* large enough for all ranges to count */
    size_t count;
};

/* The bytes that the children of one process share with it. */
struct origin {
    struct {
        uint64_t claim, entry;
    } key;
    uint64_t bytes; /* the largest share of one child */
    uint32_t pid, pid_namespace;
    UT_hash_handle hh;
};

void model_same_bytes_add(struct model_same_bytes *sum, const struct model_process *process)
{
    if (sum->count == sum->capacity) {
        const struct model_process **before = sum->process;
        sum->capacity = sum->capacity == 0 ? 64 : 2 * sum->capacity;
        sum->process = tool_allocate(sum->capacity, sizeof(struct model_process *));
        if (before != NULL)
            memcpy(sum->process, before, sum->count * sizeof(struct model_process *));
        free(before);
    }
    sum->process[sum->count++] = process;
}

void model_same_bytes_free(struct model_same_bytes *sum)
{
    free(sum->process);
    *sum = (struct model_same_bytes){0};
}

/* ---- shared memory ----------------------------------------------------------------------------------------------- */

static uint64_t bytes_of(const struct sg_memory_file *file)
{
    return (file->end - file->begin) * SG_FILE_UNIT_BYTES;
}

/* Returns whether a range is plausible. A damaged file may contain anything. */
static bool is_whole(const struct sg_memory_file *file)
{
    return file->begin != 0 && file->begin < file->end && file->begin >> 32 == (file->end - 1) >> 32 &&
           file->missing_bytes <= bytes_of(file);
}

static int compare_missing(const void *left, const void *right)
{
    const struct sg_memory_file *a = left, *b = right;
    return a->missing_bytes != b->missing_bytes
               ? (a->missing_bytes < b->missing_bytes) - (a->missing_bytes > b->missing_bytes)
               : (a->begin > b->begin) - (a->begin < b->begin);
}

/* Returns the ranges of all processes, those with the most missing bytes first. */
static struct sg_memory_file *collect(const struct model_same_bytes *sum, size_t *count)
{
    struct sg_memory_file *files = tool_allocate(sum->count * SG_FILE_CAPACITY + 1, sizeof *files);
    *count = 0;
    for (size_t i = 0; i < sum->count; i++)
        for (int j = 0; j < SG_FILE_CAPACITY; j++)
            if (is_whole(&sum->process[i]->file[j]))
                files[(*count)++] = sum->process[i]->file[j];
    qsort(files, *count, sizeof *files, compare_missing);
    return files;
}

/* Returns the index of the first range that ends at or after `unit`. */
static size_t find(const struct covered *covered, uint64_t unit)
{
    size_t low = 0, high = covered->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (covered->range[middle].end >= unit)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Adds a range to the counted ones. Returns the number of its bytes that had not been counted before. */
static uint64_t cover(struct covered *covered, struct sg_memory_file file)
{
    uint64_t fresh = bytes_of(&file);
    size_t first = find(covered, file.begin), last = first;
    for (; last < covered->count && covered->range[last].begin <= file.end; last++) {
        const struct sg_memory_file *other = &covered->range[last];
        struct sg_memory_file both = {.begin = bytes_max(file.begin, other->begin),
                                      .end = bytes_min(file.end, other->end)};
        fresh -= bytes_of(&both);
    }
    if (last > first) {
        file.begin = bytes_min(file.begin, covered->range[first].begin);
        file.end = bytes_max(file.end, covered->range[last - 1].end);
    }
    memmove(&covered->range[first + 1], &covered->range[last], (covered->count - last) * sizeof *covered->range);
    covered->count = covered->count - (last - first) + 1;
    covered->range[first] = file;
    return fresh;
}

/* ---- memory of parents ------------------------------------------------------------------------------------------- */

static uint64_t shared_bytes(const struct model_process *process)
{
    uint64_t bytes = 0;
    for (int i = 0; i < SG_FILE_CAPACITY; i++)
        if (is_whole(&process->file[i]))
            bytes = bytes_add(bytes, bytes_of(&process->file[i]));
    return bytes;
}

/* Returns the live bytes that no other process counts. */
static uint64_t private_bytes(const struct model_process *process)
{
    uint64_t inherited = bytes_less(process->inherited_bytes, process->inherited_shared_bytes);
    return bytes_less(bytes_less(process->live_bytes, shared_bytes(process)), inherited);
}

static const struct model_process *running_process(const struct model *model, uint32_t pid, uint32_t pid_namespace)
{
    const struct model_job *job;
    const struct model_process *process;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (process->pid == pid && process->pid_namespace == pid_namespace && process->state == SG_STATE_RUNNING)
                return process;
    return NULL;
}

static void note(struct origin **origins, uint64_t claim, uint32_t entry, uint32_t pid, uint32_t pid_namespace,
                 uint64_t bytes)
{
    struct origin *item, wanted;
    memset(&wanted, 0, sizeof wanted); /* the linters follow no initialiser into the hash */
    wanted.key.claim = claim;
    wanted.key.entry = entry;
    HASH_FIND(hh, *origins, &wanted.key, sizeof wanted.key, item);
    if (item == NULL) {
        item = tool_allocate(1, sizeof *item);
        item->key = wanted.key;
        item->pid = pid;
        item->pid_namespace = pid_namespace;
        HASH_ADD(hh, *origins, key, sizeof item->key, item);
    }
    item->bytes = bytes_max(item->bytes, bytes);
}

/* Returns the inherited bytes less those that living parents count themselves. Frees the hash. */
static uint64_t take_orphaned(struct origin *origins, const struct model *model, bool is_promise)
{
    struct origin *item, *next;
    uint64_t sum = 0;
    HASH_ITER (hh, origins, item, next) {
        const struct model_process *parent = running_process(model, item->pid, item->pid_namespace);
        uint64_t counted = parent == NULL ? 0 : is_promise ? item->bytes : private_bytes(parent);
        sum = bytes_add(sum, bytes_less(item->bytes, counted));
        HASH_DEL(origins, item);
        free(item);
    }
    return sum;
}

/* Attributes inherited bytes to ancestors, the nearest first, as the library does. */
static void note_inherited(struct origin **origins, const struct model_process *process)
{
    uint64_t left = bytes_less(process->inherited_bytes, process->inherited_shared_bytes);
    for (int i = 0; i < SG_ORIGIN_CAPACITY && left != 0 && process->origin[i].claim != 0; i++) {
        const struct sg_origin *origin = &process->origin[i];
        uint64_t bytes = bytes_min(origin->bytes, left);
        left -= bytes;
        note(origins, origin->claim, origin->entry, origin->pid, process->pid_namespace, bytes);
    }
}

/* ---- the sums ---------------------------------------------------------------------------------------------------- */

uint64_t model_same_bytes_live(const struct model_same_bytes *sum, const struct model *model)
{
    size_t count;
    struct sg_memory_file *files = collect(sum, &count);
    struct covered covered = {.range = tool_allocate(count + 1, sizeof *covered.range)};
    struct origin *origins = NULL;
    uint64_t live = 0;
    for (size_t i = 0; i < sum->count; i++) {
        live = bytes_add(live, private_bytes(sum->process[i]));
        note_inherited(&origins, sum->process[i]);
    }
    for (size_t i = 0; i < count; i++)
        live = bytes_add(live, cover(&covered, files[i]));
    free(files);
    free(covered.range);
    return bytes_add(live, take_orphaned(origins, model, false));
}

uint64_t model_same_bytes_promised(const struct model_same_bytes *sum, const struct model *model)
{
    size_t count;
    struct sg_memory_file *files = collect(sum, &count);
    struct covered covered = {.range = tool_allocate(count + 1, sizeof *covered.range)};
    struct origin *origins = NULL;
    uint64_t promised = 0, missing = 0;
    for (size_t i = 0; i < sum->count; i++) {
        const struct model_process *process = sum->process[i];
        for (int j = 0; j < SG_FILE_CAPACITY; j++)
            if (is_whole(&process->file[j]))
                missing = bytes_add(missing, process->file[j].missing_bytes);
        promised = bytes_add(promised, process->promised_bytes);
        if (process->inherited_promise_bytes != 0)
            note(&origins, process->pid_namespace, process->parent_pid, process->parent_pid, process->pid_namespace,
                 process->inherited_promise_bytes);
    }
    promised = bytes_less(promised, missing);
    for (size_t i = 0; i < count; i++)
        promised = bytes_add(promised, bytes_min(cover(&covered, files[i]), files[i].missing_bytes));
    free(files);
    free(covered.range);
    return bytes_add(promised, take_orphaned(origins, model, true));
}
