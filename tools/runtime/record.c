/*
 * record.c - see runtime.h. The folder of records is trusted only if it belongs to this user alone, and no link is
 * followed in it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/json.h"
#include "common/text.h"
#include "common/tool.h"
#include "runtime/runtime.h"

#define SUFFIX ".json"

/* A record younger than this is not removed: its container may be about to be made. A runtime takes less than a
 * second. */
enum { YOUNG_SECONDS = 60, RECORD_MAX = 65536, STATE_MAX = 16 << 20, SCANNED_MAX = 4096 };

/* Makes a folder and the one above it, with this mode whatever the umask is. */
static void make_folder(const char *containers, mode_t mode)
{
    char *above = text_copy(containers, PATH_MAX), *slash = strrchr(above, '/');
    if (slash != NULL && slash != above) {
        *slash = '\0';
        if (mkdir(above, mode) == 0)
            (void)chmod(above, mode);
    }
    if (mkdir(containers, mode) == 0)
        (void)chmod(containers, mode);
}

int runtime_record_open_folder(const char *containers)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    struct stat status;
    int folder = open(containers, flags);
    if (folder < 0 && errno == ENOENT) {
        make_folder(containers, 0755);
        folder = open(containers, flags);
    }
    if (folder >= 0 && (fstat(folder, &status) != 0 || status.st_uid != geteuid() || (status.st_mode & 022) != 0)) {
        close(folder);
        folder = -1;
        errno = EPERM;
    }
    return folder;
}

bool runtime_record_is_name(const char *id)
{
    const size_t length = id != NULL ? strlen(id) : 0, end = sizeof SUFFIX - 1;
    /* A directory of a record's name would be in its place. */
    bool is_record = length >= end && strcmp(id + length - end, SUFFIX) == 0;
    return length > 0 && length < 240 && id[0] != '.' && strchr(id, '/') == NULL && !is_record;
}

/* Returns the name of a container's record; NULL if the id cannot be one. */
static char *record_name(const char *id)
{
    return runtime_record_is_name(id) ? text_format("%s" SUFFIX, id) : NULL;
}

static json_t *read_json_file(int folder, const char *name, off_t bytes_max)
{
    struct stat status;
    json_t *record = NULL;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() && status.st_size <= bytes_max)
        record = json_loadfd(fd, JSON_DECODE_INT_AS_REAL, NULL); /* limits of 64 bits are no integers of jansson's */
    close(fd);
    return record;
}

static json_t *read_record(int folder, const char *name)
{
    return read_json_file(folder, name, RECORD_MAX);
}

/* Returns whether a container's first process runs, by the state files of runc and crun. */
static bool is_running(const char *state)
{
    static const char *const known[][2] = {{"state.json", "init_process_pid"}, {"status", "pid"}};
    bool is_found = false;
    int folder = state != NULL ? open(state, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    for (size_t i = 0; folder >= 0 && !is_found && i < sizeof known / sizeof known[0]; i++) {
        double pid = json_number_value(json_object_get(read_json_file(folder, known[i][0], STATE_MAX), known[i][1]));
        is_found = pid > 0 && pid <= INT_MAX && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
    }
    if (folder >= 0)
        close(folder);
    return is_found;
}

/* Returns whether a record is of the container that has this state folder. The same folder may have two paths. */
static bool is_of(const json_t *record, const char *state)
{
    struct stat one, other;
    const char *own = json_string_value(json_object_get(record, "state"));
    if (own == NULL || state == NULL || strcmp(own, state) == 0)
        return true;
    return stat(own, &one) == 0 && stat(state, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/* Removes records whose containers the runtime has forgotten: `run` ends without a delete. */
static void sweep(int folder)
{
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), seen = 0;
    DIR *list = copy >= 0 ? fdopendir(copy) : NULL;
    if (list == NULL && copy >= 0)
        close(copy);
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL && seen < SCANNED_MAX; seen++) {
        struct stat status, state;
        const char *end = strrchr(entry->d_name, '.');
        if (end == NULL || strcmp(end, SUFFIX) != 0 || entry->d_name[0] == '.' ||
            fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
            status.st_mtime + YOUNG_SECONDS > time(NULL))
            continue;
        const char *place = json_string_value(json_object_get(read_record(folder, entry->d_name), "state"));
        if (place != NULL && stat(place, &state) != 0 && errno == ENOENT)
            (void)unlinkat(folder, entry->d_name, 0);
    }
    if (list != NULL)
        closedir(list);
}

static json_t *make_record(const struct runtime_record *record)
{
    json_t *root = json_object();
    char *bundle = tool_adopt(realpath(record->bundle, NULL));
    json_object_set_new(root, "id", json_of_text(record->id));
    json_object_set_new(root, "name", json_of_text(record->name));
    json_object_set_new(root, "cgroup", json_of_text(record->cgroup));
    json_object_set_new(root, "guarded", json_boolean(record->reason == NULL));
    json_object_set_new(root, "reason", json_of_text(record->reason));
    json_object_set_new(root, "time", json_of_time(tool_now_ns()));
    json_object_set_new(root, "bundle", json_of_text(bundle != NULL ? bundle : record->bundle));
    json_object_set_new(root, "state", json_of_text(record->state));
    return root;
}

const char *runtime_record_write(const char *containers, const struct runtime_record *record)
{
    const char *why = NULL;
    char *name = record_name(record->id);
    int folder = name != NULL ? runtime_record_open_folder(containers) : -1;
    if (folder < 0)
        return name == NULL ? "its id cannot name a record" : strerror(errno);
    sweep(folder);
    char *temporary = text_format(".%s.%d", name, (int)getpid());
    json_t *root = make_record(record);
    int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    bool is_good = fd >= 0 && fchmod(fd, 0644) == 0 && json_dumpfd(root, fd, JSON_COMPACT) == 0;
    if (fd >= 0 && close(fd) != 0)
        is_good = false;
    if (!is_good || renameat(folder, temporary, folder, name) != 0) {
        why = errno != 0 ? strerror(errno) : "it could not be written";
        (void)unlinkat(folder, temporary, 0);
    }
    close(folder);
    return why;
}

void runtime_record_remove(const char *containers, const char *id, const char *state, bool is_forced)
{
    char *name = record_name(id);
    int above = name != NULL ? open(containers, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (above >= 0) { /* nothing is made for a container of others */
        close(above);
        int folder = runtime_record_open_folder(containers);
        if (folder >= 0) {
            json_t *record = read_record(folder, name);
            if (is_of(record, state) && (is_forced || !is_running(json_string_value(json_object_get(record, "state")))))
                (void)unlinkat(folder, name, 0);
            close(folder);
        }
    }
}

bool runtime_record_is_anothers(const char *containers, const char *id, const char *state)
{
    char *name = record_name(id);
    int folder = name != NULL ? open(containers, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    bool is_anothers = false;
    if (folder >= 0) {
        const json_t *record = read_record(folder, name);
        is_anothers = record != NULL && (!is_of(record, state) || is_running(state));
        close(folder);
    }
    return is_anothers;
}

char *runtime_record_bundle(const char *containers, const char *id, const char *state)
{
    char *name = record_name(id), *bundle = NULL;
    int folder = name != NULL ? runtime_record_open_folder(containers) : -1;
    if (folder >= 0) {
        json_t *record = read_record(folder, name);
        const char *text = json_string_value(json_object_get(record, "bundle"));
        bundle = text != NULL && text[0] == '/' && is_of(record, state) ? text_copy(text, PATH_MAX) : NULL;
        close(folder);
    }
    return bundle;
}

/* Of "a-b.slice" the path "/a.slice/a-b.slice", as systemd nests slices. */
static char *slice_path(const char *slice)
{
    char *path = text_copy("", 1);
    size_t length = strlen(slice) - (sizeof ".slice" - 1);
    for (size_t i = 1; i <= length; i++) {
        if (i != length && slice[i] != '-')
            continue;
        path = text_format("%s/%.*s.slice", path, (int)i, slice);
    }
    return path;
}

char *runtime_record_cgroup(const json_t *config, bool is_rootless)
{
    const char *path = json_string_value(json_object_get(json_object_get(config, "linux"), "cgroupsPath"));
    char slice[128] = "", prefix[128] = "", name[256] = "";
    if (path == NULL)
        return NULL;
    if (path[0] == '/')
        return text_copy(path, PATH_MAX);
    /* systemd's form is SLICE:PREFIX:NAME; below a user's manager, the path depends on the session */
    if (is_rootless || sscanf(path, "%127[^:]:%127[^:]:%255[^:]", slice, prefix, name) != 3 ||
        strlen(slice) <= sizeof ".slice" - 1 || strcmp(slice + strlen(slice) - (sizeof ".slice" - 1), ".slice") != 0)
        return NULL;
    char *above = slice_path(slice), *whole = text_format("%s/%s-%s.scope", above, prefix, name);
    return whole;
}
