/*
 * procfs.h - reads /proc: facts about one process, and figures of the machine.
 */
#ifndef SG_TOOLS_COMMON_PROCFS_H
#define SG_TOOLS_COMMON_PROCFS_H

#include <stdbool.h>
#include <stdint.h>

/* Prefix of /proc/PID and /dev/shm. It is "" in every tool but sparkguard-doctor: processes are the real ones, even
 * under SPARKGUARD_SYSTEM_ROOT. sparkguard-doctor examines whole trees and sets the prefix before reading anything. */
extern const char *procfs_live_root;

/* Buffer size for a path below procfs_live_root. */
enum { PROCFS_PATH_CAPACITY = 4608 };

struct procfs_stat {
    uint64_t start_ticks; /* field 22; together with the PID it identifies a process since boot */
    uint32_t parent_pid;
    bool is_ending; /* a zombie, or the kernel is ending the process */
};

/* Reads /proc/PID/stat. Returns 0, or -errno where there is no such process or its line cannot be parsed. */
int procfs_stat(uint32_t pid, struct procfs_stat *out);

/* Returns whether the process maps a file with this base name, in any directory. False also where /proc/PID/maps cannot
 * be read. */
bool procfs_maps(uint32_t pid, const char *name);

/* Reads the boot ID of the machine, in the form of sg_segment.boot_id. Returns false if unknown. */
bool procfs_boot_id(uint64_t id[2]);

/* Returns the resident anonymous and shared memory of a process (RssAnon + RssShmem). SG_UNKNOWN if the process cannot
 * be read, is ending, or has another start time than start_ticks, that is, the PID was reused. */
uint64_t procfs_resident_bytes(uint32_t pid, uint64_t start_ticks);

/* Reads up to capacity - 1 bytes of a file and appends a NUL. Returns the length, or -errno. */
long procfs_read_text(const char *path, char *text, unsigned long capacity);

/* The same of /proc/PID/FILE, below procfs_live_root. */
long procfs_read(uint32_t pid, const char *file, char *text, unsigned long capacity);

/* Returns the number after `key` at the start of a line, in a text such as /proc/meminfo or memory.stat. SG_UNKNOWN if
 * absent. */
uint64_t procfs_number_after(const char *text, const char *key);

/* Converts KiB to bytes. Returns SG_UNKNOWN for SG_UNKNOWN and for more than 2^50 KiB, which no machine has. */
uint64_t procfs_kib(uint64_t kib);

#endif
