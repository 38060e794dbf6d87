/*
 * host.h - facts of the host about processes: their numbers in this PID namespace, their users and containers, their
 * device memory, and why the library is not in them.
 */
#ifndef SG_TOOLS_MODEL_HOST_HOST_H
#define SG_TOOLS_MODEL_HOST_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- pids.c: PIDs of other namespaces ---- */

/* Returns the number that the process of a record has in this PID namespace; 0: it has ended, or cannot be seen from
 * here. pid_namespace is the record's, 0 if unknown. /proc is searched at the first call with a PID of another
 * namespace, and again after host_pids_forget(). */
uint32_t host_pid_of(uint32_t pid, uint64_t start_ticks, uint32_t pid_namespace);
/* Returns whether PIDs of that namespace are numbers of this process's namespace; true if unknown. */
bool host_is_own_namespace(uint32_t pid_namespace);
void host_pids_forget(void);

/* Returns the number of a process in its own PID namespace, by its /proc/PID/status; 0: it has that of the reader. */
uint32_t host_inner_pid(const char *status);

/* ---- cgroup.c ---- */

enum { HOST_ID_CAPACITY = 128, HOST_SHORT_DIGITS = 12, HOST_ID_DIGITS = 64 };

/* Finds the container in a text of /proc/PID/cgroup: by the 64 digits of an ID, or by the name that systemd-nspawn and
 * LXC give the cgroup. Returns false if the text names none. */
bool host_container_of_cgroup(const char *text, char id[HOST_ID_CAPACITY]);
/* Returns whether a path of that text is the record's cgroup or lies below it. The record has a path, or
 * "SLICE:PREFIX:NAME" as systemd's cgroup drivers write it. */
bool host_is_in_cgroup(const char *text, const char *cgroup);

/* ---- containers.c: containers and their names ---- */

/* What sparkguard-runtime wrote down about a container that it started. */
struct host_container {
    char *id;
    char *name;
    char *cgroup; /* NULL: unknown */
    char *reason; /* why the container is unguarded; NULL: unknown, or it is guarded */
    bool is_guarded;
};

/* The records of the directories read. */
struct host_containers {
    struct host_container *at;
    size_t count;
};

/* Reads a folder of records. Files of other users than `owner` and root are not read, and neither are links, files that
 * others may write, and what is no such record. No message. */
void host_containers_read(struct host_containers *containers, const char *records, uid_t owner);
/* Returns the record of a container by its ID or the beginning of it, or NULL. */
const struct host_container *host_containers_find(const struct host_containers *containers, const char *id);
/* Returns the ID of the container in which a process of this namespace runs; NULL: in none, or in this process's own.
 * *record is what is known of it, or NULL. */
char *host_container_id(const struct host_containers *containers, uint32_t pid, const struct host_container **record);
/* Returns the name for an ID: that of its record, else the one that Docker or Podman knows, else its first 12
 * digits. */
char *host_container_name(const struct host_containers *containers, const char *id);

/* ---- engines.c ---- */

/* Returns the name that Docker's or Podman's own files give a container, or NULL. */
char *host_engine_name(const char *id);

/* ---- devices.c: device memory, by NVML ---- */

enum { HOST_DEVICE_PROCESSES_MAX = 4096 };

struct host_device_use {
    uint32_t pid; /* in this PID namespace */
    uint32_t padding;
    uint64_t bytes; /* on all devices; SG_UNKNOWN: NVML does not tell */
};

struct host_devices {
    bool is_known; /* NVML answered for every device */
    size_t count;
    struct host_device_use use[HOST_DEVICE_PROCESSES_MAX];
};

/* Asks NVML which processes use device memory. A child asks, for at most two seconds: on a wedged machine NVML does not
 * return. A child that does not end is left behind, and as long as it is there no other one is started. An answer is
 * kept for five seconds. */
const struct host_devices *host_devices_ask(void);
/* Returns the device memory of a process: 0 if it has none, SG_UNKNOWN if NVML did not answer. */
uint64_t host_device_bytes(const struct host_devices *devices, uint32_t pid);

/* ---- why.c ---- */

enum host_why {
    HOST_WHY_UNKNOWN,
    HOST_WHY_STATIC,
    HOST_WHY_MUSL,
    HOST_WHY_FOREIGN,    /* another architecture */
    HOST_WHY_NOT_FOUND,  /* LD_PRELOAD names the library, which is not in the process */
    HOST_WHY_NO_PRELOAD, /* LD_PRELOAD does not name the library */
    HOST_WHY_DISABLED,   /* by SPARKGUARD_DISABLE */
    HOST_WHY_ELSEWHERE,  /* the library is in the process: its record is in another directory */
    HOST_WHY_COUNT
};

/* Words for a table; NULL for HOST_WHY_UNKNOWN. */
extern const char *const host_why_text[HOST_WHY_COUNT];

/* Returns the command line of a process, its arguments separated by blanks, cut to a record's size; NULL: it has
 * none. */
char *host_command(uint32_t pid);
/* Returns the value of a variable with which a process was started; NULL: not set, or it cannot be read. Main thread
 * alone. */
char *host_variable(uint32_t pid, const char *name);
/* Returns why a process does not have the library of that base name. One thread at a time. */
enum host_why host_why_not_loaded(uint32_t pid, const char *library);
/* Returns why a process that may have the library has no record in the directories read. */
enum host_why host_why_unguarded(uint32_t pid);
/* Returns why a process is unguarded, for people: the reason that the runtime of its container wrote down, else what
 * the process shows; NULL if unknown. `record` may be NULL. */
char *host_unguarded_reason(const struct host_container *record, uint32_t pid);

/* ---- user.c ---- */

/* Returns the name of a user, or the number if there is no name. */
char *host_user_name(uid_t user);

#endif
