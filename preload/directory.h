/*
 * directory.h - the directories that the library writes to: SPARKGUARD_DIR and SPARKGUARD_HISTORY. Any thread.
 */
#ifndef SG_DIRECTORY_H
#define SG_DIRECTORY_H

#include <sys/stat.h>

/* Opens a directory, making its last component (0700) if it is not there; what it is goes to `info`. A descriptor or -errno;
 * -EPERM: it belongs to neither us nor root, or is open to all. A link in its place is not followed. */
int sg_directory_open(const char *directory, struct stat *info);

/* The mode of files in it: 0600, or 0660 where it is shared by a group (2770). */
unsigned sg_directory_file_mode(const struct stat *info);

/* What an error of the above, or of writing there, means to people, with a colon before it. */
const char *sg_directory_error_text(long error);

#endif
