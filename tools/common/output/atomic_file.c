/*
 * atomic_file.c - see atomic_file.h.
 */
#include "common/output/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/text.h"

struct output {
    void (*put)(FILE *stream, void *content);
    void *content;
};

static bool is_trusted(const struct stat *status)
{
    return status->st_uid == geteuid() || status->st_uid == 0;
}

/* Returns whether nobody but this user and root can put another file at a path: a link there leads where they want. */
static bool is_ours_alone(const char *path, const struct stat *link)
{
    struct stat folder;
    bool is_known = stat(dirname(text_copy(path, strlen(path))), &folder) == 0;
    return is_known && is_trusted(link) && is_trusted(&folder) && (folder.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* Stores in *is_link whether the path is a link that is followed. */
static bool is_in_place(const char *path, bool *is_link)
{
    struct stat status;
    *is_link = false;
    if (lstat(path, &status) != 0 || S_ISREG(status.st_mode) || (S_ISFIFO(status.st_mode) && !is_trusted(&status)))
        return false;
    *is_link = S_ISLNK(status.st_mode) && is_ours_alone(path, &status);
    return *is_link || !S_ISLNK(status.st_mode);
}

bool atomic_file_is_in_place(const char *path)
{
    bool is_link;
    return is_in_place(path, &is_link);
}

/* Closes the stream. Returns 0, or the error if writing failed. */
static int write_stream(const struct output *output, FILE *stream)
{
    if (stream == NULL)
        return errno;
    errno = 0;
    output->put(stream, output->content);
    int error = 0;
    if (fflush(stream) != 0 || ferror(stream) != 0)
        error = errno != 0 ? errno : EIO;
    return fclose(stream) != 0 && error == 0 ? errno : error;
}

/* Opens a pipe, a terminal or a link to a file. What another user puts there meanwhile is not followed and not cut. */
static FILE *open_in_place(const char *path, bool is_link)
{
    struct stat status;
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | (is_link ? O_CREAT | O_TRUNC : O_NOFOLLOW), 0666);
    if (fd >= 0 && !is_link && (fstat(fd, &status) != 0 || S_ISREG(status.st_mode))) {
        close(fd);
        errno = EPERM;
        return NULL;
    }
    return fd >= 0 ? fdopen(fd, "w") : NULL;
}

/* Writes a temporary file and renames it, so that a reader always sees a complete file, also after a failure. */
static int replace_file(const struct output *output, const char *path)
{
    char *beside = text_format("%s.XXXXXX", path);
    mode_t mask = umask(0);
    umask(mask);
    int fd = mkostemp(beside, O_CLOEXEC);
    int error = fd < 0 ? errno : 0;
    if (fd >= 0) {
        (void)fchmod(fd, 0666 & ~mask);
        error = write_stream(output, fdopen(fd, "w"));
        if (error == 0 && rename(beside, path) != 0)
            error = errno;
        if (error != 0)
            (void)unlink(beside);
    }
    return error;
}

int atomic_file_write(const char *path, void (*put)(FILE *stream, void *content), void *content)
{
    const struct output output = {put, content};
    bool is_link;
    if (strcmp(path, "-") == 0)
        return write_stream(&output, stdout);
    if (is_in_place(path, &is_link))
        return write_stream(&output, open_in_place(path, is_link));
    return replace_file(&output, path);
}
