/*
 * pressure_inside.c - --on-pressure, in the helper process: runs the command when the library asks. See pressure.h.
 */
#include "launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"
#include "sparkguard_abi.h"

#define VARIABLE_WANTED "SPARKGUARD_WANTED_BYTES"

/* After a question that is in no record the helper rests so long, or until looking for it has taken a twentieth of the
 * time: who shares the registry can ask again and again. */
#define REST_NS INT64_C(100000000)
#define SECOND_NS INT64_C(1000000000)
#define REST_PART 19

/* Says once that the command fails: it may never have worked. */
static void complain_once(int status)
{
    static bool has_complained;
    if (!has_complained && WIFEXITED(status) && WEXITSTATUS(status) != 0)
        fprintf(stderr, "sparkguard: the command of --on-pressure ended with exit status %d\n", WEXITSTATUS(status));
    else if (!has_complained && WIFSIGNALED(status))
        fprintf(stderr, "sparkguard: the command of --on-pressure was killed by %s\n", text_signal(WTERMSIG(status)));
    has_complained = has_complained || status != 0;
}

/* Runs the command in a shell and waits for it. */
static void run_command(uint64_t wanted_bytes, const char *command)
{
    char wanted[32];
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        snprintf(wanted, sizeof wanted, "%" PRIu64, wanted_bytes);
        setenv(VARIABLE_WANTED, wanted, 1);
        launch_become_shell(command);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    complain_once(status);
}

struct helper {
    const char *command, *directory;
    uint64_t job;         /* the hash of the job that it helps */
    int64_t told_ns;      /* time of the latest question that the command has run for; at first of the helper's start */
    int64_t latest_ns;    /* of a question since */
    uint64_t asked_bytes; /* the most that such a question wants; 0: there is none */
    int64_t rest_ns;      /* the time until which the helper looks at no record (CLOCK_MONOTONIC) */
};

/* Takes the question in a record of another job. */
static void look_for_request(int fd, const struct sg_slot *slot, void *data)
{
    struct helper *helper = data;
    int64_t time_ns;
    uint64_t bytes;
    if (slot->job_hash == helper->job ||
        !launch_read_at(fd, offsetof(struct sg_segment, asked_time_ns), &time_ns, sizeof time_ns) ||
        !launch_read_at(fd, offsetof(struct sg_segment, asked_bytes), &bytes, sizeof bytes) ||
        time_ns <= helper->told_ns || time_ns > tool_now_ns())
        return;
    helper->latest_ns = time_ns > helper->latest_ns ? time_ns : helper->latest_ns;
    helper->asked_bytes = bytes > helper->asked_bytes ? bytes : helper->asked_bytes;
}

/* Looks for the question in the records, if it is not too soon for that. */
static void look(struct helper *helper)
{
    const struct timespec until = {helper->rest_ns / SECOND_NS, helper->rest_ns % SECOND_NS};
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    int64_t begin_ns = tool_clock_ns(CLOCK_MONOTONIC);
    helper->asked_bytes = 0;
    launch_each_record(helper->directory, true, look_for_request, helper);
    int64_t end_ns = tool_clock_ns(CLOCK_MONOTONIC), pause_ns = REST_PART * (end_ns - begin_ns);
    pause_ns = pause_ns < REST_NS ? REST_NS : pause_ns;
    pause_ns = pause_ns > SECOND_NS ? SECOND_NS : pause_ns;
    helper->rest_ns = helper->asked_bytes == 0 ? end_ns + pause_ns : 0;
}

/* Called on the library's thread. Returns how long the program still has: it has answered when the command ends. Who
 * shares the registry can ask in anybody's name, and for any number of bytes: what counts is in the records of this
 * user and of root. */
static uint64_t answer(uint64_t wanted_bytes, void *data)
{
    struct helper *helper = data;
    (void)wanted_bytes;
    int64_t now_ns = tool_now_ns();
    helper->told_ns = helper->told_ns < now_ns ? helper->told_ns : now_ns; /* the clock may have been set back */
    look(helper);
    if (helper->asked_bytes == 0)
        return 0;
    helper->told_ns = helper->latest_ns;
    run_command(helper->asked_bytes, helper->command);
    return 0;
}

void launch_pressure_inside(char **argv)
{
    int pipe_end;
    char byte;
    static struct helper helper; /* the library's thread has it */
    int (*help)(uint64_t(*)(uint64_t, void *), void *) = NULL;
    if (argv[1] == NULL || sscanf(argv[1], LAUNCH_PRESSURE_INSIDE "%d", &pipe_end) != 1 || argv[2] == NULL ||
        argv[3] == NULL || argv[4] == NULL)
        return;
    fcntl(pipe_end, F_SETFD, FD_CLOEXEC); /* a command may outlive this process */
    helper = (struct helper){.command = argv[2], .directory = argv[3], .told_ns = tool_now_ns()};
    helper.job = strtoull(argv[4], NULL, 16);
    launch_find_export("sparkguard_help", &help, sizeof help);
    int result = help != NULL ? help(answer, &helper) : -ENOSYS;
    if (result != 0)
        fprintf(stderr, "sparkguard: this job has no give-back callback: %s\n", strerror(-result));
    while (result == 0 && read(pipe_end, &byte, 1) < 0 && errno == EINTR)
        continue;
    _exit(0);
}
