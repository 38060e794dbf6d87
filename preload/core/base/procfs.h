/*
 * procfs.h - the kernel's figures for a process, from the real /proc; SPARKGUARD_SYSTEM_ROOT has no effect here. Any
 * thread. `pid` 0 means this process, except in sg_procfs_is_owner.
 */
#ifndef SG_PRELOAD_BASE_PROCFS_H
#define SG_PRELOAD_BASE_PROCFS_H

#include "sparkguard_abi.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads the file `name`, which begins with a slash, of the process as sg_text_read_file does. */
long sg_procfs_read(uint32_t pid, const char *name, char *buffer, size_t capacity);

/* Anonymous resident bytes (statm: resident less shared), 0 if unknown. */
uint64_t sg_procfs_anonymous_bytes(uint32_t pid);

/* Private memory of the process that was mapped writable and has no pages, neither resident nor swapped out: statm
 * `data` less anonymous resident bytes, less VmSwap where the machine has swapped something out. Memory that is no
 * longer writable and has pages makes it too low. Too high by what was mapped without a request and never touched:
 * thread stacks, say. The size is read before the pages, so bytes that come or go meanwhile make it too high only.
 * False if unknown: another PID namespace, or hidepid. *swapped_bytes: what of the process is swapped out; 0 where
 * nothing of the machine is. */
bool sg_procfs_missing_bytes(uint32_t pid, uint64_t *bytes, uint64_t *swapped_bytes);

/* Whether the mounted /proc shows the processes of this PID namespace, with the numbers that they have in it. */
bool sg_procfs_is_of_this_namespace(void);

/* Notes whether something is swapped out on the machine. Until then it counts as swapped. */
void sg_procfs_note_swap(bool is_swapped);

/* A field of /proc/PID/stat, numbered as in proc(5), as a number; 0 if unknown. */
uint64_t sg_procfs_stat(uint32_t pid, int wanted);

/* The start time in clock ticks since boot (stat, field 22), 0 if unknown. Pid and start time together identify a
 * process, because pids are reused. */
uint64_t sg_procfs_start_ticks(uint32_t pid);

/* Whether the process with this start time is known to be ending (stat, field 9: PF_EXITING): the kernel may have freed
 * its memory already. False also if there is no such process in this PID namespace. */
bool sg_procfs_is_ending(uint32_t pid, uint64_t start_ticks);

/* Whether the process has been sent SIGKILL and its first thread has not acted on it yet (stat, field 31: pending). */
bool sg_procfs_is_killed(uint32_t pid);

/* The effective user of the process; root's of one whose memory cannot be dumped. -1 if unknown. */
int64_t sg_procfs_user(uint32_t pid);

/* For set-up: notes that this process owns its memory, where the C library could not tell later (glibc before 2.34). */
void sg_procfs_begin(void);

/* Whether this process owns its memory. A child made by vfork, or by clone(2) with CLONE_VM, uses its parent's memory
 * and must not install mappings or state of its own there. False also if unknown. */
bool sg_procfs_owns_memory(void);

/* Whether this process, whose pid is `pid`, is the owner that sg_procfs_owns_memory has noted. The pid alone does not
 * show that: both may be process 1, the child in a PID namespace of its own. */
bool sg_procfs_is_owner(uint32_t pid);

/* This thread's id. In a child that uses its parent's memory: the id of the parent's thread whose thread-local storage
 * the child uses. */
uint32_t sg_procfs_thread(void);

/* In a forked child: notes it as the owner of its memory. */
void sg_procfs_atfork_child(void);

/* How much CLOCK_MONOTONIC of this process's time namespace is ahead of the machine's, which sg_clock_ns subtracts:
 * processes compare such times in the registry. find reads it; 0 if the kernel knows none. Call it before the first
 * time is shown to others. */
extern int64_t sg_procfs_clock_offset_ns; /* (atomic) */
void sg_procfs_find_clock_offset(void);

/* The memory that percentages refer to, in KiB, from the text of a /proc/meminfo that the caller has read: MemTotal
 * minus the pool of huge pages, which only requests for huge pages can use. 0: unknown. */
uint64_t sg_procfs_ordinary_kib(const char *meminfo);

/* ---- this process's mappings, as the kernel lists them in /proc/self/maps ---------------------------------------- */

struct sg_procfs_mapping {
    uintptr_t begin, end;
    uint64_t offset, file;             /* in the file; a hash of its device and inode, 0: none */
    char rights[5];                    /* "rwxp": p private, s shared */
    char path[12];                     /* how the path or name begins; empty: anonymous */
    char name[SG_CALLSITE_NAME_BYTES]; /* what follows its last slash: name_length characters */
    uint32_t name_length;
};

/* Calls `visit` for each mapping, by rising addresses, until it returns false. Leaves out what lies above the address
 * space of programs. Returns false if the list cannot be read to its end. No lock, no memory; any thread, also in
 * signal handlers. */
bool sg_procfs_visit_mappings(bool (*visit)(void *context, const struct sg_procfs_mapping *mapping), void *context);

#endif
