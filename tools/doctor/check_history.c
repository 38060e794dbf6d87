/*
 * check_history.c - checks whether the history can be kept: its folder by the library's rules, free space, and a disk
 * of this machine.
 *
 * The folder may be missing, because the library makes it. For the default folder the library also makes the folders
 * above it, up to the home directory.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mntent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "doctor/doctor.h"
#include "model/defaults.h"
#include "common/text.h"
#include "common/tool.h"

#define ROOM_LEAST (UINT64_C(64) << 20) /* the maximum size of the history */

#define FOLDER "\"${SPARKGUARD_HISTORY:-${XDG_STATE_HOME:-$HOME/.local/state}/sparkguard}\""

/* A fault, and a command that fixes it. */
struct fault {
    const char *text, *fix;
};

static const char elsewhere[] =
    "export SPARKGUARD_HISTORY=/var/tmp/sparkguard-$(id -u)  # or another local folder of yours";

static bool is_chosen(void)
{
    const char *history = getenv("SPARKGUARD_HISTORY");
    return history != NULL && history[0] != '\0';
}

/* Returns how many folders at the end of the path the library would make. */
static int count_makeable(void)
{
    const char *state = getenv("XDG_STATE_HOME");
    if (is_chosen())
        return 1;
    return state != NULL && state[0] == '/' ? 2 : 3;
}

/* Shortens `path` to the part that exists. Returns 0, or an errno: ENOENT if the library would not make all that is
 * missing. */
static int find_existing(char *path, struct stat *status, bool *is_whole)
{
    int makeable = count_makeable();
    *is_whole = true;
    while (lstat(path, status) != 0) {
        char *slash = strrchr(path, '/');
        if (errno != ENOENT || slash == NULL || makeable-- == 0)
            return errno;
        *is_whole = false;
        *(slash == path ? slash + 1 : slash) = '\0';
    }
    return 0;
}

/* Applies the library's rules (history_file.c) to a folder. `is_whole`: `path` is the folder itself, otherwise its
 * nearest existing ancestor. */
static struct fault judge_folder(const char *path, const struct stat *status, bool is_whole)
{
    if (is_whole && !S_ISDIR(status->st_mode))
        return (struct fault){"it is no directory", "ls -ld " FOLDER};
    bool is_foreign = status->st_uid != geteuid() && status->st_uid != 0;
    if (is_whole && is_foreign)
        return (struct fault){"it is somebody else's", "sudo chown \"$(id -u)\" " FOLDER};
    if (is_foreign && !is_chosen())
        return (struct fault){"it is not there, and a folder above it is another user's", elsewhere};
    if (is_whole && (status->st_mode & S_IWOTH) != 0)
        return (struct fault){"it is world-writable", "chmod o-w " FOLDER};
    if (faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) == 0)
        return (struct fault){NULL, NULL};
    if (errno == EROFS)
        return (struct fault){"the file system is read-only", elsewhere};
    return (struct fault){is_whole ? "it cannot be written to" : "it is not there and cannot be made", elsewhere};
}

/* Returns the type of the file system that holds the path, "" if unknown. */
static char *file_system_of(const struct doctor *doctor, const char *path)
{
    char *mounts = text_format("%s/proc/self/mounts", doctor->root), *type = text_copy("", 0);
    char *real = tool_adopt(realpath(path, NULL)),
         *root = tool_adopt(realpath(doctor->root[0] != '\0' ? doctor->root : "/", NULL));
    size_t cut = root != NULL && root[1] != '\0' ? strlen(root) : 0, longest = 0;
    const char *below = real != NULL && strlen(real) >= cut ? real + cut : "";
    struct stat status;
    bool is_file =
        stat(mounts, &status) == 0 &&
        S_ISREG(status.st_mode); /* other kinds of files are not opened, because open(2) can have effects on devices */
    FILE *stream = is_file ? setmntent(mounts, "re") : NULL;
    struct mntent entry;
    char line[PATH_MAX + 1024];
    while (stream != NULL && getmntent_r(stream, &entry, line, sizeof line) != NULL) {
        size_t length = strlen(entry.mnt_dir);
        bool is_above = strncmp(entry.mnt_dir, below, length) == 0 &&
                        (below[length] == '/' || below[length] == '\0' || length == 1);
        if (!is_above || length < longest) /* of several mounts on one path the last hides the others */
            continue;
        longest = length;
        type = text_copy(entry.mnt_type, strlen(entry.mnt_type));
    }
    if (stream != NULL)
        endmntent(stream);
    return type;
}

static bool is_one_of(const char *type, const char *const *list)
{
    for (; *list != NULL; list++)
        if (strcmp(type, *list) == 0)
            return true;
    return false;
}

static struct fault judge_file_system(const char *type)
{
    static const char *const in_memory[] = {"tmpfs", "ramfs", NULL};
    static const char *const network[] = {
        "nfs",  "nfs4",   "cifs",   "smb3",       "smbfs",          "9p",        "ceph", "afs",
        "gpfs", "lustre", "beegfs", "fuse.sshfs", "fuse.glusterfs", "glusterfs", NULL};
    if (is_one_of(type, in_memory))
        return (struct fault){"it lies in memory, and is gone with the power", elsewhere};
    if (is_one_of(type, network))
        return (struct fault){
            "it is on a network file system, and a server that does not answer holds up what is saved, "
            "and a killed process's memory with it",
            elsewhere};
    return (struct fault){NULL, NULL};
}

static void judge_place(const struct doctor *doctor, struct finding *finding, const char *folder, uint64_t *free_bytes)
{
    char free_text[TEXT_SIZE_CAPACITY];
    char *path = text_format("%s%s", doctor->root, folder), *existing = text_copy(path, strlen(path));
    struct stat status;
    struct statvfs disk;
    bool is_whole;
    int failure = find_existing(existing, &status, &is_whole);
    char *type = failure == 0 ? file_system_of(doctor, existing) : text_copy("", 0);
    struct fault fault = {NULL, NULL};
    if (failure == ENOENT)
        fault = (struct fault){"the folder above it does not exist", "mkdir -p -m 700 " FOLDER};
    else if (failure == 0)
        fault = judge_folder(existing, &status, is_whole);
    if (failure == 0 && fault.text == NULL)
        fault = judge_file_system(type);
    if (failure == 0 && statvfs(existing, &disk) == 0)
        *free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (fault.text != NULL) {
        finding_say(finding, FINDING_WARNING, fault.fix, "No history in %s: %s.", path, fault.text);
    } else if (failure != 0 || type[0] == '\0') {
        finding_say(finding, FINDING_UNKNOWN, "ls -ld " FOLDER "; cat /proc/self/mounts", "%s cannot be judged: %s.",
                    path, failure != 0 ? strerror(failure) : "/proc/self/mounts does not name its file system");
    } else if (*free_bytes < ROOM_LEAST) {
        finding_say(finding, FINDING_WARNING, "df -h ~  # and make room, or set SPARKGUARD_HISTORY=FOLDER",
                    "Only %s of the 64 MiB that the history may take are free at %s.",
                    text_size(free_text, *free_bytes), path);
    } else {
        finding_say(finding, FINDING_FINE, NULL, "The history is kept in %s%s.", path,
                    is_whole ? "" : ", which the first guarded process makes");
    }
}

static void check_history(struct doctor *doctor, struct finding *finding)
{
    const char *setting = getenv("SPARKGUARD_HISTORY");
    char *folder = model_history_directory();
    uint64_t free_bytes = SG_UNKNOWN;
    if (folder == NULL && setting != NULL && setting[0] != '\0') {
        bool is_default = defaults_have_set(SG_OPTION_HISTORY);
        char *file = text_printable(defaults_file()->path, false);
        finding_say(finding, FINDING_WARNING,
                    is_default ? text_format("sed -i '/^ *history *=/d' '%s'", file) : "unset SPARKGUARD_HISTORY",
                    "%s=off%s%s: no history is kept.", is_default ? "history" : "SPARKGUARD_HISTORY",
                    is_default ? " in " : "", is_default ? file : "");
    } else if (folder == NULL) {
        finding_say(finding, FINDING_WARNING, elsewhere, "HOME is not set: no history is kept.");
    } else {
        judge_place(doctor, finding, folder, &free_bytes);
    }
    finding_figure(finding, "disk_free_bytes", free_bytes);
}

DOCTOR_CHECK(260, check_history, "history",
             "After a freeze and a power cut, only the history says which job it was and what it held.");
