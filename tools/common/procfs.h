/*
 * procfs.h - what /proc/PID/stat says about a process.
 */
#ifndef SG_TOOLS_COMMON_PROCFS_H
#define SG_TOOLS_COMMON_PROCFS_H

#include <stdbool.h>
#include <stdint.h>

/* What stands before /proc/PID and /dev/shm. "": processes are the real ones, whatever SPARKGUARD_SYSTEM_ROOT says; only
 * sparkguard-doctor, which examines whole trees, sets another, before anything is read. */
extern const char *report_live_root;

/* Room for a path below it. */
enum { REPORT_PATH_ROOM = 4608 };

struct report_process_stat {
    uint64_t start_ticks; /* field 22: with the pid, the identity of a process since boot */
    uint32_t parent_pid;
    bool is_ending; /* a zombie, or on its way out */
};

/* 0, or -errno where there is no such process. */
int report_process_stat(uint32_t pid, struct report_process_stat *out);

/* Whether it maps a file of that name, in whichever directory; false where that cannot be seen. */
bool report_process_maps(uint32_t pid, const char *name);

/* Which start of the machine this is, as segments have it; false if unknown. */
bool report_boot_id(uint64_t id[2]);

/* Anonymous and shared memory that is there: RssAnon + RssShmem; SG_UNKNOWN where the process cannot be seen. */
uint64_t report_process_resident_bytes(uint32_t pid, uint64_t start_ticks);

/* Reads up to room - 1 bytes of a file and ends them with NUL: the length, or -errno. */
long report_read_text(const char *path, char *text, unsigned long room);

/* The number behind `key` at the start of a line of a text such as /proc/meminfo or memory.stat; SG_UNKNOWN if absent. */
uint64_t report_number_after(const char *text, const char *key);

/* A figure that the kernel gives in KiB, in bytes; SG_UNKNOWN where it is unknown or absurd. */
uint64_t report_kib(uint64_t kib);

/* What percentages of the machine are of, by the text of /proc/meminfo: MemTotal less the pool of huge pages;
 * SG_UNKNOWN. */
uint64_t report_ordinary_bytes(const char *meminfo);

#endif
