/*
 * directory.h - the directories that the library writes to: SPARKGUARD_DIR and SPARKGUARD_HISTORY. Any thread.
 */
#ifndef SG_PRELOAD_BASE_DIRECTORY_H
#define SG_PRELOAD_BASE_DIRECTORY_H

#include <errno.h>
#include "base/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* Stores the path of the default directory of this user. That is /dev/shm/sparkguard-UID if it is this user's already;
 * else RUNTIME/sparkguard if `runtime`, or /run/user/UID, is this user's and closed to others, as a login makes it;
 * else the first again. Root's is made at boot. Returns false if another user has made the first, and a place is chosen
 * that he has not: in the end /tmp/sparkguard-UID, of root /run/sparkguard/root. `runtime` may be NULL, and may be in
 * `path`. */
bool sg_directory_default(char path[SG_PATH_CAPACITY], const char *runtime);

/* Sets sg_options.dir to the default directory if the option is not set. Call it before the directory is used: the
 * program may have changed its effective user since the start. Returns as sg_directory_default(). */
bool sg_directory_choose(void);

/* Opens a directory and stores its properties in *info. A descriptor or -errno; -EPERM: another user owns it (neither
 * this user nor root), or all users may write to it. A symbolic link as the last component is never followed. */
int sg_directory_open(const char *directory, struct stat *info);

/* As sg_directory_open, but makes the last component if it does not exist. */
int sg_directory_open_or_make(const char *directory, struct stat *info);

/* Makes the last component with mode 0700, whatever the umask is. 0 or -errno; 0 also if the name exists already. */
long sg_directory_make(const char *directory);

/* Whether a file or directory belongs to this process's effective user or to root. */
bool sg_directory_is_trusted(const struct stat *info);

/* Calls `visit` for every name in an open directory, from the first on, until it returns false. `buffer` of `capacity`
 * bytes is working memory. */
void sg_directory_visit(int directory, char *buffer, size_t capacity,
                        bool (*visit)(int directory, const char *name, void *context), void *context);

/* The mode for files in a directory: 0600, or SG_DIRECTORY_SHARED_MODE if a group shares the directory (mode 2770): a
 * process maps its own files, and nobody else may shorten them. */
#define SG_DIRECTORY_SHARED_MODE 0640u
unsigned sg_directory_file_mode(const struct stat *info);

/* Stores in `name` (of `capacity` bytes) the name or path of the time line beside the segment with this name or
 * path. */
void sg_directory_name_timeline(char *name, size_t capacity, const char *segment);

/* The error if another user owns a directory above SPARKGUARD_HISTORY. */
#define SG_DIRECTORY_FOREIGN (-EXDEV)

/* The message for an error of these functions, or of writing to the directory. Begins with a colon. */
const char *sg_directory_error_text(long error);

#endif
