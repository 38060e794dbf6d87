/*
 * history.c - see history.h.
 */
#include "launch/check/history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/text.h"

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

/* Shortens the path to the part that exists. Returns 0, or an errno: ENOENT if the library would not make all that is
 * missing. */
static int find_existing(struct history_folder *folder, struct stat *status)
{
    int makeable = count_makeable();
    while (lstat(folder->existing, status) != 0) {
        char *slash = strrchr(folder->existing, '/');
        if (errno != ENOENT || slash == NULL || makeable-- == 0)
            return errno;
        folder->is_whole = false;
        *(slash == folder->existing ? slash + 1 : slash) = '\0';
    }
    return 0;
}

static void set_fault(struct history_folder *folder, const char *fault, const char *fix)
{
    folder->fault = fault;
    folder->fix = fix;
}

/* Applies the library's rules (history_file.c). */
static void judge_existing(struct history_folder *folder, const struct stat *status)
{
    bool is_foreign = status->st_uid != geteuid() && status->st_uid != 0;
    if (folder->is_whole && !S_ISDIR(status->st_mode))
        set_fault(folder, "it is no directory", "ls -ld " HISTORY_FOLDER);
    else if (folder->is_whole && is_foreign)
        set_fault(folder, "it is somebody else's", "sudo chown \"$(id -u)\" " HISTORY_FOLDER);
    else if (is_foreign && !is_chosen())
        set_fault(folder, "it is not there, and a folder above it is another user's", HISTORY_ELSEWHERE);
    else if (folder->is_whole && (status->st_mode & S_IWOTH) != 0)
        set_fault(folder, "it is world-writable", "chmod o-w " HISTORY_FOLDER);
    else if (faccessat(AT_FDCWD, folder->existing, W_OK | X_OK, AT_EACCESS) != 0)
        set_fault(folder,
                  errno == EROFS     ? "the file system is read-only"
                  : folder->is_whole ? "it cannot be written to"
                                     : "it is not there and cannot be made",
                  HISTORY_ELSEWHERE);
}

struct history_folder history_judge(const char *path)
{
    struct history_folder folder = {.existing = text_copy(path, SIZE_MAX), .is_whole = true};
    struct stat status;
    folder.failure = find_existing(&folder, &status);
    if (folder.failure == ENOENT)
        set_fault(&folder, "the folder above it does not exist", "mkdir -p -m 700 " HISTORY_FOLDER);
    else if (folder.failure == 0)
        judge_existing(&folder, &status);
    return folder;
}
