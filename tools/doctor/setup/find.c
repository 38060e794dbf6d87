/*
 * find.c - see setup.h: programs, files and their sums, below the root.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"
#include "doctor/library.h"
#include "doctor/setup/setup.h"

enum { FILE_MAX_BYTES = 1 << 20 };

enum setup_file setup_read(const struct doctor *doctor, const char *path, char **text, size_t *length)
{
    struct stat status;
    char *full = text_format("%s%s", doctor->root, path);
    int found = lstat(full, &status), reason = errno;
    enum setup_file result = SETUP_UNREADABLE;
    *text = NULL;
    *length = 0;
    if (found != 0) {
        result = reason == ENOENT || reason == ENOTDIR ? SETUP_ABSENT : SETUP_UNREADABLE;
    } else if (!S_ISREG(status.st_mode) || status.st_size > FILE_MAX_BYTES) {
        result = SETUP_ODD;
    } else {
        int fd = open(full, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        char *bytes = tool_allocate(FILE_MAX_BYTES + 2, 1);
        ssize_t got = 0;
        while (fd >= 0 && *length <= FILE_MAX_BYTES &&
               (got = read(fd, bytes + *length, FILE_MAX_BYTES + 1 - *length)) > 0)
            *length += (size_t)got;
        if (fd >= 0 && got == 0) {
            result = SETUP_READ;
            *text = bytes;
        } else {
            free(bytes);
        }
        if (fd >= 0)
            close(fd);
    }
    free(full);
    return result;
}

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
    free(at);
    return is_good;
}

/* Returns whether a script can hold the path as it is. */
static bool is_plain(const char *path)
{
    return path[0] == '/' &&
           path[strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-")] == '\0';
}

char *setup_find_program(const struct doctor *doctor, const char *name)
{
    static const char *const folders[] = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin",
                                          "/sbin",           "/bin",           NULL};
    for (int i = 0; name[0] != '/' && folders[i] != NULL; i++) {
        char *path = text_format("%s/%s", folders[i], name);
        if (doctor_exists(doctor, path))
            return path;
        free(path);
    }
    return name[0] == '/' && is_plain(name) && doctor_exists(doctor, name) ? text_copy(name, PATH_MAX) : NULL;
}

bool setup_is_own(const struct doctor *doctor, const char *path)
{
    static const char name[] = "sparkguard-runtime";
    char *full = text_format("%s%s", doctor->root, path), *real = realpath(full, NULL), *text = NULL;
    size_t length, root_length = strlen(doctor->root);
    const char *target = real != NULL && strncmp(real, doctor->root, root_length) == 0 ? real + root_length : path;
    bool is_own = strncmp(path, SETUP_WRAPPERS "/", sizeof SETUP_WRAPPERS) == 0 ||
                  strncmp(target, SETUP_WRAPPERS "/", sizeof SETUP_WRAPPERS) == 0 ||
                  strcmp(strrchr(path, '/') + 1, name) == 0 || strcmp(strrchr(target, '/') + 1, name) == 0;
    if (!is_own && setup_read(doctor, target, &text, &length) == SETUP_READ)
        is_own = strncmp(text, "#!", 2) == 0 && strstr(text, name) != NULL;
    free(text);
    free(real);
    free(full);
    return is_own;
}

char *setup_find_library(const struct doctor *doctor)
{
    char *found = doctor_library_find(doctor), *printable, *path = NULL;
    if (found == NULL) {
        fputs("sparkguard-doctor: libsparkguard.so is not installed: make install, or the package\n", stderr);
        return NULL;
    }
    if (doctor->root[0] != '\0')
        path = text_copy(found + strlen(doctor->root), PATH_MAX);
    else if (doctor_library_judge(doctor, found) == DOCTOR_LIBRARY_GOOD && is_plain(found) && is_roots(found))
        path = text_copy(found, PATH_MAX);
    if (path == NULL) {
        printable = text_printable(found, true);
        fprintf(stderr,
                "sparkguard-doctor: all logins would load %s, which others than root can replace or which cannot be "
                "loaded; install it first: make install, or the package\n",
                printable);
        free(printable);
    }
    free(found);
    return path;
}

char *setup_find_runtime(const struct doctor *doctor)
{
    char self[PATH_MAX] = "";
    if (doctor->root[0] == '\0' && readlink("/proc/self/exe", self, sizeof self - 1) > 0) {
        char *beside = text_format("%s/sparkguard-runtime", dirname(self));
        if (access(beside, X_OK) == 0 && is_plain(beside) && is_roots(beside))
            return beside;
        free(beside);
    }
    return setup_find_program(doctor, "sparkguard-runtime");
}

/* The CRC of POSIX's cksum: of the bytes, then of the length's bytes, the lowest first. */
static uint32_t add_byte(uint32_t crc, unsigned byte)
{
    crc ^= (uint32_t)byte << 24;
    for (int bit = 0; bit < 8; bit++)
        crc = crc & UINT32_C(0x80000000) ? crc << 1 ^ UINT32_C(0x04c11db7) : crc << 1;
    return crc;
}

const char *setup_sum(char sum[SETUP_SUM_CAPACITY], const char *bytes, size_t length)
{
    uint32_t crc = 0;
    for (size_t i = 0; i < length; i++)
        crc = add_byte(crc, (unsigned char)bytes[i]);
    for (size_t rest = length; rest > 0; rest >>= 8)
        crc = add_byte(crc, rest & 0xff);
    snprintf(sum, SETUP_SUM_CAPACITY, "%" PRIu32 ":%zu", (uint32_t)~crc, length);
    return sum;
}
