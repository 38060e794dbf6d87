/*
 * jail.c - --jail=SIZE: runs the program in a systemd scope, whose memory the kernel limits.
 *
 * The child executes systemd-run(1). systemd-run creates the scope around itself and executes this tool again. The
 * tool, now inside, checks that the limit is in place and executes the program. So the program has the child's PID,
 * parent, process group and signals. The launcher stays outside the scope and can report how the program ended. Until
 * the program runs, the messages of systemd-run go into a pipe, so that a failure is reported in one sentence.
 *
 * The program's arguments travel in a memory file, not on the command line of systemd-run. systemd-run may expand
 * variables in its command line. Version 254 added an option for that, which is off by default in scopes but announced
 * to be on in a later version. Older versions reject the option, so it cannot be used to switch the expansion off.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/procfs.h"
#include "launch/launch.h"
#include "observer/observe.h"
#include "common/procfs.h"
#include "sparkguard_abi.h"
#include "common/text.h"
#include "common/tool.h"

#define INSIDE_OPTION "--in-jail="

/* First value in the failure pipe. After JAIL_IS_THERE the errno of exec may follow. */
enum { JAIL_IS_THERE = 0, JAIL_HAS_NO_LIMIT = -1, JAIL_NOT_TRIED = -2 };

/* Returns the prefix of /proc/meminfo, /proc/self/cgroup and /sys/fs/cgroup, as the core uses it. */
static const char *system_root(void)
{
    const char *root = getenv("SPARKGUARD_SYSTEM_ROOT");
    return root == NULL || strcmp(root, "/") == 0 ? "" : root;
}

uint64_t launch_machine_bytes(void)
{
    char path[PROCFS_PATH_CAPACITY], meminfo[4096];
    snprintf(path, sizeof path, "%s/proc/meminfo", system_root());
    return procfs_read_text(path, meminfo, sizeof meminfo) > 0 ? sg_procfs_ordinary_kib(meminfo) * 1024 : 0;
}

bool launch_jail_take(struct launch *launch, const char *text)
{
    struct sg_size size;
    if (sg_parse_size(text, &size) != 0)
        return false;
    launch->jail_bytes = sg_size_of(size, size.percent_milli != 0 ? launch_machine_bytes() : 0);
    return launch->jail_bytes != 0 || (size.bytes == 0 && size.percent_milli == 0); /* "none", 0 */
}

static void send_state(int failure_pipe, int what)
{
    while (write(failure_pipe, &what, sizeof what) < 0 && errno == EINTR)
        continue;
}

bool launch_jail_prepare(struct launch *launch)
{
    if (pipe2(launch->jail_words, O_CLOEXEC) == 0)
        return true;
    fprintf(stderr, "sparkguard: cannot make a pipe: %s\n", strerror(errno));
    return false;
}

/* Writes the program's arguments into a memory file, each with its NUL. Returns the descriptor, or a negative errno. */
static int write_words(char *const *program)
{
    int words = memfd_create("sparkguard", 0);
    if (words < 0)
        return -errno;
    for (; *program != NULL; program++) {
        const ssize_t length = (ssize_t)strlen(*program) + 1;
        ssize_t written = write(words, *program, (size_t)length);
        if (written != length)
            return written < 0 ? -errno : -ENOSPC;
    }
    return words;
}

/* Reads a file of write_words() into a NULL-terminated array. Returns NULL on failure. */
static char **read_program(int words)
{
    struct stat status;
    if (fstat(words, &status) != 0 || status.st_size <= 0)
        return NULL;
    size_t length = (size_t)status.st_size, count = 0;
    char *text = tool_allocate(length + 1, 1);
    if (pread(words, text, length, 0) != (ssize_t)length)
        return NULL;
    char **program = tool_allocate(length + 1, sizeof *program);
    for (size_t at = 0; at < length; at += strlen(text + at) + 1)
        program[count++] = text + at;
    return program;
}

void launch_jail_enter(const struct launch *launch, int failure_pipe)
{
    char inside[96], limit[64];
    char *description = text_format("--description=sparkguard --jail: %s", text_printable(launch->program[0], false));
    int words = write_words(launch->program), saved_stderr = fcntl(STDERR_FILENO, F_DUPFD, 3);
    snprintf(inside, sizeof inside, INSIDE_OPTION "%d,%d,%d,%" PRIu64 ",%d", failure_pipe, saved_stderr, words,
             launch->jail_bytes, launch->is_quiet);
    snprintf(limit, sizeof limit, "MemoryMax=%" PRIu64, launch->jail_bytes);
    char *const arguments[] = {"systemd-run",
                               geteuid() == 0 ? "--system" : "--user",
                               "--scope",
                               "--quiet",
                               "--collect",
                               "--no-ask-password",
                               description,
                               "-p",
                               limit,
                               "-p",
                               "MemorySwapMax=0",
                               "--",
                               launch_own_path(),
                               inside,
                               NULL};
    fcntl(failure_pipe, F_SETFD, 0);
    dup2(launch->jail_words[1], STDERR_FILENO);
    if (words < 0) {
        dprintf(STDERR_FILENO, "its arguments cannot be passed on: %s\n", strerror(-words));
        _exit(LAUNCH_FAILED);
    }
    execvp(arguments[0], arguments);
    dprintf(STDERR_FILENO, "%s\n", errno == ENOENT ? "there is no such program" : strerror(errno));
    _exit(LAUNCH_FAILED);
}

/* Returns the first line of the messages of systemd-run, with control characters escaped. */
static char *read_words(int words)
{
    char text[512] = "";
    fcntl(words, F_SETFL, O_NONBLOCK);
    ssize_t length = read(words, text, sizeof text - 1);
    text[length > 0 ? length : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    return text_printable(text[0] != '\0' ? text : "no reason given", false);
}

bool launch_jail_wait(struct launch *launch, int failure_pipe)
{
    int what = JAIL_NOT_TRIED;
    close(launch->jail_words[1]);
    while (read(failure_pipe, &what, sizeof what) < 0 && errno == EINTR)
        continue;
    if (what == JAIL_HAS_NO_LIMIT) {
        fputs("sparkguard: --jail: systemd made the scope without a memory limit (no memory controller?); "
              "nothing was started\n",
              stderr);
    } else if (what != JAIL_IS_THERE) {
        char *words = read_words(launch->jail_words[0]);
        fprintf(stderr, "sparkguard: --jail: systemd-run made no scope: %s; nothing was started\n", words);
    }
    close(launch->jail_words[0]);
    return what == JAIL_IS_THERE;
}

/* Returns whether a cgroup above this process has a limit of at most `bytes`. */
static bool is_bounded(uint64_t bytes)
{
    struct sg_observation seen;
    sg_observe(-1, &(const struct sg_observer){.job = 0}, &seen);
    for (uint32_t i = 1; i < seen.count; i++)
        if (seen.at[i].limit_bytes <= bytes)
            return true;
    return false;
}

void launch_jail_inside(char **argv)
{
    int failure_pipe, saved_stderr, words, is_quiet;
    uint64_t bytes;
    if (argv[1] == NULL || sscanf(argv[1], INSIDE_OPTION "%d,%d,%d,%" SCNu64 ",%d", &failure_pipe, &saved_stderr,
                                  &words, &bytes, &is_quiet) != 5)
        return;
    char **program = read_program(words);
    if (program == NULL)
        return;
    close(words);
    fcntl(failure_pipe, F_SETFD, FD_CLOEXEC);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    if (!is_bounded(bytes)) {
        send_state(failure_pipe, JAIL_HAS_NO_LIMIT);
        _exit(LAUNCH_FAILED);
    }
    if (!is_quiet)
        fprintf(stderr,
                "sparkguard: jail of %s: the kernel bounds heap, mapped, pinned and managed memory; the guard bounds "
                "device memory (cudaMalloc)\n",
                text_size(bytes));
    send_state(failure_pipe, JAIL_IS_THERE);
    execvp(program[0], program);
    send_state(failure_pipe, errno);
    _exit(LAUNCH_NOT_FOUND);
}
