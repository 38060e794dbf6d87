/*
 * registry_file.h - the registry as a file: created complete or not at all, and validated before it is used. Call with
 * signals blocked.
 */
#ifndef SG_PRELOAD_SHARED_REGISTRY_FILE_H
#define SG_PRELOAD_SHARED_REGISTRY_FILE_H

#include "sparkguard_abi.h"

#include <stdbool.h>

struct sg_registry_file {
    struct sg_registry *registry; /* the mapping, or NULL */
    size_t entry_bytes;           /* distance from one entry to the next */
    uint64_t device, inode;
    uint64_t directory; /* inode of the directory that holds the file */
};

/* Locks byte `number` of the file, which owns the registry entry of that number, for the open file `fd`. 0 or -errno;
 * -EAGAIN: another open file holds the lock. Byte SG_ENTRY_CAPACITY is that of who changes what is set for jobs. */
long sg_registry_file_lock(int fd, uint32_t number);
void sg_registry_file_unlock(int fd, uint32_t number);

/* Whether another open file holds the lock on byte `number`. True also if the kernel does not answer. */
bool sg_registry_file_has_owner(int fd, uint32_t number);

/* Opens the registry in SPARKGUARD_DIR. A descriptor, or -errno. */
long sg_registry_file_open(int flags);

/* Maps the registry into file->registry and creates the file if there is none. 0 or -errno; -EPERM: the file belongs to
 * another user; -EPROTO: no registry, or one that this version cannot share. Under the decision lock. */
long sg_registry_file_map(struct sg_registry_file *file);

/* The same for a tool: makes no file, and may map one of another user. */
long sg_registry_file_map_any(struct sg_registry_file *file);

/* Write and read the further ranges of shared memory of entry `number`, of the file that was mapped last. Return how
 * many they could; 0 if the file was removed or cannot be opened. Any thread. */
uint32_t sg_registry_file_write_more(uint32_t number, const struct sg_memory_file *more, uint32_t count);
uint32_t sg_registry_file_read_more(uint32_t number, uint32_t first, struct sg_memory_file *more, uint32_t count);

/* For the observer: from now on these are read from `fd`, which stays open. */
void sg_registry_file_read_from(int fd);

/* In a forked child that will go on in the middle of a change of the parent's entry: replaces the mapping by private
 * memory, which takes the rest of the change, and forgets it. 0 or -errno: the mapping stays. */
long sg_registry_file_unshare(struct sg_registry_file *file);

/* Whether `fd` is the file that is mapped. */
bool sg_registry_file_is_same(const struct sg_registry_file *file, int fd);

/* Whether SPARKGUARD_DIR still names the directory that the file was mapped from. False behind a chroot, or if a
 * relative SPARKGUARD_DIR now names another place. */
bool sg_registry_file_is_in_reach(const struct sg_registry_file *file);

/* Whether the present SPARKGUARD_DIR passes the ownership check of the start. After the first one was removed, another
 * user may have made a directory of that name. */
bool sg_registry_file_is_directory_ours(void);

#endif
