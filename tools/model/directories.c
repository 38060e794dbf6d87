/*
 * directories.c - selects the directories of segments to read: the named ones, else the reader's own.
 *
 * A name without a file may be a pattern of glob(7). Anybody can create matching names in /dev/shm. So a match is read
 * only if it is a directory and no link, and only a few per owner other than root. A pattern without a match is no
 * error: no guarded program has run on the machine yet.
 */
#include <errno.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/procfs.h"
#include "model/model.h"
#include "common/text.h"
#include "common/tool.h"

/* Matches read per owner. A user has one directory, and one more in each of a few groups or jails. */
enum { FOUND_OF_ONE_MAX = 16 };

static bool has_too_many(const struct model *model, enum model_origin origin, uid_t owner)
{
    size_t count = 0;
    for (size_t i = 0; i < model->directory_count; i++)
        count += model->directories[i].origin == MODEL_MATCHED && model->directories[i].owner == owner;
    return origin == MODEL_MATCHED && owner != 0 && count >= FOUND_OF_ONE_MAX;
}

/* Adds a directory unless the model has it already, under this or another name. */
static void add_directory(struct model *model, const char *path, enum model_origin origin)
{
    struct stat status;
    bool is_match = origin == MODEL_MATCHED || origin == MODEL_CONTAINER;
    bool is_there = (is_match ? lstat(path, &status) : stat(path, &status)) == 0;
    if (is_match && (!is_there || !S_ISDIR(status.st_mode) || has_too_many(model, origin, status.st_uid)))
        return;
    if (is_there && model_directory_find(model, status.st_dev, status.st_ino) != NULL)
        return;
    model->directories = tool_grow(model->directories, model->directory_count, sizeof *model->directories);
    model->directories[model->directory_count++] = (struct model_directory){
        .path = text_copy(path, strlen(path)),
        .origin = origin,
        .is_there = is_there,
        .owner = is_there ? status.st_uid : 0,
        .device = is_there ? status.st_dev : 0,
        .inode = is_there ? status.st_ino : 0,
    };
}

static void add_named(struct model *model, const char *name)
{
    struct stat status;
    glob_t matches = {0};
    if (stat(name, &status) == 0 || strpbrk(name, "*?[") == NULL) {
        add_directory(model, name, MODEL_NAMED);
        return;
    }
    if (glob(name, 0, NULL, &matches) == 0)
        for (size_t i = 0; i < matches.gl_pathc; i++)
            add_directory(model, matches.gl_pathv[i], MODEL_MATCHED);
    globfree(&matches);
}

const struct model_directory *model_directory_find(const struct model *model, dev_t device, ino_t inode)
{
    for (size_t i = 0; i < model->directory_count; i++) {
        const struct model_directory *directory = &model->directories[i];
        if (directory->is_there && directory->device == device && directory->inode == inode)
            return directory;
    }
    return NULL;
}

char *model_records_folder(size_t index)
{
    const char *own = getenv("XDG_RUNTIME_DIR");
    if (index == 0)
        return text_format("%s/run/sparkguard/containers", procfs_live_root);
    return own != NULL && own[0] == '/' ? text_format("%s/sparkguard/containers", own) : NULL;
}

/* Adds the containers' own directories: what is in them is strangers'. */
static void add_containers(struct model *model, size_t index)
{
    glob_t matches = {0};
    char *records = model_records_folder(index);
    char *pattern = records != NULL ? text_format("%s/*", records) : NULL;
    if (pattern != NULL && glob(pattern, GLOB_ONLYDIR, NULL, &matches) == 0)
        for (size_t i = 0; i < matches.gl_pathc; i++)
            if (access(matches.gl_pathv[i], R_OK | X_OK) == 0)
                add_directory(model, matches.gl_pathv[i], MODEL_CONTAINER);
    globfree(&matches);
}

void model_directories_fill(struct model *model, const struct model_scope *scope)
{
    for (size_t i = 0; i < scope->directory_count; i++)
        add_named(model, scope->directories[i]);
    const char *named = getenv("SPARKGUARD_DIR");
    bool has_named = scope->directory_count > 0 || (named != NULL && named[0] != '\0');
    if (scope->directory_count == 0)
        add_directory(model, model_default_directory(), MODEL_DEFAULT);
    for (size_t i = 0; (!has_named || scope->wants_containers) && i < MODEL_RECORDS; i++)
        add_containers(model, i);
}

bool model_directories_are_read(const struct model *model)
{
    for (size_t i = 0; i < model->directory_count; i++)
        if (model->directories[i].error != 0)
            return false;
    return true;
}

bool model_directories_found_amiss(const struct model *model)
{
    bool is_amiss = false;
    for (size_t i = 0; i < model->directory_count; i++) {
        const struct model_directory *directory = &model->directories[i];
        bool is_so = directory->complaint_count > 0 || model_directory_is_faulty(directory);
        if (is_so && !model_directory_is_found(directory))
            return false;
        is_amiss = is_amiss || is_so;
    }
    return is_amiss;
}

bool model_directory_is_found(const struct model_directory *directory)
{
    return directory->origin == MODEL_MATCHED || directory->origin == MODEL_CONTAINER;
}

bool model_directory_is_faulty(const struct model_directory *directory)
{
    return directory->error != 0 && (directory->error != ENOENT || directory->origin == MODEL_NAMED);
}
