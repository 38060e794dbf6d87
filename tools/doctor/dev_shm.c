/*
 * dev_shm.c - see dev_shm.h. The files that processes use are found in /proc/PID/maps and /proc/PID/fd by the kernel's
 * name of them, a path below /dev/shm. Folders, such as the guard's own, are not read.
 */
#include "doctor/dev_shm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uthash.h>

#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

#define FOLDER "/dev/shm/"

enum { FILES_MAX = 4096 };

/* Smaller files, such as semaphores, are not reported. */
#define FILE_LEAST (UINT64_C(1) << 20)

struct file {
    uint64_t bytes;
    bool is_held;
    UT_hash_handle hh;
    char name[NAME_MAX + 1];
};

static void hold(struct file *files, const char *path)
{
    struct file *file;
    if (strncmp(path, FOLDER, sizeof FOLDER - 1) != 0)
        return;
    HASH_FIND_STR(files, path + sizeof FOLDER - 1, file);
    if (file != NULL)
        file->is_held = true;
}

/* Returns false if the mappings may not be read. A process that has ended meanwhile holds nothing. */
static bool hold_mapped(const char *process, struct file *files)
{
    char *path = text_format("%s/maps", process), *line = NULL;
    FILE *stream = fopen(path, "re");
    int failure = stream == NULL ? errno : 0;
    size_t capacity = 0;
    while (stream != NULL && getline(&line, &capacity, stream) > 0) {
        char *name = strstr(line, FOLDER);
        if (name != NULL) {
            name[strcspn(name, "\n")] = '\0';
            hold(files, name);
        }
    }
    if (stream != NULL && ferror(stream))
        failure = EIO;
    free(line);
    if (stream != NULL)
        fclose(stream);
    return failure == 0 || failure == ENOENT || failure == ESRCH;
}

static bool hold_open(const char *process, struct file *files)
{
    char *path = text_format("%s/fd", process), target[PATH_MAX];
    DIR *stream = opendir(path);
    int failure = stream == NULL ? errno : 0;
    const struct dirent *entry;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        ssize_t length = readlinkat(dirfd(stream), entry->d_name, target, sizeof target - 1);
        if (length > 0) {
            target[length] = '\0';
            hold(files, target);
        }
    }
    if (stream != NULL)
        closedir(stream);
    return failure == 0 || failure == ENOENT || failure == ESRCH;
}

static struct file *list_files(const struct doctor *doctor, bool *is_readable)
{
    DIR *stream = opendir(text_format("%s" FOLDER, doctor->root));
    const struct dirent *entry;
    struct file *files = NULL, *file;
    struct stat status;
    *is_readable = stream != NULL;
    while (stream != NULL && HASH_COUNT(files) < FILES_MAX && (entry = readdir(stream)) != NULL) {
        if (fstatat(dirfd(stream), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode) ||
            (uint64_t)status.st_blocks * 512 < FILE_LEAST)
            continue;
        file = tool_allocate(1, sizeof *file);
        file->bytes = (uint64_t)status.st_blocks * 512;
        snprintf(file->name, sizeof file->name, "%s", entry->d_name);
        HASH_ADD_STR(files, name, file);
    }
    if (stream != NULL)
        closedir(stream);
    return files;
}

void doctor_shm_look(const struct doctor *doctor, struct doctor_shm *out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    *out = (struct doctor_shm){.is_certain = doctor->has_processes};
    struct file *files = list_files(doctor, &out->is_readable), *file;
    const struct file *largest = NULL;
    for (size_t i = 0; files != NULL && i < doctor->process_count; i++) {
        if (doctor->processes[i].state == 'Z')
            continue; /* it has closed its files, and its folder in /proc is not readable */
        char *process = text_format("%s/proc/%" PRIu32, doctor->root, doctor->processes[i].pid);
        bool is_mapped_known = hold_mapped(process, files), is_open_known = hold_open(process, files);
        out->is_certain = out->is_certain && is_mapped_known && is_open_known;
    }
    for (file = files; file != NULL; file = file->hh.next) {
        if (file->is_held)
            continue;
        out->orphan_count++;
        out->orphan_bytes = bytes_add(out->orphan_bytes, file->bytes);
        if (largest == NULL || file->bytes > largest->bytes)
            largest = file;
    }
    out->name = text_copy(largest != NULL ? largest->name : "", NAME_MAX);
    out->is_name_plain = out->name[0] != '-' && strspn(out->name, plain) == strlen(out->name);
    HASH_CLEAR(hh, files);
}
