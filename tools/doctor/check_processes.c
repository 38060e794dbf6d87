/*
 * check_processes.c - what earlier runs left behind, and what no guard covers: zombies, files in /dev/shm that nobody
 * has any more, large processes without the guard.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/doctor.h"
#include "doctor/dev_shm.h"
#include "common/bytes.h"
#include "common/text.h"

/* Of the machine; smaller ones are a desktop's and a shell's. */
#define MUCH_PERCENT 5

enum { NAMED_MAX = 3 };

/* "a, b", and so on; frees and replaces the list. */
static void append(char **list, char *item)
{
    char *longer = text_format("%s%s%s", *list, **list ? ", " : "", item);
    free(*list);
    free(item);
    *list = longer;
}

void doctor_check_zombies(struct doctor *doctor)
{
    static const char id[] = "zombies";
    uint64_t count = 0;
    uint32_t parent = 0;
    char *names = text_copy("", 0);
    struct doctor_finding *finding;
    for (size_t i = 0; i < doctor->process_count; i++) {
        const struct doctor_process *process = &doctor->processes[i];
        if (process->state != 'Z')
            continue;
        if (count++ == 0)
            parent = process->parent_pid;
        if (count <= NAMED_MAX)
            append(&names, text_format("%s %" PRIu32 " of %" PRIu32, process->name, process->pid, process->parent_pid));
    }
    if (!doctor->has_processes) {
        finding = doctor_add(doctor, id, DOCTOR_UNKNOWN, "/proc cannot be listed.");
        finding->mend = text_copy("ps -A", 64);
        count = SG_UNKNOWN;
    } else if (count == 0) {
        finding = doctor_add(doctor, id, DOCTOR_FINE, "No process is a zombie.");
    } else {
        finding = doctor_add(doctor, id, DOCTOR_WARNING, "%" PRIu64 " zombie%s (%s%s).", count,
                             count == 1 ? " waits for its parent" : "s wait for their parents", names,
                             count > NAMED_MAX ? ", ..." : "");
        if (parent > 1)
            finding->mend = text_format("kill -TERM %" PRIu32 "  # ends the parent that does not collect", parent);
        else
            finding->mend = text_copy("ps -A -o pid,ppid,stat,etime,comm | grep ' Z'", 64);
    }
    finding->why = "The workers of a launcher that hangs: a dead main thread can leave others, which hold all their "
                   "memory, and a driver that is stuck leaves such processes too.";
    doctor_figure(finding, "zombie_count", count);
    free(names);
}

void doctor_check_leftovers(struct doctor *doctor)
{
    static const char id[] = "leftovers";
    char size_text[TEXT_SIZE_CAPACITY];
    struct doctor_shm shm;
    const struct model_job *job;
    const struct model_process *process;
    uint64_t killed = 0;
    struct doctor_finding *finding;
    DL_FOREACH (doctor->model->jobs, job)
        DL_FOREACH (job->processes, process)
            killed += process->state == SG_STATE_KILLED;
    doctor_shm_look(doctor, &shm);
    text_size(size_text, shm.orphan_bytes);
    if (!shm.is_readable) {
        finding = doctor_add(doctor, id, DOCTOR_UNKNOWN, "/dev/shm cannot be listed.");
        finding->mend = text_copy("ls -l /dev/shm", 64);
    } else if (shm.orphan_count == 0) {
        finding = doctor_add(doctor, id, DOCTOR_FINE, "No file in /dev/shm is left behind.");
    } else {
        const char *what = shm.is_certain ? "no process has" : "no process that can be seen from here has";
        finding = doctor_add(doctor, id, shm.is_certain ? DOCTOR_WARNING : DOCTOR_UNKNOWN,
                             "%" PRIu64 " file%s in /dev/shm, %s, that %s open (%s%s); %" PRIu64
                             " guarded process%s been killed.",
                             shm.orphan_count, shm.orphan_count == 1 ? "" : "s", size_text, what, shm.name,
                             shm.orphan_count > 1 ? ", ..." : "", killed, killed == 1 ? " has" : "es have");
        if (!shm.is_certain)
            finding->mend = text_copy("sudo sparkguard-doctor  # sees the processes of all users", 64);
        else if (shm.is_name_plain)
            finding->mend = text_format("rm -i /dev/shm/%s", shm.name);
        else
            finding->mend = text_copy("ls -l /dev/shm", 64);
    }
    finding->why = "Files in /dev/shm are memory; those of a killed job (NCCL, PyTorch's workers) stay until somebody "
                   "removes them or the machine restarts.";
    doctor_figure(finding, "orphan_count", shm.is_readable ? shm.orphan_count : SG_UNKNOWN);
    doctor_figure(finding, "orphan_bytes", shm.is_readable ? shm.orphan_bytes : SG_UNKNOWN);
    doctor_figure(finding, "killed_count", killed);
    doctor_shm_free(&shm);
}

void doctor_check_unguarded(struct doctor *doctor)
{
    static const char id[] = "unguarded";
    char size_text[TEXT_SIZE_CAPACITY], least_text[TEXT_SIZE_CAPACITY];
    const struct model *model = doctor->model;
    uint64_t total = model->machine.total_bytes, sum = 0, count = 0;
    uint64_t least = total == SG_UNKNOWN ? SG_UNKNOWN : total / 100 * MUCH_PERCENT;
    struct doctor_finding *finding;
    for (; count < model->unguarded_count && model->unguarded[count].resident_bytes >= least; count++)
        sum = bytes_add(sum, model->unguarded[count].resident_bytes);
    text_size(least_text, least);
    if (!doctor->has_processes || total == SG_UNKNOWN) {
        finding = doctor_add(doctor, id, DOCTOR_UNKNOWN, "/proc cannot be listed, or says nothing of its memory.");
        finding->mend = text_copy("sparkguard-report", 64);
        count = sum = SG_UNKNOWN;
    } else if (count == 0) {
        finding = doctor_add(doctor, id, DOCTOR_FINE, "No process without the guard holds %s (%d %% of the machine).",
                             least_text, MUCH_PERCENT);
    } else {
        const struct model_unguarded *first = &model->unguarded[0];
        char *command = text_copy(first->command, 60);
        finding = doctor_add(doctor, id, DOCTOR_WARNING,
                             "%" PRIu64 " process%s without the guard hold%s %s or more; the largest is %" PRIu32
                             " with %s: %s",
                             count, count == 1 ? "" : "es", count == 1 ? "s" : "", least_text, first->pid,
                             text_size(size_text, first->resident_bytes), command);
        finding->mend = text_format("kill -TERM %" PRIu32 "  # and start it again under sparkguard", first->pid);
        free(command);
    }
    finding->why = "What a process without the guard asks for is not judged; it takes the room that guarded ones were "
                   "promised, and its device memory does not even show in its size.";
    doctor_figure(finding, "unguarded_count", count);
    doctor_figure(finding, "unguarded_bytes", sum);
}
