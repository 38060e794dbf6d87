/*
 * library.c - see library.h.
 */
#include "doctor/library.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/launch.h"
#include "common/text.h"

#ifndef SG_LIBDIR
#define SG_LIBDIR "/usr/local/lib"
#endif

char *doctor_library_find(const struct doctor *doctor)
{
    char folder[PATH_MAX];
    if (doctor->root[0] == '\0')
        return launch_own_library(folder);
    char *path = text_format("%s" SG_LIBDIR "/libsparkguard.so", doctor->root);
    if (access(path, F_OK) == 0)
        return path;
    return NULL;
}

/* In the child: becomes a program that does nothing, with its messages in the pipe. */
static void become_trial(const char *path, int complaints)
{
    char *const arguments[] = {(char[]){"sparkguard-doctor"}, (char[]){"--version"}, NULL};
    int nowhere = open("/dev/null", O_RDWR);
    setenv("LD_PRELOAD", path, 1);
    setenv("SPARKGUARD_DISABLE", "1", 1);
    setenv("SPARKGUARD_REPORT", "off", 1);
    if (nowhere < 0 || dup2(nowhere, STDOUT_FILENO) < 0 || dup2(complaints, STDERR_FILENO) < 0)
        _exit(1);
    execv("/proc/self/exe", arguments);
    _exit(1);
}

/* Returns whether the dynamic linker can preload the library. If it cannot, it prints a message and starts the program
 * without it. */
static bool can_preload(const char *path)
{
    char text[4096] = "";
    int ends[2], status = 0;
    size_t length = 0;
    ssize_t got;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return true;
    pid_t child = fork();
    if (child == 0)
        become_trial(path, ends[1]);
    close(ends[1]);
    while (length + 1 < sizeof text && (got = read(ends[0], text + length, sizeof text - 1 - length)) != 0) {
        if (got < 0 && errno != EINTR)
            break;
        length += got > 0 ? (size_t)got : 0;
    }
    text[length] = '\0';
    close(ends[0]);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return strstr(text, "cannot be preloaded") == NULL && status == 0;
}

enum doctor_library doctor_library_judge(const struct doctor *doctor, const char *path)
{
    bool is_ours;
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode) || access(path, R_OK) != 0)
        return DOCTOR_LIBRARY_UNKNOWN;
    if (!launch_is_library(path, &is_ours))
        return DOCTOR_LIBRARY_BAD;
    if (!is_ours)
        return DOCTOR_LIBRARY_FOREIGN;
    return doctor->root[0] != '\0' || can_preload(path) ? DOCTOR_LIBRARY_GOOD : DOCTOR_LIBRARY_BAD;
}
