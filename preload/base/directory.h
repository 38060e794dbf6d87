/*
 * directory.h - the directories that the library writes to: SPARKGUARD_DIR and SPARKGUARD_HISTORY. Any thread.
 */
#ifndef SG_PRELOAD_BASE_DIRECTORY_H
#define SG_PRELOAD_BASE_DIRECTORY_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* Opens a directory; what it is goes to `info`. A descriptor or -errno; -EPERM: it belongs to neither us nor root, or
 * is open to all. A link in its place is not followed, however the path is spelt. */
int sg_directory_open(const char *directory, struct stat *info);

/* The same, making its last component if it is not there. */
int sg_directory_open_or_make(const char *directory, struct stat *info);

/* Opens SPARKGUARD_HISTORY, making it and those of its folders that history_depth allows. */
int sg_directory_open_history(struct stat *info);

/* Shows every name in an open directory to `visit`, from the first on, through `buffer` of `room` bytes, until it
 * answers false. */
void sg_directory_visit(int directory, char *buffer, size_t room,
                        bool (*visit)(int directory, const char *name, void *context), void *context);

/* Makes the last component, 0700 whatever the umask is. 0, also if it is there, or -errno. */
long sg_directory_make(const char *directory);

/* Whether it is ours or root's. */
bool sg_directory_is_trusted(const struct stat *info);

/* The mode of files in it: 0600, or 0660 where it is shared by a group (2770). */
unsigned sg_directory_file_mode(const struct stat *info);

/* The name, or the path, of the time line beside a segment with that name or path. */
void sg_directory_name_timeline(char *name, size_t room, const char *segment);

/* An error for those who look at the folders above. */
#define SG_DIRECTORY_FOREIGN (-EXDEV)

/* What an error of the above, or of writing there, means to people, with a colon before it. */
const char *sg_directory_error_text(long error);

#endif
