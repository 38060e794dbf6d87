/*
 * containers.c - reads what sparkguard-runtime wrote down about its containers, and names containers.
 *
 * The folder of records, and each file there, must belong to root or to the one who is asked about, and nobody else may
 * write to them. A file is named ID.json and says the same ID.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/procfs.h"
#include "common/text.h"
#include "common/tool.h"
#include "model/host/host.h"

/* The most bytes of a file, and of a text in it; the most files of a folder. */
enum { FILE_CAPACITY = 65536, TEXT_MAX = 4096, FILES_MAX = 4096 };

static bool is_trusted(const struct stat *status, uid_t owner)
{
    return (status->st_uid == 0 || status->st_uid == owner) && (status->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL && text[0] != '\0' && strlen(text) <= TEXT_MAX ? text_copy(text, TEXT_MAX) : NULL;
}

static void add_container(struct host_containers *containers, const char *id, const json_t *object)
{
    containers->at = tool_grow(containers->at, containers->count, sizeof *containers->at);
    containers->at[containers->count++] = (struct host_container){
        .id = text_copy(id, HOST_ID_CAPACITY),
        .name = text_at(object, "name"),
        .cgroup = text_at(object, "cgroup"),
        .reason = text_at(object, "reason"),
        .is_guarded = json_is_true(json_object_get(object, "guarded")),
    };
}

/* Reads an open file of at most FILE_CAPACITY bytes. Returns NULL if it is longer or no JSON. */
static json_t *parse(int fd)
{
    static char bytes[FILE_CAPACITY + 1];
    size_t length = 0;
    ssize_t got = 0;
    while (length <= FILE_CAPACITY && (got = read(fd, bytes + length, FILE_CAPACITY + 1 - length)) > 0)
        length += (size_t)got;
    return got == 0 && length <= FILE_CAPACITY ? json_loadb(bytes, length, 0, NULL) : NULL;
}

static void read_container(struct host_containers *containers, int folder, const char *name, uid_t owner)
{
    struct stat status;
    size_t length = strlen(name), suffix = strlen(".json");
    char id[HOST_ID_CAPACITY];
    if (name[0] == '.' || length <= suffix || length - suffix >= sizeof id ||
        strcmp(name + length - suffix, ".json") != 0)
        return;
    memcpy(id, name, length - suffix);
    id[length - suffix] = '\0';
    if (fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode))
        return; /* before open(2), which has side effects on a device */
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return;
    bool is_readable = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && is_trusted(&status, owner);
    json_t *root = is_readable ? parse(fd) : NULL;
    const char *said = json_string_value(json_object_get(root, "id"));
    if (said != NULL && strcmp(said, id) == 0)
        add_container(containers, id, root);
    close(fd);
}

void host_containers_read(struct host_containers *containers, const char *records, uid_t owner)
{
    struct stat status;
    const struct dirent *entry;
    int folder = open(records, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *stream = folder >= 0 && fstat(folder, &status) == 0 && is_trusted(&status, owner) ? fdopendir(folder) : NULL;
    if (stream == NULL) {
        if (folder >= 0)
            close(folder);
        return;
    }
    for (int count = 0; count < FILES_MAX && (entry = readdir(stream)) != NULL; count++)
        read_container(containers, folder, entry->d_name, owner);
    closedir(stream);
}

static bool is_short_id(const char *id)
{
    return strlen(id) == HOST_SHORT_DIGITS && strspn(id, "0123456789abcdef") == HOST_SHORT_DIGITS;
}

const struct host_container *host_containers_find(const struct host_containers *containers, const char *id)
{
    size_t digits = is_short_id(id) ? HOST_SHORT_DIGITS : SIZE_MAX;
    for (size_t i = 0; i < containers->count; i++)
        if (strcmp(containers->at[i].id, id) == 0 ||
            (digits != SIZE_MAX && strncmp(containers->at[i].id, id, digits) == 0))
            return &containers->at[i];
    return NULL;
}

/* Returns whether this process runs in that container too: it is no other place then. */
static bool is_own(const char *id)
{
    static char own[HOST_ID_CAPACITY]; /* a process stays in its container */
    static bool is_read;
    char text[16384];
    if (!is_read && (procfs_read_text(text_format("%s/proc/self/cgroup", procfs_live_root), text, sizeof text) <= 0 ||
                     !host_container_of_cgroup(text, own)))
        own[0] = '\0';
    is_read = true;
    return strcmp(own, id) == 0;
}

char *host_container_id(const struct host_containers *containers, uint32_t pid, const struct host_container **record)
{
    char text[16384], id[HOST_ID_CAPACITY];
    *record = NULL;
    if (procfs_read(pid, "cgroup", text, sizeof text) <= 0)
        return NULL;
    if (host_container_of_cgroup(text, id)) {
        *record = host_containers_find(containers, id);
        return is_own(id) ? NULL : text_copy(id, sizeof id);
    }
    for (size_t i = 0; i < containers->count; i++)
        if (containers->at[i].cgroup != NULL && host_is_in_cgroup(text, containers->at[i].cgroup)) {
            *record = &containers->at[i];
            return text_copy(containers->at[i].id, HOST_ID_CAPACITY);
        }
    return NULL;
}

char *host_container_name(const struct host_containers *containers, const char *id)
{
    const struct host_container *record = host_containers_find(containers, id);
    if (record != NULL && record->name != NULL)
        return text_copy(record->name, TEXT_MAX);
    char *name = host_engine_name(record != NULL ? record->id : id);
    if (name != NULL)
        return name;
    bool is_long = strlen(id) == HOST_ID_DIGITS && strspn(id, "0123456789abcdef") == HOST_ID_DIGITS;
    return text_copy(id, is_long ? HOST_SHORT_DIGITS : HOST_ID_CAPACITY);
}
