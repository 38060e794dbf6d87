/*
 * claim.c - the launcher's side of --claim; see claim.h.
 */
#include "launch/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/command.h"
#include "common/text.h"
#include "common/tool.h"
#include "launch/launch.h"
#include "observer/control.h"
#include "observer/observe.h"
#include "model/model.h"
#include "sparkguard_abi.h"

/* --claim=auto adds this much to the highest peak on record. */
enum { MARGIN_PERCENT = 10 };

/* A claim is unused if the job has taken less than this part of it. A Python program holds some memory by itself. */
enum { USED_PART = 16 };

#define MIB (UINT64_C(1) << 20)

const struct launch_claim_option_info launch_claim_options[CLAIM_OPTION_COUNT] = {
    [CLAIM_SIZE] = {"claim", "SIZE|auto", "80G",
                    "set memory aside for PROGRAM before it starts; auto: the highest peak on record for this command "
                    "line, and 10% more",
                    SG_OPTION_LIMIT},
    [CLAIM_WAIT] = {"claim-wait", "TIME", "10m",
                    "wait this long for the claim, in the order of the claims (0); exit 124 without it",
                    SG_OPTION_WAIT},
    [CLAIM_TTL] = {"claim-ttl", "TIME", "15m",
                   "give the claim up if less than a sixteenth of it is in use after this time", SG_OPTION_WAIT},
    [CLAIM_PRIORITY] = {"priority", "NUMBER", "10",
                        "a waiting claim goes before all of lower numbers (0, -1000 to 1000)", SG_OPTION_OOM_SCORE_ADJ},
    [CLAIM_SHARE] = {"share", "NUMBER", "2",
                     "when others need memory, a job of share 2 keeps twice as much beyond its claim as one of share 1 "
                     "(1, to 1000)",
                     SG_OPTION_OOM_SCORE_ADJ},
};

static bool take_size(struct launch_claim *claim, const char *text)
{
    struct sg_size size;
    claim->is_wanted = true;
    claim->is_auto = strcmp(text, "auto") == 0;
    if (claim->is_auto)
        return true;
    if (sg_parse_size(text, &size) != 0)
        return false;
    claim->bytes = sg_size_of(size, size.percent_milli != 0 ? launch_machine_bytes() : 0);
    claim->is_none = size.bytes == 0 && size.percent_milli == 0; /* "none", 0 */
    claim->is_wanted = !claim->is_none;
    return claim->bytes != 0 || claim->is_none;
}

static bool take_share(struct launch_claim *claim, const char *text)
{
    int64_t share;
    if (sg_parse_number(text, &share) != 0 || share < SG_SHARE_MIN || share > SG_SHARE_MAX)
        return false;
    claim->share = (uint64_t)share;
    return true;
}

bool launch_claim_take(struct launch_claim *claim, enum launch_claim_option option, const char *text)
{
    claim->has_details = claim->has_details || option != CLAIM_SIZE;
    switch (option) {
    case CLAIM_SIZE:
        return take_size(claim, text);
    case CLAIM_WAIT:
        return sg_parse_time(text, &claim->wait_ns) == 0;
    case CLAIM_TTL:
        return sg_parse_time(text, &claim->ttl_ns) == 0;
    case CLAIM_PRIORITY:
        return sg_parse_number(text, &claim->priority) == 0 && claim->priority >= -1000 && claim->priority <= 1000;
    case CLAIM_SHARE:
        return take_share(claim, text);
    case CLAIM_OPTION_COUNT:
        break;
    }
    return false;
}

/* ---- the size of --claim=auto ------------------------------------------------------------------------------------ */

/* Returns the program's command line as the record of a running program has it: arguments separated by blanks, cut to
 * the record's size. */
static char *command_on_record(char *const *program)
{
    char *all = tool_allocate(SG_COMMAND_BYTES, 1);
    size_t length = 0;
    for (; *program != NULL && length < SG_COMMAND_BYTES - 1; program++)
        length += (size_t)snprintf(all + length, SG_COMMAND_BYTES - length, "%s%s", length != 0 ? " " : "", *program);
    return all;
}

/* The recorded runs of a command line. */
struct past {
    uint32_t hash;
    char *command; /* as the record of a running program has it */
    uint64_t peak_bytes;
    size_t runs, refused_runs; /* what a run needs that was refused memory is not known */
};

/* Whether the process was started by this command line. The record may show another command: that of the interpreter
 * of a script, or of a program to which a script has handed over. A program that runs, or whose
 * launcher was killed, has no hash yet. */
static bool is_started_by(const struct model_process *process, const struct past *past)
{
    return process->command_hash != 0 ? process->command_hash == past->hash
                                      : strcmp(process->command, past->command) == 0;
}

/* Whether a process of the run was refused memory. In observe mode nothing is refused: the peak is the need. */
static bool has_refused(const struct model_job *job, size_t run)
{
    const struct model_process *process;
    DL_FOREACH (job->processes, process)
        if (process->run == run && process->refused_count != 0 && !process->is_observing)
            return true;
    return false;
}

/* Adds a run if its first process was started by the command line. */
static void add_run(struct past *past, const struct model_job *job, size_t number)
{
    const struct model_run *run = &job->runs[number];
    const struct model_process *process;
    DL_FOREACH (job->processes, process) {
        if (process->run != number || process->pid != run->first_pid || process->is_claiming ||
            !is_started_by(process, past))
            continue;
        if (has_refused(job, number)) {
            past->refused_runs++;
        } else {
            past->runs++;
            past->peak_bytes = bytes_max(past->peak_bytes, run->peak_bytes);
        }
        return;
    }
}

static struct past find_past(const struct launch *launch)
{
    const struct model_scope scope = {
        .directories = &launch->directory, .directory_count = 1, .is_all = true, .wants_history = true};
    struct model *model = model_build(&scope);
    struct past past = {.hash = launch_command_hash(launch->program), .command = command_on_record(launch->program)};
    const struct model_job *job;
    DL_FOREACH (model->jobs, job)
        for (size_t run = 0; run < job->run_count; run++)
            add_run(&past, job, run);
    return past;
}

static int find_auto(struct launch *launch)
{
    const struct past past = find_past(launch);
    if (past.peak_bytes == 0) {
        fprintf(stderr, "sparkguard: --claim=auto: %s; give a size this time, as --claim=80G; nothing was started\n",
                past.refused_runs != 0
                    ? "each run of this command line on record was refused memory, so none shows what it needs"
                    : "no run of this command line is on record");
        return LAUNCH_USAGE;
    }
    launch->claim.bytes = (past.peak_bytes + past.peak_bytes / 100 * MARGIN_PERCENT + MIB - 1) / MIB * MIB;
    if (!launch->is_quiet)
        fprintf(stderr, "sparkguard: --claim=auto: claims %s: the highest peak of %zu recorded run%s, %s, and %d%%\n",
                text_size(launch->claim.bytes), past.runs, past.runs == 1 ? "" : "s", text_size(past.peak_bytes),
                MARGIN_PERCENT);
    return 0;
}

/* ---- before and after the program starts ------------------------------------------------------------------------- */

int launch_claim_prepare(struct launch *launch)
{
    int ends[2];
    int failure = launch->claim.is_auto ? find_auto(launch) : 0;
    if (failure != 0)
        return failure;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        fprintf(stderr, "sparkguard: cannot make a socket: %s\n", strerror(errno));
        return LAUNCH_FAILED;
    }
    const struct launch_claim_order order = {launch->claim.bytes, launch->claim.wait_ns, launch->claim.priority,
                                             launch->claim.share, launch->is_quiet};
    launch->claim.to_child = ends[0];
    launch->claim.to_launcher = ends[1];
    return send(ends[0], &order, sizeof order, MSG_NOSIGNAL) == (ssize_t)sizeof order ? 0 : LAUNCH_FAILED;
}

void launch_claim_enter(struct launch *launch)
{
    const struct launch_claim *claim = &launch->claim;
    size_t count = 0;
    while (launch->program[count] != NULL)
        count++;
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers */
    char **all = tool_allocate(count + 3, sizeof *all);
    all[0] = launch_own_path();
    all[1] = text_format(COMMAND_IN_CLAIM "%d", claim->to_launcher);
    for (size_t i = 0; i < count; i++)
        all[2 + i] = launch->program[i];
    launch->program = all;
    fcntl(claim->to_launcher, F_SETFD, 0);
}

/* Receives one message of the child. Returns false if the child has closed its end. */
static bool receive(struct launch_claim *claim, struct launch_claim_message *message)
{
    struct iovec part = {message, sizeof *message};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr packet = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t length;
    do
        length = recvmsg(claim->to_child, &packet, MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    if (length != (ssize_t)sizeof *message)
        return false;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&packet);
    if (header != NULL && header->cmsg_type == SCM_RIGHTS) {
        memcpy(&claim->fd, CMSG_DATA(header), sizeof claim->fd);
        claim->is_held = true;
        clock_gettime(CLOCK_MONOTONIC, &claim->granted);
    }
    return true;
}

/* Forwards a signal that the launcher alone has got. The terminal sends its signals to the child as well. */
static void forward(int signals, pid_t child)
{
    struct signalfd_siginfo info;
    if (read(signals, &info, sizeof info) == (ssize_t)sizeof info && info.ssi_code <= 0)
        kill(child, (int)info.ssi_signo);
}

static int end_of(const struct launch_claim_message *message, const struct launch *launch)
{
    if (message->what != CLAIM_NOT_EXECUTED)
        return message->what == CLAIM_WITHOUT ? LAUNCH_FAILED : LAUNCH_NO_CLAIM;
    return launch_program_say_failed("sparkguard", launch->program[0], message->failure);
}

int launch_claim_wait(struct launch *launch)
{
    static const int forwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    struct launch_claim *claim = &launch->claim;
    struct launch_claim_message message;
    sigset_t set;
    int code = 0;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof forwarded / sizeof forwarded[0]; i++)
        sigaddset(&set, forwarded[i]);
    struct pollfd of[] = {{claim->to_child, POLLIN, 0}, {signalfd(-1, &set, SFD_CLOEXEC), POLLIN, 0}};
    close(claim->to_launcher);
    for (bool is_open = true; is_open && code == 0;) {
        if (poll(of, 2, -1) < 0)
            continue;
        if ((of[1].revents & POLLIN) != 0)
            forward(of[1].fd, launch->child);
        if ((of[0].revents & (POLLIN | POLLHUP | POLLERR)) == 0)
            continue;
        is_open = receive(claim, &message);
        if (is_open && message.what != CLAIM_HELD)
            code = end_of(&message, launch);
    }
    close(of[1].fd);
    close(claim->to_child);
    return code;
}

void launch_claim_say_ended(const struct launch *launch)
{
    bool is_killed = WIFSIGNALED(launch->wait_status);
    fprintf(stderr, "sparkguard: no claim of %s: %s%s while it waited; nothing was started\n",
            text_size(launch->claim.bytes), is_killed ? "killed by " : "ended",
            is_killed ? text_signal(WTERMSIG(launch->wait_status)) : "");
}

void launch_claim_end(struct launch *launch)
{
    if (!launch->claim.is_held)
        return;
    if (sg_control_begin(launch->directory) == 0) { /* what of the job still runs is not to take it for a loss */
        sg_control_give_up_claim(model_own_job(launch->job, launch->is_new_job), (uint32_t)launch->child);
        sg_control_wake();
    }
    close(launch->claim.fd);
    launch->claim.is_held = false;
}

bool launch_claim_check_use(struct launch *launch, struct timespec *left)
{
    struct launch_claim *claim = &launch->claim;
    struct timespec now;
    if (!claim->is_held || claim->ttl_ns == 0)
        return false;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t since_ns =
        (uint64_t)((now.tv_sec - claim->granted.tv_sec) * 1000000000 + (now.tv_nsec - claim->granted.tv_nsec));
    if (since_ns < claim->ttl_ns) {
        uint64_t left_ns = claim->ttl_ns - since_ns < 1000000 ? 1000000 : claim->ttl_ns - since_ns;
        *left = (struct timespec){(time_t)(left_ns / 1000000000), (long)(left_ns % 1000000000)};
        return true;
    }
    struct sg_observation seen;
    sg_observe(claim->fd, &(const struct sg_observer){.job = 0}, &seen);
    claim->ttl_ns = 0; /* looked at once */
    if (!seen.has_registry ||
        sg_observe_held_by(model_own_job(launch->job, launch->is_new_job)) >= claim->bytes / USED_PART)
        return false;
    launch_claim_end(launch);
    if (!launch->is_quiet)
        fprintf(stderr, "sparkguard: the claim of %s is given up: it was not used within %s (--claim-ttl)\n",
                text_size(claim->bytes), text_duration((int64_t)since_ns));
    return false;
}
