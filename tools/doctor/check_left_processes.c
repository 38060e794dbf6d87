/*
 * check_left_processes.c - checks for processes that run on although the job that started them has ended: engines of
 * vLLM and SGLang, workers of Ray, kernels of Jupyter. Their device memory shows in no process's size, so they count
 * whatever it is. Of other programs nobody can tell: one that nohup(1) started has lost its starter, too, and works.
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/procfs.h"
#include "common/text.h"
#include "doctor/doctor.h"

/* Smaller idle ones are not worth ending. */
#define LEAST_BYTES (UINT64_C(256) << 20)

enum { NAMED_MAX = 4, KILLED_MAX = 32 };

struct left {
    char *names; /* "VLLM::EngineCore (70), ..." */
    char *pids;  /* " 70 71" */
    uint64_t count, bytes;
    bool is_anothers; /* one of them belongs to another user */
};

static const struct kind {
    const char *name;     /* how the name or the command line begins */
    const char *argument; /* what is somewhere in the command line; "": anything */
    const char *what;
    bool is_idle; /* it holds memory for nothing, also while what started it lives */
} kinds[] = {
    {"VLLM::", "", "an engine of vLLM", false},
    {"sglang::", "", "an engine of SGLang", false},
    {"ray::IDLE", "", "an idle worker of Ray", true},
    {"ray::", "", "a worker of Ray", false},
    {"python", "ipykernel", "a kernel of Jupyter", false},
};

/* Returns whether what started a process has ended: it is now a child of init, or of a user's systemd. Services are
 * such children from the start. */
static bool is_orphan(const struct doctor *doctor, const struct doctor_process *process)
{
    char group[4096];
    bool is_adopted = process->parent_pid == 1;
    for (size_t i = 0; i < doctor->process_count && !is_adopted; i++)
        is_adopted =
            doctor->processes[i].pid == process->parent_pid && strcmp(doctor->processes[i].name, "systemd") == 0;
    if (!is_adopted ||
        doctor_read(doctor, text_format("/proc/%" PRIu32 "/cgroup", process->pid), group, sizeof group) <= 0)
        return is_adopted;
    size_t length = strcspn(group, "\n"), suffix = strlen(".service");
    return length < suffix || strncmp(group + length - suffix, ".service", suffix) != 0;
}

/* Returns the command line with blanks, else the name, of a process. */
static char *command_in_tree(const struct doctor *doctor, const struct doctor_process *process)
{
    char text[1024];
    long length = doctor_read(doctor, text_format("/proc/%" PRIu32 "/cmdline", process->pid), text, sizeof text);
    for (long i = 0; i + 1 < length; i++)
        if (text[i] == '\0')
            text[i] = ' ';
    return length > 0 ? text_copy(text, (size_t)length) : text_copy(process->name, sizeof process->name);
}

static const struct kind *kind_of(const struct doctor_process *process, const char *command)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t length = strlen(kinds[i].name);
        bool is_named =
            strncmp(process->name, kinds[i].name, length) == 0 || strncmp(command, kinds[i].name, length) == 0;
        if (is_named && strstr(command, kinds[i].argument) != NULL)
            return &kinds[i];
    }
    return NULL;
}

static void examine_process(const struct doctor *doctor, const struct doctor_process *process, struct left *left)
{
    char status[8192];
    char *command = command_in_tree(doctor, process);
    const struct kind *kind = kind_of(process, command);
    if (kind == NULL || process->state == 'Z' || (!kind->is_idle && !is_orphan(doctor, process)))
        return;
    if (doctor_read(doctor, text_format("/proc/%" PRIu32 "/status", process->pid), status, sizeof status) <= 0)
        return;
    uint64_t anonymous = procfs_kib(procfs_number_after(status, "RssAnon"));
    uint64_t bytes = anonymous != SG_UNKNOWN ? anonymous : procfs_kib(procfs_number_after(status, "VmRSS"));
    bytes = bytes != SG_UNKNOWN ? bytes : 0;
    if (bytes < LEAST_BYTES && kind->is_idle)
        return;
    text_shorten(command, 40);
    if (left->count < NAMED_MAX)
        left->names = text_format("%s%s%" PRIu32 " %s, %s, %s", left->names, left->count > 0 ? "; " : "", process->pid,
                                  command, kind->what, text_size(bytes));
    if (left->count < KILLED_MAX)
        left->pids = text_format("%s %" PRIu32, left->pids, process->pid);
    left->count++;
    left->bytes = bytes_add(left->bytes, bytes);
    left->is_anothers = left->is_anothers || procfs_number_after(status, "Uid") != geteuid();
}

static void check_left_processes(struct doctor *doctor, struct finding *finding)
{
    struct left left = {.names = text_copy("", 0), .pids = text_copy("", 0)};
    for (size_t i = 0; i < doctor->process_count && !doctor->is_contained; i++) /* there init is a part of the job */
        examine_process(doctor, &doctor->processes[i], &left);
    if (left.count == 0)
        return;
    finding_say(finding, FINDING_WARNING, NULL, "%" PRIu64 " process%s of ended jobs run%s on with %s: %s%s",
                left.count, left.count == 1 ? "" : "es", left.count == 1 ? "s" : "", text_size(left.bytes), left.names,
                left.count > NAMED_MAX ? "; ..." : "");
    finding->fix = text_format("%skill%s", left.is_anothers && geteuid() != 0 ? "sudo " : "", left.pids);
    finding_figure(finding, "left_count", left.count);
    finding_figure(finding, "left_bytes", left.bytes);
}

DOCTOR_CHECK(195, check_left_processes, "left-processes",
             "What started them has ended, or they wait for work, and they keep their memory, a GPU's memory "
             "too, which shows in no process's size.");
