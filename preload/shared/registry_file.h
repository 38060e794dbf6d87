/*
 * registry_file.h - the registry as a file: made whole or not at all, checked before it is believed. With signals
 * blocked.
 */
#ifndef SG_PRELOAD_SHARED_REGISTRY_FILE_H
#define SG_PRELOAD_SHARED_REGISTRY_FILE_H

#include "sparkguard_abi.h"

#include <stdbool.h>

struct sg_registry_file {
    struct sg_registry *ledger; /* where it is mapped, or NULL */
    uint64_t device, inode;
    uint64_t directory; /* inode of the one it is in */
};

/* Another version has its ledger in the place of ours: this version's processes meet in one of another name. */
void sg_registry_file_give_way(bool is_foreign_there);

/* Opens the other of the two, which another version's processes share: a descriptor, or -errno. */
long sg_registry_file_open_foreign(int flags);

/* The byte of a registry entry: locks it for the open file (0, or -errno: -EAGAIN somebody has it), and whether
 * somebody else's open file has it; where that cannot be told, yes. */
long sg_registry_file_lock(int fd, uint32_t number);
bool sg_registry_file_has_owner(int fd, uint32_t number);

/* Opens the file in SPARKGUARD_DIR: a descriptor, or -errno. */
long sg_registry_file_open(int flags);

/* Maps it, making it if it is not there. 0 or -errno: -EPERM it is a stranger's, -EPROTO another version's. */
long sg_registry_file_map(struct sg_registry_file *file);

/* Whether `fd` is the file that is mapped; whether its directory can be reached by its name. */
bool sg_registry_file_is_same(const struct sg_registry_file *file, int fd);
bool sg_registry_file_is_in_reach(const struct sg_registry_file *file);

/* Whether what is in the directory's place now is trusted as it was at the start: after it went, somebody else may
 * have made it. */
bool sg_registry_file_is_directory_ours(void);

#endif
