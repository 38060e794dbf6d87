/*
 * holders.c - finds the processes and files that hold memory. First those that an earlier job has left behind: servers
 * and workers of vLLM and Ray, Python programs whose launcher has ended, files in /dev/shm that no process uses. Then
 * other large processes.
 *
 * Device memory shows in no process's size. The record of a guarded process shows its device memory. An unguarded one may hold more than
 * is shown here, so servers of known names are listed whatever their size.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pwd.h>
#include <string.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/procfs.h"
#include "common/text.h"
#include "doctor/dev_shm.h"
#include "doctor/doctor.h"
#include "doctor/need/need.h"

/* Smaller processes are not worth ending. */
#define LARGE_LEAST (UINT64_C(256) << 20)

/* How programs call themselves that run on after the job that started them. */
static const struct known {
    const char *prefix, *why, *end;
} known[] = {
    {"VLLM::", "a process of vLLM", NULL},
    {"ray::", "a worker of Ray", "ray stop"},
    {"raylet", "Ray's manager of this node", "ray stop"},
    {"sglang::", "a process of SGLang", NULL},
};

static void take(struct need_holders *holders, struct need_holder *holder)
{
    size_t place = holders->count;
    while (place > 0 && (holder->kind < holders->at[place - 1].kind ||
                         (holder->kind == holders->at[place - 1].kind && holder->bytes > holders->at[place - 1].bytes)))
        place--;
    if (holders->count == NEED_HOLDER_CAPACITY) {
        struct need_holder *last = place == NEED_HOLDER_CAPACITY ? holder : &holders->at[--holders->count];
        if (last == holder)
            return;
    }
    memmove(&holders->at[place + 1], &holders->at[place], (holders->count - place) * sizeof holders->at[0]);
    holders->at[place] = *holder;
    holders->count++;
}

/* Returns what runs the process, by its cgroup: a container or a service, and so the command that ends it; NULL if
 * neither. Names consist of characters that a shell takes as they are, or there is no command. */
static char *end_of_group(const struct doctor *doctor, uint32_t pid, bool is_main)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:@-";
    char path[64], group[4096], id[13] = "";
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/cgroup", pid);
    if (doctor_read(doctor, path, group, sizeof group) <= 0)
        return NULL;
    group[strcspn(group, "\n")] = '\0';
    const char *docker = strstr(group, "docker-"), *pod = strstr(group, "libpod-"), *below = strstr(group, "/docker/");
    const char *at = docker != NULL ? docker + 7 : pod != NULL ? pod + 7 : below != NULL ? below + 8 : NULL;
    if (at != NULL && strspn(at, "0123456789abcdef") >= 12 && sscanf(at, "%12[0-9a-f]", id) == 1)
        return text_format("%s stop %s", pod != NULL ? "podman" : "docker", id);
    const char *slash = strrchr(group, '/');
    size_t length = slash != NULL ? strlen(slash + 1) : 0;
    bool is_service = length > 8 && strcmp(slash + 1 + length - 8, ".service") == 0 && slash[1] != '-' &&
                      strspn(slash + 1, plain) == length && strncmp(slash + 1, "user@", 5) != 0;
    bool is_users = strstr(group, "/user@") != NULL;
    if (!is_service || (!is_users && !is_main)) /* not sshd or slurmd for what somebody started through it */
        return NULL;
    return text_format(is_users ? "systemctl --user stop %s" : "sudo systemctl stop %s", slash + 1);
}

static char *end_of_process(const struct doctor *doctor, uint32_t pid, uid_t owner, bool is_main)
{
    char *end = end_of_group(doctor, pid, is_main);
    return end != NULL ? end : text_format("%skill %" PRIu32, owner != geteuid() && geteuid() != 0 ? "sudo " : "", pid);
}

/* Returns what a guarded process holds by its own record, device memory included; 0 if there is no record. */
static uint64_t recorded_bytes(const struct model *model, uint32_t pid)
{
    const struct model_job *job;
    const struct model_process *process;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (process->state == SG_STATE_RUNNING && process->pid == pid)
                return process->live_bytes;
    return 0;
}

static void name_user(char user[33], uint64_t owner)
{
    const struct passwd *entry = owner <= UINT32_MAX ? getpwuid((uid_t)owner) : NULL;
    if (entry != NULL)
        snprintf(user, 33, "%s", entry->pw_name);
    else if (owner <= UINT32_MAX)
        snprintf(user, 33, "%" PRIu64, owner);
    else
        snprintf(user, 33, "-");
}

/* Returns the command line, else the name, of a process. */
static char *read_name(const struct doctor *doctor, const struct doctor_process *process)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/cmdline", process->pid);
    long length = doctor_read(doctor, path, text, sizeof text);
    while (length > 0 && text[length - 1] == '\0')
        length--;
    for (long i = 0; i < length; i++)
        if (text[i] == '\0')
            text[i] = ' ';
    return length > 0 ? text_copy(text, (size_t)length) : text_copy(process->name, sizeof process->name);
}

static const struct known *find_known(const char *name)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strncmp(name, known[i].prefix, strlen(known[i].prefix)) == 0)
            return &known[i];
    return NULL;
}

static void look_at(const struct doctor *doctor, const struct doctor_process *process, struct need_holders *holders)
{
    char path[64], status[8192];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/status", process->pid);
    if (process->pid <= 1 || process->pid == (uint32_t)getpid() || process->state == 'Z' ||
        doctor_read(doctor, path, status, sizeof status) <= 0)
        return;
    uint64_t anonymous = procfs_kib(procfs_number_after(status, "RssAnon"));
    uint64_t shared = procfs_kib(procfs_number_after(status, "RssShmem"));
    uint64_t resident = procfs_kib(procfs_number_after(status, "VmRSS")), owner = procfs_number_after(status, "Uid");
    uint64_t own = anonymous == SG_UNKNOWN || shared == SG_UNKNOWN ? resident : bytes_add(anonymous, shared);
    struct need_holder holder = {.kind = NEED_LARGE, .pid = process->pid, .name = read_name(doctor, process)};
    const struct known *server = find_known(holder.name);
    server = server != NULL ? server : find_known(process->name);
    holder.bytes = bytes_max(own == SG_UNKNOWN ? 0 : own, recorded_bytes(doctor->model, process->pid));
    bool is_orphan = process->parent_pid == 1 && strncmp(process->name, "python", 6) == 0;
    if (server == NULL && holder.bytes < LARGE_LEAST) {
        return;
    }
    if (server != NULL || is_orphan) {
        holder.kind = NEED_LEFTOVER;
        holder.why = server != NULL ? server->why : "what started it has ended";
    }
    name_user(holder.user, owner);
    if (server != NULL && server->end != NULL)
        holder.end = text_copy(server->end, strlen(server->end));
    else
        holder.end = end_of_process(doctor, process->pid, (uid_t)owner, process->parent_pid == 1);
    take(holders, &holder);
}

/* Adds the largest file of /dev/shm that no process uses. */
static void look_at_files(const struct doctor *doctor, struct need_holders *holders)
{
    struct doctor_shm shm;
    doctor_shm_look(doctor, &shm);
    if (shm.is_readable && shm.is_certain && shm.orphan_bytes >= LARGE_LEAST) {
        struct need_holder holder = {.kind = NEED_FILE, .bytes = shm.orphan_bytes, .user = "-"};
        holder.why = shm.orphan_count > 1 ? "and others beside it, that no process uses" : "which no process uses";
        holder.name = text_format("/dev/shm/%s", shm.name);
        holder.end =
            shm.is_name_plain ? text_format("rm -i /dev/shm/%s", shm.name) : text_copy("ls -l /dev/shm", SIZE_MAX);
        take(holders, &holder);
    }
}

void need_holders_find(struct need_holders *holders)
{
    struct doctor *doctor = doctor_learn();
    *holders = (struct need_holders){.count = 0};
    for (size_t i = 0; i < doctor->process_count; i++)
        look_at(doctor, &doctor->processes[i], holders);
    look_at_files(doctor, holders);
}
