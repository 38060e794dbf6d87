/*
 * directories.c - which directories of segments are read: those that were named, else the reader's own.
 *
 * A name that is no file may be a pattern as glob(7) has it. What a pattern finds is read if it is a directory and no
 * link, for anybody can make one in /dev/shm, and of one owner but root a few; that it finds none is the state of a machine on
 * which nothing has run.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/model.h"
#include "common/text.h"

/* A user has one, and one more in each of a few groups or jails. */
enum { FOUND_OF_ONE_MOST = 16 };

static bool has_too_many(const struct report *report, uid_t owner)
{
    size_t count = 0;
    for (size_t i = 0; i < report->directory_count; i++)
        count += report->directories[i].origin == REPORT_MATCHED && report->directories[i].owner == owner;
    return owner != 0 && count >= FOUND_OF_ONE_MOST;
}

/* Adds a directory unless it is there, by this or another name. */
static void add(struct report *report, const char *path, enum report_origin origin)
{
    struct stat status;
    bool is_match = origin == REPORT_MATCHED;
    bool is_there = (is_match ? lstat(path, &status) : stat(path, &status)) == 0;
    if (is_match && (!is_there || !S_ISDIR(status.st_mode) || has_too_many(report, status.st_uid)))
        return;
    if (is_there && report_directory_find(report, status.st_dev, status.st_ino) != NULL)
        return;
    size_t count = report->directory_count;
    if ((count & (count - 1)) == 0) {
        struct report_directory *longer = report_allocate(count ? 2 * count : 1, sizeof *longer);
        if (count > 0)
            memcpy(longer, report->directories, count * sizeof *longer);
        free(report->directories);
        report->directories = longer;
    }
    report->directories[report->directory_count++] = (struct report_directory){
        .path = report_text_copy(path, strlen(path)),
        .origin = origin,
        .is_there = is_there,
        .owner = is_there ? status.st_uid : 0,
        .device = is_there ? status.st_dev : 0,
        .inode = is_there ? status.st_ino : 0,
    };
}

static void add_named(struct report *report, const char *name)
{
    struct stat status;
    glob_t matches = {0};
    if (stat(name, &status) == 0 || strpbrk(name, "*?[") == NULL) {
        add(report, name, REPORT_NAMED);
        return;
    }
    if (glob(name, 0, NULL, &matches) == 0)
        for (size_t i = 0; i < matches.gl_pathc; i++)
            add(report, matches.gl_pathv[i], REPORT_MATCHED);
    globfree(&matches);
}

const struct report_directory *report_directory_find(const struct report *report, dev_t device, ino_t inode)
{
    for (size_t i = 0; i < report->directory_count; i++) {
        const struct report_directory *directory = &report->directories[i];
        if (directory->is_there && directory->device == device && directory->inode == inode)
            return directory;
    }
    return NULL;
}

void report_directories_fill(struct report *report, const struct report_scope *scope)
{
    for (size_t i = 0; i < scope->directory_count; i++)
        add_named(report, scope->directories[i]);
    if (scope->directory_count > 0)
        return;
    char *path = report_default_directory();
    add(report, path, REPORT_DEFAULT);
    free(path);
}

bool report_directories_are_read(const struct report *report)
{
    for (size_t i = 0; i < report->directory_count; i++)
        if (report->directories[i].error != 0)
            return false;
    return true;
}

bool report_directories_found_amiss(const struct report *report)
{
    bool is_amiss = false;
    for (size_t i = 0; i < report->directory_count; i++) {
        const struct report_directory *directory = &report->directories[i];
        bool is_so = directory->complaint_count > 0 || report_directory_is_faulty(directory);
        if (is_so && directory->origin != REPORT_MATCHED)
            return false;
        is_amiss = is_amiss || is_so;
    }
    return is_amiss;
}

bool report_directory_is_faulty(const struct report_directory *directory)
{
    return directory->error != 0 && (directory->error != ENOENT || directory->origin == REPORT_NAMED);
}

void report_directories_free(struct report *report)
{
    for (size_t i = 0; i < report->directory_count; i++)
        free(report->directories[i].path);
    free(report->directories);
}
