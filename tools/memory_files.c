/*
 * memory_files.c - see memory_files.h.
 */
#include "memory_files.h"

#include "text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <uthash.h>

struct report_memory_file {
    uint64_t identity, bytes;
    UT_hash_handle hh;
};

/* What of the file had been counted before. */
static uint64_t count(struct report_memory_file **counted, const struct sg_memory_file *file)
{
    struct report_memory_file *entry;
    HASH_FIND(hh, *counted, &file->identity, sizeof file->identity, entry);
    if (entry == NULL) {
        entry = report_allocate(1, sizeof *entry);
        entry->identity = file->identity;
        HASH_ADD(hh, *counted, identity, sizeof entry->identity, entry);
    }
    uint64_t again = report_min(entry->bytes, file->bytes);
    entry->bytes = report_max(entry->bytes, file->bytes);
    return again;
}

static bool is_running(const struct report *report, uint32_t pid)
{
    const struct report_job *job;
    const struct report_process *process;
    DL_FOREACH (report->jobs, job)
        DL_FOREACH (job->processes, process)
            if (process->pid == pid && process->state == SG_STATE_RUNNING)
                return true;
    return false;
}

static uint64_t heritage_anew(struct report_memory_file **counted, const struct report_process *process,
                              const struct report *report)
{
    /* Files' identities are odd. */
    const struct sg_memory_file heritage = {(uint64_t)process->parent_pid << 1, process->heritage_bytes};
    if (heritage.bytes == 0 || is_running(report, process->parent_pid))
        return 0;
    return report_less(heritage.bytes, count(counted, &heritage));
}

uint64_t report_promised_anew(struct report_memory_file **counted, const struct report_process *process,
                              const struct report *report)
{
    uint64_t again = 0;
    for (int i = 0; i < SG_FILE_ROOM; i++)
        if (process->file[i].identity != 0)
            again = report_add(again, count(counted, &process->file[i]));
    return report_add(report_less(process->promised_bytes, again), heritage_anew(counted, process, report));
}

void report_memory_files_clear(struct report_memory_file **counted)
{
    struct report_memory_file *entry = *counted, *next;
    HASH_CLEAR(hh, *counted);
    for (; entry != NULL; entry = next) {
        next = entry->hh.next;
        free(entry);
    }
}
