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

/* Maps the registry into file->registry and creates the file if there is none; in a directory that a group shares the
 * file names a segment. `is_tool`: makes no file, and may map one of another user. 0 or -errno; -EPERM: it belongs to
 * another user; -EPROTO: no registry, or one that this version cannot share; -EXDEV: it is in another IPC namespace.
 * Under the decision lock. */
long sg_registry_file_map(struct sg_registry_file *file, bool is_tool);

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

/*
 * ---- the registry of a directory that a group shares ----
 *
 * Each member may write to it, and who may write to a file may
 * also shorten it, which ends every program that maps it. So the registry is a segment of System V, whose size nobody
 * can change, and the file machine.ledger only names it. The file carries the locks, which do not depend on its size.
 *
 * The segment is marked for removal as soon as it is made: it is there as long as a process has it, nobody can take it
 * away, and the kernel removes it behind the last one. Then the file is stale, and the next process makes both anew.
 * Processes of another IPC namespace cannot have it. Call with signals blocked.
 */

/* Reads what an open file names. 0; -ENOENT: it is no such file. */
long sg_registry_link_read(int fd, struct sg_registry_link *link);

/* Attaches the segment. `group` is that of the file: a segment of another group is not the one. Stores the address. 0
 * or -errno; -ESTALE: it is gone; -EXDEV: it is in another IPC namespace; -EPROTO: it is none that this version can
 * share. */
long sg_registry_link_attach(const struct sg_registry_link *link, uint32_t group, bool is_read_only, void **address);

/* Makes a segment of `bytes` zero bytes for a group, attaches it, and fills *link. 0 or -errno. */
long sg_registry_link_make(uint64_t bytes, uint32_t group, struct sg_registry_link *link, void **address);

/* Lets go of an address. A segment that nobody else has is gone then. */
void sg_registry_link_detach(void *address);

#endif
