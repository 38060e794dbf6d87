/*
 * check_history.c - checks whether the history can be kept: its folder by the library's rules, free space, and a disk
 * of this machine.
 */
#include <limits.h>
#include <mntent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "doctor/doctor.h"
#include "launch/check/history.h"
#include "model/defaults.h"
#include "common/text.h"
#include "common/tool.h"

#define ROOM_LEAST (UINT64_C(64) << 20) /* the maximum size of the history */

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

/* Returns why a history on this type of file system is not kept well; NULL if it is. */
static const char *judge_file_system(const char *type)
{
    static const char network[] =
        "nfs|nfs4|cifs|smb3|smbfs|9p|ceph|afs|gpfs|lustre|beegfs|fuse.sshfs|fuse.glusterfs|glusterfs";
    if (text_is_one_of(type, "tmpfs|ramfs"))
        return "it lies in memory, and is gone with the power";
    if (text_is_one_of(type, network))
        return "it is on a network file system, and a server that does not answer holds up what is saved, "
               "and a killed process's memory with it";
    return NULL;
}

static void judge_place(const struct doctor *doctor, struct finding *finding, const char *folder, uint64_t *free_bytes)
{
    char *path = text_format("%s%s", doctor->root, folder);
    struct history_folder place = history_judge(path);
    struct statvfs disk;
    const char *type = place.failure == 0 ? file_system_of(doctor, place.existing) : "";
    if (place.fault == NULL && (place.fault = judge_file_system(type)) != NULL)
        place.fix = HISTORY_ELSEWHERE;
    if (place.failure == 0 && statvfs(place.existing, &disk) == 0)
        *free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (place.fault != NULL) {
        finding_say(finding, FINDING_WARNING, place.fix, "No history in %s: %s.", path, place.fault);
    } else if (place.failure != 0 || type[0] == '\0') {
        finding_say(finding, FINDING_UNKNOWN, "ls -ld " HISTORY_FOLDER "; cat /proc/self/mounts",
                    "%s cannot be judged: %s.", path,
                    place.failure != 0 ? strerror(place.failure) : "/proc/self/mounts does not name its file system");
    } else if (*free_bytes < ROOM_LEAST) {
        finding_say(finding, FINDING_WARNING, "df -h ~  # and make room, or set SPARKGUARD_HISTORY=FOLDER",
                    "Only %s of the 64 MiB that the history may take are free at %s.", text_size(*free_bytes), path);
    } else {
        finding_say(finding, FINDING_FINE, NULL, "The history is kept in %s%s.", path,
                    place.is_whole ? "" : ", which the first guarded process makes");
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
        finding_say(finding, FINDING_WARNING, HISTORY_ELSEWHERE, "HOME is not set: no history is kept.");
    } else {
        judge_place(doctor, finding, folder, &free_bytes);
    }
    finding_figure(finding, "disk_free_bytes", free_bytes);
}

DOCTOR_CHECK(260, check_history, "history",
             "After a freeze and a power cut, only the history says which job it was and what it held.");
