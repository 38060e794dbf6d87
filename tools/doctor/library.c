/*
 * library.c - see library.h.
 */
#include "doctor/library.h"

#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch/check/check.h"
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

/* Returns whether the dynamic linker can preload the library: into this tool, with the guard disabled. If it cannot, it
 * prints a message and starts the program without it. */
static bool can_preload(const char *path)
{
    const struct check_variable variables[] = {
        {"LD_PRELOAD", NULL}, {"SPARKGUARD_DISABLE", "1"}, {"SPARKGUARD_REPORT", "off"}, {NULL, NULL}};
    struct check_trial trial;
    int status;
    bool is_started = check_trial_start_probe(&trial, path, CHECK_PROBE_LIMITED, variables);
    const char *words = check_trial_end(&trial, &status);
    return !is_started || (strstr(words, "cannot be preloaded") == NULL && status == 0);
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
