/*
 * own.c - see runtime.h. What a container writes there is read by nobody but its own processes and the host's report,
 * and takes no memory but its own: the directory is a tmpfs with a size. Root's runtime mounts it on the host, where
 * the report finds it, and into the container; where that cannot be done, the next runtime mounts one in the container
 * alone.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/text.h"
#include "runtime/runtime.h"
#include "sparkguard_abi.h"
#include "sparkguard_figures.h"

/* The directories of ended containers that are kept, for the report; younger ones than YOUNG_SECONDS may be in the
 * making. */
enum { KEPT = 16, YOUNG_SECONDS = 60, SCANNED_MAX = 4096, FILES_MAX = 65536 };

/* What is copied of a container that has ended, which may have put anything there; and of how many. */
enum { COPIED_FILES = 256, COPIED_FILE_BYTES = 1 << 20, COPIED_BYTES = 16 << 20, COPIED_NAME = 80, HISTORIES = 64 };

/* How often, and how long apart, the lock is tried: a runtime that holds it longer is stopped. */
enum { LOCK_TRIES = 200, LOCK_PAUSE_NS = 10000000 };

int runtime_own_lock(const char *containers)
{
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};
    int folder = runtime_record_open_folder(containers);
    int lock = folder >= 0 ? openat(folder, ".lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    if (folder >= 0)
        close(folder);
    for (int i = 0; lock >= 0 && i < LOCK_TRIES && flock(lock, LOCK_EX | LOCK_NB) != 0; i++)
        (void)nanosleep(&pause, NULL);
    return lock;
}

/* Stores the number that an id of the container has for this runtime. Returns false if it has none that is known. */
static bool find_outside(const struct runtime_document *config, const char *list, uint32_t id, uint32_t *outside)
{
    return runtime_document_map_id(config, list, id, true, outside) &&
           (runtime_document_has_mappings(config, list) || !runtime_shared_has_namespace(config->root, "user", true));
}

/* Mounts a tmpfs over a folder, unless there is one of this user's already. Returns whether it is there. One that an
 * earlier container with this id had as another user has that user's files in it, which would be in the way. */
static bool mount_own(int above, const char *id, const char *path, uint32_t uid, uint32_t gid)
{
    struct stat outer, inner;
    char *options = text_format(RUNTIME_OWN_SIZE ",mode=0700,uid=%u,gid=%u", (unsigned)uid, (unsigned)gid);
    bool is_there = fstat(above, &outer) == 0 && fstatat(above, id, &inner, AT_SYMLINK_NOFOLLOW) == 0 &&
                    S_ISDIR(inner.st_mode) && inner.st_dev != outer.st_dev;
    if (is_there && inner.st_uid != uid)
        is_there = umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) != 0;
    if (!is_there)
        is_there = runtime_shared_mount(path, options);
    return is_there;
}

/* Gives a directory to the container's user. Its name leads nowhere else: nobody but this user makes names in
 * `above`. */
static bool give(int above, const char *id, uint32_t uid, uint32_t gid)
{
    struct stat status;
    if (fstatat(above, id, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(status.st_mode))
        return false;
    if (fchownat(above, id, uid, gid, AT_SYMLINK_NOFOLLOW) != 0) /* also makes it a young one */
        return false;
    return (status.st_mode & 07777) == 0700 || fchmodat(above, id, 0700, 0) == 0;
}

char *runtime_own_prepare(const struct runtime_settings *settings, const struct runtime_document *config,
                          const json_t *user, const char *id)
{
    uint32_t uid = 0, gid = 0;
    (void)runtime_document_number(config, json_object_get(user, "uid"), &uid);
    (void)runtime_document_number(config, json_object_get(user, "gid"), &gid);
    if (!runtime_record_is_name(id) || !find_outside(config, "uidMappings", uid, &uid) ||
        !find_outside(config, "gidMappings", gid, &gid))
        return NULL;
    int above = runtime_record_open_folder(settings->containers);
    if (above < 0)
        return NULL;
    char *path = text_format("%s/%s", settings->containers, id);
    bool is_made = mkdirat(above, id, 0700) == 0;
    bool is_good = (is_made || errno == EEXIST) && (settings->is_rootless || mount_own(above, id, path, uid, gid)) &&
                   give(above, id, uid, gid);
    if (!is_good && is_made)
        (void)unlinkat(above, id, AT_REMOVEDIR);
    close(above);
    if (is_good)
        return path;
    return NULL;
}

char *runtime_own_of_pod(const struct runtime_settings *settings, const struct runtime_document *config,
                         const json_t *user, const char *pod)
{
    struct stat status;
    uint32_t uid = 0;
    (void)runtime_document_number(config, json_object_get(user, "uid"), &uid);
    bool is_there = runtime_record_is_name(pod) && lstat(text_format("%s/%s", settings->containers, pod), &status) == 0;
    if (is_there && (!find_outside(config, "uidMappings", uid, &uid) || status.st_uid != uid))
        return NULL;
    return runtime_own_prepare(settings, config, user, pod);
}

/* ---- what a container tells the host ----------------------------------------------------------------------------- */

/* Returns the folder beside that of records in which the host's programs find what containers have promised. */
static char *promises_of(const char *containers)
{
    const char *slash = strrchr(containers, '/');
    return text_format("%.*s/promises", slash != NULL ? (int)(slash - containers) : 0, containers);
}

/* Makes the file of figures anew in a container's own directory, for the directory's owner. A name that the container
 * has put there before makes way. Returns a descriptor, or -1. */
static int make_figures(int own)
{
    const struct sg_figures none = {0};
    struct stat status;
    char *temporary = text_format("." SG_FIGURES_NAME ".%d", (int)getpid());
    int fd = openat(own, temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    bool is_good = fd >= 0 && fstat(own, &status) == 0 && fchmod(fd, 0644) == 0 &&
                   fchown(fd, status.st_uid, status.st_gid) == 0 && write(fd, &none, sizeof none) == sizeof none &&
                   renameat(own, temporary, own, SG_FIGURES_NAME) == 0;
    if (fd >= 0 && !is_good) {
        (void)unlinkat(own, temporary, 0);
        close(fd);
    }
    return is_good ? fd : -1;
}

/* Takes a container's figures out of the folder. */
static void hide(int folder, const char *name)
{
    char *path = text_format("/proc/self/fd/%d/%s", folder, name);
    for (int i = 0; i < 16 && umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0; i++)
        ;
    (void)unlinkat(folder, name, 0);
    (void)unlinkat(folder, text_format(".%s", name), 0);
}

/* Mounts a file of figures in the folder, for reading alone. */
static bool show(int folder, const char *name, int figures)
{
    char *from = text_format("/proc/self/fd/%d", figures), *to = text_format("/proc/self/fd/%d/%s", folder, name);
    int place = openat(folder, name, O_RDONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    if (place >= 0)
        close(place);
    return place >= 0 && mount(from, to, NULL, MS_BIND, NULL) == 0 &&
           mount(NULL, to, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0;
}

/* Writes root's words about a container: all of them or none. */
static bool write_words(int folder, const char *name, const char *words)
{
    char *file = text_format(".%s", name), *temporary = text_format("..%s.%d", name, (int)getpid());
    int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    bool is_good = fd >= 0 && fchmod(fd, 0644) == 0 && write(fd, words, strlen(words)) == (ssize_t)strlen(words) &&
                   renameat(folder, temporary, folder, file) == 0;
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && !is_good)
        (void)unlinkat(folder, temporary, 0);
    return is_good;
}

/* Returns whether a container's figures are shown: its pod's, as an earlier container of the pod has put them there. */
static bool is_shown(int folder, const char *name, int own)
{
    struct stat shown, made;
    return fstatat(folder, name, &shown, AT_SYMLINK_NOFOLLOW) == 0 &&
           fstatat(own, SG_FIGURES_NAME, &made, AT_SYMLINK_NOFOLLOW) == 0 && shown.st_dev == made.st_dev &&
           shown.st_ino == made.st_ino && S_ISREG(made.st_mode) && made.st_nlink == 1 &&
           made.st_size == sizeof(struct sg_figures);
}

bool runtime_own_publish(const struct runtime_settings *settings, const char *own, const char *cgroup, const char *name)
{
    const char *file = strrchr(own, '/') + 1;
    bool is_known = cgroup != NULL && cgroup[0] == '/' && strpbrk(cgroup, "\n") == NULL;
    int folder = settings->is_rootless ? -1 : runtime_record_open_folder(promises_of(settings->containers));
    if (folder < 0)
        return false;
    int directory = is_known ? open(own, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    bool is_good = directory >= 0 && is_shown(folder, file, directory);
    int figures = directory >= 0 && !is_good ? make_figures(directory) : -1;
    if (!is_good)
        hide(folder, file); /* of an earlier container with this id */
    is_good = (is_good || (figures >= 0 && show(folder, file, figures))) &&
              write_words(folder, file, text_format("%s\n%s\n", cgroup, name));
    if (!is_good)
        hide(folder, file);
    const int opened[] = {folder, directory, figures};
    for (size_t i = 0; i < sizeof opened / sizeof opened[0]; i++)
        if (opened[i] >= 0)
            close(opened[i]);
    return is_good;
}

void runtime_own_unpublish(const char *containers, const char *id)
{
    struct stat status;
    char *path = promises_of(containers), *record = text_format("%s/%s.json", containers, id);
    if (!runtime_record_is_name(id) || lstat(record, &status) == 0)
        return;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder >= 0) {
        hide(folder, id);
        close(folder);
    }
}

/* ---- what is left of ended containers ---------------------------------------------------------------------------- */

/* Removes a directory with the files in it; those of a container that was mounted go with their tmpfs. */
static void remove_own(const char *containers, int above, const char *id)
{
    bool is_mounted = umount2(text_format("%s/%s", containers, id), MNT_DETACH | UMOUNT_NOFOLLOW) == 0;
    int folder = is_mounted ? -1 : openat(above, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), seen = 0;
    DIR *list = folder >= 0 ? fdopendir(folder) : NULL;
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL && seen < FILES_MAX; seen++)
        (void)unlinkat(folder, entry->d_name, 0);
    if (list != NULL)
        closedir(list);
    else if (folder >= 0)
        close(folder);
    (void)unlinkat(above, id, AT_REMOVEDIR);
}

struct ended {
    char name[NAME_MAX + 1];
    struct timespec changed;
};

/* Returns whether a name is that of a record or a time line. */
static bool is_record(const char *name)
{
    const char *end = strrchr(name, '.');
    return name[0] != '.' && strlen(name) < COPIED_NAME && end != NULL &&
           (strcmp(end, SG_SEGMENT_SUFFIX) == 0 || strcmp(end, SG_TIMELINE_SUFFIX) == 0);
}

/* Copies a file. Returns how many bytes it has; 0: it is none that a guarded program makes, or it could not be
 * copied. */
static size_t copy_record(int from, int to, const char *name)
{
    static char bytes[COPIED_FILE_BYTES];
    struct stat status;
    ssize_t length = 0;
    int in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (in < 0)
        return 0;
    if (fstat(in, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 1 &&
        status.st_size <= COPIED_FILE_BYTES)
        length = read(in, bytes, sizeof bytes);
    close(in);
    int out = length > 0 ? openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    if (out < 0)
        return 0;
    bool is_good = write(out, bytes, (size_t)length) == length;
    close(out);
    if (!is_good)
        (void)unlinkat(to, name, 0);
    return is_good ? (size_t)length : 0;
}

static void copy_records(int from, int to)
{
    size_t bytes = 0;
    int copy = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), seen = 0, files = 0;
    DIR *list = copy >= 0 ? fdopendir(copy) : NULL;
    if (list == NULL && copy >= 0)
        close(copy);
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL && seen < SCANNED_MAX; seen++)
        if (files < COPIED_FILES && bytes < COPIED_BYTES && is_record(entry->d_name)) {
            bytes += copy_record(from, to, entry->d_name);
            files++;
        }
    if (list != NULL)
        closedir(list);
}

static int compare_ended(const void *a, const void *b)
{
    const struct ended *one = a, *other = b;
    const struct timespec *left = &one->changed, *right = &other->changed;
    if (left->tv_sec != right->tv_sec)
        return left->tv_sec < right->tv_sec ? 1 : -1;
    if (left->tv_nsec != right->tv_nsec)
        return left->tv_nsec < right->tv_nsec ? 1 : -1;
    return strcmp(one->name, other->name);
}

/* Returns whether a name is a directory of a container that has ended: there is no record. */
static bool is_ended(int above, const char *name, struct timespec *changed)
{
    struct stat status, record;
    bool has_record = fstatat(above, text_format("%s.json", name), &record, AT_SYMLINK_NOFOLLOW) == 0;
    if (has_record || !runtime_record_is_name(name) || fstatat(above, name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISDIR(status.st_mode))
        return false;
    *changed = status.st_ctim; /* the container's root cannot set it */
    return status.st_ctime + YOUNG_SECONDS <= time(NULL);
}

/* Removes the directories of ended containers but the `kept` that ended last. */
static void sweep(const char *containers, size_t kept)
{
    static struct ended ended[SCANNED_MAX];
    size_t count = 0;
    int above = runtime_record_open_folder(containers);
    int copy = above >= 0 ? openat(above, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *list = copy >= 0 ? fdopendir(copy) : NULL;
    if (list == NULL && copy >= 0)
        close(copy);
    for (struct dirent *entry; list != NULL && count < SCANNED_MAX && (entry = readdir(list)) != NULL;)
        if (is_ended(above, entry->d_name, &ended[count].changed))
            snprintf(ended[count++].name, sizeof ended[0].name, "%s", entry->d_name);
    if (list != NULL)
        closedir(list);
    qsort(ended, count, sizeof ended[0], compare_ended);
    for (size_t i = kept; i < count; i++)
        remove_own(containers, above, ended[i].name);
    if (above >= 0)
        close(above);
}

/* Takes out what is in the folder of containers without a record: `run` ends without a delete, and a runtime that was
 * killed leaves a part. */
static void sweep_promises(const char *containers)
{
    int folder = open(promises_of(containers), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), seen = 0;
    DIR *list = folder >= 0 ? fdopendir(folder) : NULL;
    if (list == NULL && folder >= 0)
        close(folder);
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL && seen < SCANNED_MAX; seen++) {
        struct stat status;
        const size_t points = strspn(entry->d_name, ".");
        if (fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
            status.st_ctime + YOUNG_SECONDS > time(NULL))
            continue;
        if (points == 2 && entry->d_name[points] != '\0') /* words half written */
            (void)unlinkat(folder, entry->d_name, 0);
        else
            runtime_own_unpublish(containers, entry->d_name + points);
    }
    if (list != NULL)
        closedir(list);
}

void runtime_own_sweep(const char *containers)
{
    sweep(containers, KEPT);
    sweep_promises(containers);
}

void runtime_own_keep(const struct runtime_settings *settings, const char *id)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    if (settings->history == NULL || !runtime_record_is_name(id))
        return;
    int above = open(settings->containers, flags), from = above >= 0 ? openat(above, id, flags) : -1;
    int histories = from >= 0 ? runtime_record_open_folder(settings->history) : -1;
    if (histories >= 0)
        (void)mkdirat(histories, id, 0700);
    int to = histories >= 0 ? openat(histories, id, flags) : -1;
    if (to >= 0)
        copy_records(from, to);
    const int opened[] = {above, from, histories, to};
    for (size_t i = 0; i < sizeof opened / sizeof opened[0]; i++)
        if (opened[i] >= 0)
            close(opened[i]);
    if (to >= 0)
        sweep(settings->history, HISTORIES);
}
