/*
 * procfs.h - what /proc/PID/stat says about a process.
 */
#ifndef SG_TOOLS_COMMON_PROCFS_H
#define SG_TOOLS_COMMON_PROCFS_H

#include <stdbool.h>
#include <stdint.h>

/* What stands before /proc/PID and /dev/shm. "": processes are the real ones, whatever SPARKGUARD_SYSTEM_ROOT says;
 * only sparkguard-doctor, which examines whole trees, sets another, before anything is read. */
extern const char *procfs_live_root;

/* Room for a path below it. */
enum { PROCFS_PATH_CAPACITY = 4608 };

struct procfs_stat {
    uint64_t start_ticks; /* field 22: with the pid, the identity of a process since boot */
    uint32_t parent_pid;
    bool is_ending; /* a zombie, or on its way out */
};

/* 0, or -errno where there is no such process. */
int procfs_stat(uint32_t pid, struct procfs_stat *out);

/* Whether it maps a file of that name, in whichever directory; false where that cannot be seen. */
bool procfs_maps(uint32_t pid, const char *name);

/* Which start of the machine this is, as segments have it; false if unknown. */
bool procfs_boot_id(uint64_t id[2]);

/* Anonymous and shared memory that is there: RssAnon + RssShmem; SG_UNKNOWN where the process cannot be seen. */
uint64_t procfs_resident_bytes(uint32_t pid, uint64_t start_ticks);

/* Reads up to room - 1 bytes of a file and ends them with NUL: the length, or -errno. */
long procfs_read_text(const char *path, char *text, unsigned long room);

/* The number behind `key` at the start of a line of a text such as /proc/meminfo or memory.stat; SG_UNKNOWN if absent. */
uint64_t procfs_number_after(const char *text, const char *key);

/* A figure that the kernel gives in KiB, in bytes; SG_UNKNOWN where it is unknown or absurd. */
uint64_t procfs_kib(uint64_t kib);

/* What percentages of the machine are of, by the text of /proc/meminfo: MemTotal less the pool of huge pages;
 * SG_UNKNOWN. */
uint64_t procfs_ordinary_bytes(const char *meminfo);

#endif
