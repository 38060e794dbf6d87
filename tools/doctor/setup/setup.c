/*
 * setup.c - see setup.h: prints the script, and finds the library, the runtime and the package's files for it.
 */
#include <libgen.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/text.h"
#include "doctor/library.h"
#include "doctor/setup/setup.h"
#include "sparkguard_abi.h"

#ifndef SG_SYSTEMDIR
#define SG_SYSTEMDIR "/usr/local/share/sparkguard/system"
#endif

/* Returns whether a file or folder can be changed by root alone, and each folder above it too. A folder with the sticky
 * bit counts for what root has put there. */
static bool is_roots(const char *path)
{
    struct stat status;
    char *at = text_copy(path, PATH_MAX);
    bool is_good = at[0] == '/';
    while (is_good) {
        is_good =
            stat(at, &status) == 0 && status.st_uid == 0 &&
            ((status.st_mode & (S_IWGRP | S_IWOTH)) == 0 || (S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX)));
        if (strcmp(at, "/") == 0)
            break;
        char *slash = strrchr(at, '/');
        slash[slash == at] = '\0';
    }
    return is_good;
}

/* Returns whether a script can hold the path as it is. */
static bool is_plain(const char *path)
{
    return path[0] == '/' &&
           path[strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-")] == '\0';
}

char *setup_find_library(const struct doctor *doctor)
{
    char *found = doctor_library_find(doctor), *path = NULL;
    if (found == NULL) {
        fputs("sparkguard-doctor: libsparkguard.so is not installed: make install, or the package\n", stderr);
        return NULL;
    }
    if (doctor->root[0] != '\0')
        path = text_copy(found + strlen(doctor->root), PATH_MAX);
    else if (doctor_library_judge(doctor, found) == DOCTOR_LIBRARY_GOOD && is_plain(found) && is_roots(found))
        path = text_copy(found, PATH_MAX);
    if (path == NULL) {
        fprintf(stderr,
                "sparkguard-doctor: all logins would load %s, which others than root can replace or which cannot be "
                "loaded; install it first: make install, or the package\n",
                text_printable(found, true));
    }
    return path;
}

/* Returns the path of a program that is installed beside this one, without the root; "" if it is not. */
static char *find_beside(const struct doctor *doctor, const char *name)
{
    static const char *const folders[] = {"/usr/local/bin", "/usr/bin", NULL};
    char self[PATH_MAX] = "";
    if (doctor->root[0] == '\0' && readlink("/proc/self/exe", self, sizeof self - 1) > 0) {
        char *beside = text_format("%s/%s", dirname(self), name);
        if (access(beside, X_OK) == 0 && is_plain(beside) && is_roots(beside))
            return beside;
    }
    for (int i = 0; folders[i] != NULL; i++) {
        char *path = text_format("%s/%s", folders[i], name);
        if (doctor_exists(doctor, path))
            return path;
    }
    return text_copy("", 1);
}

/* Returns the folder of the package's files; in the build folder they are beside this program. NULL after a message on
 * stderr: not there, or not root's alone to replace. */
static char *find_files(const struct doctor *doctor, const char *self)
{
    char *beside = text_copy(self, PATH_MAX);
    char *folders[] = {text_format("%s" SG_SYSTEMDIR, doctor->root), text_format("%s/system", dirname(beside))};
    char *found = NULL;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char *script = text_format("%s/setup.sh", folders[i]);
        if (found == NULL && access(script, R_OK) == 0 && is_plain(script) &&
            (doctor->root[0] != '\0' || is_roots(script)))
            found = folders[i];
    }
    if (found == NULL)
        fputs("sparkguard-doctor: " SG_SYSTEMDIR "/setup.sh is not installed, or others than root can replace it: make "
              "install-system, or the package\n",
              stderr);
    return found;
}

/* Copies the script, without its first line. */
static void copy_script(const char *folder, FILE *stream)
{
    char *path = text_format("%s/setup.sh", folder), bytes[4096];
    FILE *script = fopen(path, "re");
    size_t got = 0;
    if (script != NULL && fgets(bytes, sizeof bytes, script) != NULL)
        while ((got = fread(bytes, 1, sizeof bytes, script)) > 0)
            fwrite(bytes, 1, got, stream);
    if (script != NULL)
        fclose(script);
}

int setup_print(const struct doctor *doctor, bool is_undo, FILE *stream)
{
    char self[PATH_MAX] = "", *library = setup_find_library(doctor), *folder = NULL;
    if (library != NULL && readlink("/proc/self/exe", self, sizeof self - 1) > 0)
        folder = find_files(doctor, self);
    if (folder != NULL) {
        fprintf(stream,
                "#!/bin/sh\n"
                "# Made by sparkguard-doctor --setup%s, version " SG_VERSION_TEXT ".\n"
                "# Read it, run it as root: sudo sh FILE. It can be run again.%s\n"
                "# Exit status: 0 all is done, 1 something was left; lines that begin with \"left:\" say what.\n"
                "task=%s\ndoctor=%s\nbrought=%s\nfiles=" SG_SYSTEMDIR "\nlibrary=%s\nruntime=%s\n",
                is_undo ? "=undo" : "", is_undo ? "" : " It is taken back by: sparkguard-doctor --setup=undo | sudo sh",
                is_undo ? "undo" : "set_up", self, folder, library, find_beside(doctor, "sparkguard-runtime"));
        copy_script(folder, stream);
    }
    return folder != NULL ? SETUP_DONE : SETUP_NONE;
}
