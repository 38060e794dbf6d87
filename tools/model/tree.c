/*
 * tree.c - finds the parents of a job's processes, and folds the smallest of very many processes.
 */
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "common/tool.h"

/* Numbers of running and of ended processes that an overview shows per job, the largest ones. A build or a data loader
 * may have thousands. */
enum { RUNNING_SHOWN = 48, ENDED_SHOWN = 16 };

_Static_assert(offsetof(struct model_process, pid_namespace) == offsetof(struct model_process, pid) + sizeof(uint32_t),
               "a key");

/* The parent is the youngest earlier process of the job with the parent's PID in the same namespace. */
void model_parents_fill(struct model *model)
{
    struct model_job *job;
    DL_FOREACH (model->jobs, job) {
        struct model_process *process, *known, *by_pid = NULL;
        DL_FOREACH (job->processes, process) {
            uint32_t parent[2];
            memset(parent, 0, sizeof parent); /* the linters follow no initialiser into the hash */
            parent[0] = process->parent_pid;
            parent[1] = process->pid_namespace;
            HASH_FIND(hh, by_pid, parent, sizeof parent, process->parent);
            if (process->parent != NULL && process->parent->run != process->run)
                process->parent = NULL; /* in an earlier run, another process had this PID */
            HASH_REPLACE(hh, by_pid, pid, sizeof parent, process, known); /* pid and pid_namespace */
        }
        HASH_CLEAR(hh, by_pid);
    }
}

/* Sorts running processes by live bytes and ended ones by peak, largest first; equal ones by age, oldest first. */
static int compare_sizes(const void *a, const void *b)
{
    const struct model_process *first = *(struct model_process *const *)a;
    const struct model_process *second = *(struct model_process *const *)b;
    bool is_running = first->state == SG_STATE_RUNNING;
    uint64_t first_bytes = is_running ? first->live_bytes : first->peak_bytes;
    uint64_t second_bytes = is_running ? second->live_bytes : second->peak_bytes;
    if (first_bytes != second_bytes)
        return first_bytes < second_bytes ? 1 : -1;
    if (first->started_ns != second->started_ns)
        return first->started_ns > second->started_ns ? 1 : -1;
    return (first->pid > second->pid) - (first->pid < second->pid);
}

size_t model_fold(const struct model_job *job, bool is_running)
{
    struct model_process *process;
    size_t count = 0, total = is_running ? job->running_count : job->process_count - job->running_count;
    size_t shown = is_running ? RUNNING_SHOWN : ENDED_SHOWN;
    if (total <= shown)
        return 0;
    struct model_process **list = tool_allocate(total, sizeof(struct model_process *));
    DL_FOREACH (job->processes, process)
        if ((process->state == SG_STATE_RUNNING) == is_running)
            list[count++] = process;
    qsort(list, count, sizeof(struct model_process *), compare_sizes);
    for (size_t i = shown; i < count; i++)
        list[i]->is_folded = true;
    return total - shown;
}
