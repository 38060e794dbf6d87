/*
 * on_refusal.c - --on-refusal: a command that runs after a request of the job was refused.
 *
 * A helper process of the launcher looks at the job's records once a second, and once more when the program has ended.
 * So a refusal costs the program nothing beside its entry in the record. The helper ends with the launcher; a command
 * that still runs then goes on.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/tool.h"
#include "launch/launch.h"
#include "model/host/host.h"
#include "model/model.h"
#include "sparkguard_abi.h"

#define SECOND_NS INT64_C(1000000000)

struct hook {
    const struct launch *launch;
    int64_t told_ns; /* time of the refusal that the command ran for last; at first of the program's start */
    int64_t ran_ns;  /* when it ran last (CLOCK_MONOTONIC); 0: never */
    pid_t command;   /* the one that runs; 0: none */
};

struct found {
    const struct hook *hook;
    struct sg_refusal refusal; /* the latest that was not told; its time is 0 if there is none */
    struct sg_slot slot;       /* of its process */
    uint32_t pid_namespace;    /* in which slot.pid is a number; 0: unknown */
};

/* Takes the latest refusal of a record of this job that was not told yet. What observe mode would have refused is
 * none. */
static void look_for_refusal(int fd, const struct sg_slot *slot, void *data)
{
    struct found *found = data;
    const struct hook *hook = found->hook;
    struct sg_refusal ring[SG_REFUSAL_CAPACITY];
    char job[SG_JOB_BYTES + 1] = "";
    uint32_t space;
    if (!launch_read_at(fd, offsetof(struct sg_segment, job), job, SG_JOB_BYTES) ||
        strcmp(job, hook->launch->job) != 0 ||
        !launch_read_at(fd, offsetof(struct sg_segment, pid_namespace), &space, sizeof space) ||
        !launch_read_at(fd, offsetof(struct sg_segment, refusal), ring, sizeof ring))
        return;
    for (int i = 0; i < SG_REFUSAL_CAPACITY; i++) {
        const struct sg_refusal *refusal = &ring[i];
        if (refusal->sequence == 0 || refusal->observed != 0 || refusal->reason > SG_REASON_DEVICE ||
            refusal->time_ns <= hook->told_ns || refusal->time_ns <= found->refusal.time_ns ||
            refusal->time_ns > tool_now_ns())
            continue;
        found->refusal = *refusal;
        found->slot = *slot;
        found->pid_namespace = space;
    }
}

/* The name of a function and nothing else, whatever the record says. */
static void copy_call(char *to, const char call[SG_CALL_BYTES])
{
    static const char known[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    size_t length = 0;
    for (; length < SG_CALL_BYTES && call[length] != '\0' && strchr(known, call[length]) != NULL; length++)
        to[length] = call[length];
    to[length] = '\0';
}

/* Stores the process's number in this PID namespace; "" where it is unknown. */
static void write_number(char *to, size_t capacity, const struct found *found)
{
    const struct sg_slot *slot = &found->slot;
    uint32_t pid = host_pid_of(slot->pid, slot->start_ticks, found->pid_namespace);
    if (pid == 0 && host_is_own_namespace(found->pid_namespace)) /* it has ended */
        pid = slot->pid;
    host_pids_forget();
    to[0] = '\0';
    if (pid != 0)
        snprintf(to, capacity, "%" PRIu32, pid);
}

static void become_command(const struct hook *hook, const struct found *found)
{
    char bytes[24], pid[16], call[SG_CALL_BYTES + 1];
    snprintf(bytes, sizeof bytes, "%" PRIu64, found->refusal.size_bytes);
    write_number(pid, sizeof pid, found);
    copy_call(call, found->refusal.call);
    setenv("SPARKGUARD_REFUSED_BYTES", bytes, 1);
    setenv("SPARKGUARD_REFUSED_CALL", call, 1);
    setenv("SPARKGUARD_REFUSED_REASON", model_reason_name[found->refusal.reason], 1);
    setenv("SPARKGUARD_REFUSED_PID", pid, 1);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC); /* the terminal's input is the program's */
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    launch_become_shell(hook->launch->refusal.command);
}

/* Runs the command where a refusal is to be told. One that came within a second of the one told last is not, as neither
 * are those that come while the command runs. */
static void tell(struct hook *hook)
{
    int64_t now_ns = tool_clock_ns(CLOCK_MONOTONIC), real_ns = tool_now_ns();
    if (hook->command > 0 && waitpid(hook->command, NULL, WNOHANG) == 0)
        return;
    hook->command = 0;
    hook->told_ns = hook->told_ns < real_ns ? hook->told_ns : real_ns; /* the clock may have been set back */
    struct found found = {.hook = hook};
    launch_each_record(hook->launch->directory, false, look_for_refusal, &found);
    bool is_first = hook->ran_ns == 0;
    if (found.refusal.time_ns == 0 ||
        (!is_first && (now_ns - hook->ran_ns < SECOND_NS || found.refusal.time_ns - hook->told_ns < SECOND_NS)))
        return;
    hook->told_ns = found.refusal.time_ns;
    hook->ran_ns = now_ns;
    hook->command = fork();
    if (hook->command == 0)
        become_command(hook, &found);
}

static void run_helper(const struct launch *launch, int pipe_end)
{
    struct hook hook = {.launch = launch, .told_ns = launch->started_ns};
    struct pollfd end = {.fd = pipe_end, .events = POLLIN};
    setpgid(0, 0); /* ^C is for the program */
    while (poll(&end, 1, 1000) <= 0)
        tell(&hook);
    tell(&hook);
    _exit(0);
}

void launch_refusal_begin(struct launch *launch)
{
    launch_helper_start(launch, &launch->refusal, "--on-refusal", "--on-refusal has no effect", run_helper);
}

void launch_refusal_end(struct launch *launch)
{
    if (launch->refusal.pid == 0)
        return;
    close(launch->refusal.to_helper);
    while (waitpid(launch->refusal.pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    launch->refusal.pid = 0;
}
