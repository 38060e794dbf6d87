/*
 * check_processes.c - checks for leftovers of earlier runs and for unguarded programs: zombies, files in /dev/shm that
 * no process uses, large processes without the guard.
 */
#include <inttypes.h>

#include "doctor/doctor.h"
#include "doctor/dev_shm.h"
#include "common/bytes.h"
#include "common/text.h"

/* Percentage of the machine. Smaller processes belong to desktops and shells. */
#define MUCH_PERCENT 5

enum { NAMED_MAX = 3 };

static void check_zombies(struct doctor *doctor, struct finding *finding)
{
    uint64_t count = 0;
    uint32_t parent = 0;
    const char *names = "";
    for (size_t i = 0; i < doctor->process_count; i++) {
        const struct doctor_process *process = &doctor->processes[i];
        if (process->state != 'Z')
            continue;
        if (count++ == 0)
            parent = process->parent_pid;
        if (count <= NAMED_MAX)
            text_append(&names, ", ",
                        text_format("%s %" PRIu32 " of %" PRIu32, process->name, process->pid, process->parent_pid));
    }
    if (!doctor->has_processes) {
        finding_say(finding, FINDING_UNKNOWN, "ps -A", "/proc cannot be listed.");
        count = SG_UNKNOWN;
    } else if (count == 0) {
        finding_say(finding, FINDING_FINE, NULL, "No process is a zombie.");
    } else {
        finding_say(finding, FINDING_WARNING, NULL, "%" PRIu64 " zombie%s (%s%s).", count,
                    count == 1 ? " waits for its parent" : "s wait for their parents", names,
                    count > NAMED_MAX ? ", ..." : "");
        if (parent > 1)
            finding->fix = text_format("ps -o user,etime,args -p %" PRIu32
                                       "  # the parent that does not collect; if it hangs: kill -TERM %" PRIu32,
                                       parent, parent);
        else
            finding->fix = "ps -A -o pid,ppid,stat,etime,comm | grep ' Z'";
    }
    finding_figure(finding, "zombie_count", count);
}

DOCTOR_CHECK(180, check_zombies, "zombies",
             "A zombie can hold memory: if its main thread ended and others did not, they keep all of it. A launcher "
             "that hangs and a driver that hangs leave such processes.");

static void check_leftovers(struct doctor *doctor, struct finding *finding)
{
    struct doctor_shm shm;
    const struct model_job *job;
    const struct model_process *process;
    uint64_t killed = 0;
    DL_FOREACH (doctor->model->jobs, job)
        DL_FOREACH (job->processes, process)
            killed += process->state == SG_STATE_KILLED;
    doctor_shm_look(doctor, &shm);
    const char *size_text = text_size(shm.orphan_bytes);
    if (!shm.is_readable) {
        finding_say(finding, FINDING_UNKNOWN, "ls -l /dev/shm", "/dev/shm cannot be listed.");
    } else if (shm.orphan_count == 0) {
        finding_say(finding, FINDING_FINE, NULL, "No file in /dev/shm is left behind.");
    } else {
        const char *what = shm.is_certain ? "no process has" : "no process that can be seen from here has";
        finding_say(finding, shm.is_certain ? FINDING_WARNING : FINDING_UNKNOWN, NULL,
                    "%" PRIu64 " file%s in /dev/shm, %s, that %s open (%s%s); %" PRIu64
                    " guarded process%s been killed.",
                    shm.orphan_count, shm.orphan_count == 1 ? "" : "s", size_text, what, shm.name,
                    shm.orphan_count > 1 ? ", ..." : "", killed, killed == 1 ? " has" : "es have");
        if (!shm.is_certain)
            finding->fix = "sudo sparkguard-doctor  # sees the processes of all users";
        else if (shm.is_name_plain)
            finding->fix = text_format("rm -i /dev/shm/%s", shm.name);
        else
            finding->fix = "ls -l /dev/shm";
    }
    finding_figure(finding, "orphan_count", shm.is_readable ? shm.orphan_count : SG_UNKNOWN);
    finding_figure(finding, "orphan_bytes", shm.is_readable ? shm.orphan_bytes : SG_UNKNOWN);
    finding_figure(finding, "killed_count", killed);
}

DOCTOR_CHECK(190, check_leftovers, "leftovers",
             "Files in /dev/shm are memory; those of a killed job (NCCL, PyTorch's workers) stay until they are "
             "removed or the machine restarts.");

static void check_unguarded(struct doctor *doctor, struct finding *finding)
{
    const struct model *model = doctor->model;
    uint64_t total = model->machine.total_bytes, sum = 0, count = 0;
    uint64_t least = total == SG_UNKNOWN ? SG_UNKNOWN : total / 100 * MUCH_PERCENT;
    for (; count < model->unguarded_count && model->unguarded[count].resident_bytes >= least; count++)
        sum = bytes_add(sum, model->unguarded[count].resident_bytes);
    const char *least_text = text_size(least);
    if (!doctor->has_processes || total == SG_UNKNOWN) {
        finding_say(finding, FINDING_UNKNOWN, "sparkguard-report",
                    "/proc cannot be listed, or does not show the memory of processes.");
        count = sum = SG_UNKNOWN;
    } else if (count == 0) {
        finding_say(finding, FINDING_FINE, NULL, "No process without the guard holds %s (%d %% of the machine).",
                    least_text, MUCH_PERCENT);
    } else {
        const struct model_unguarded *first = &model->unguarded[0];
        finding_say(finding, FINDING_WARNING,
                    text_format("kill -TERM %" PRIu32 "  # and start it again under sparkguard", first->pid),
                    "%" PRIu64 " process%s without the guard hold%s %s or more; the largest is %" PRIu32 " with %s: %s",
                    count, count == 1 ? "" : "es", count == 1 ? "s" : "", least_text, first->pid,
                    text_size(first->resident_bytes), text_copy(first->command, 60));
    }
    finding_figure(finding, "unguarded_count", count);
    finding_figure(finding, "unguarded_bytes", sum);
}

DOCTOR_CHECK(170, check_unguarded, "unguarded",
             "Requests of an unguarded process are not judged; it takes memory that was promised to guarded "
             "processes, and its device memory does not show in its size.");
