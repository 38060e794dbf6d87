/*
 * model.h - the model: machine, jobs and processes with all figures that the tools show. Each figure is computed once.
 *
 * Unknown byte counts are SG_UNKNOWN. Texts are raw bytes of the segments with a NUL appended; renderers must escape
 * them. Only model_build() and the functions it calls write to a model. The tools are single-threaded.
 */
#ifndef SG_TOOLS_MODEL_MODEL_H
#define SG_TOOLS_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uthash.h>
#include <utlist.h>

#include "model/tenants.h"
#include "observer/observe.h"
#include "model/host/host.h"
#include "model/segment_reader.h"
#include "model/verdict.h"
#include "sparkguard_abi.h"

struct model_domain {
    uint64_t live_bytes;
    uint64_t peak_bytes;
    uint64_t at_peak_bytes; /* the domain's part of the process's peak */
    uint64_t allocations;
    uint64_t frees;
    uint64_t refused_count;
};

struct model_refusal {
    uint64_t sequence;
    int64_t time_ns;
    uint64_t size_bytes;
    uint64_t usable_bytes;
    uint64_t kept_bytes; /* reserve that had to remain; SG_UNKNOWN: not known, or refused for limit or floor */
    enum sg_domain domain;
    enum sg_reason reason;
    char call[SG_CALL_BYTES + 1];
};

struct model_phase {
    uint64_t sequence;
    int64_t time_ns;
    uint64_t live_bytes;
    uint64_t peak_bytes;
    char name[sizeof((struct sg_phase *)0)->name + 1];
};

struct model_event {
    uint64_t sequence;
    int64_t time_ns;
    char what[sizeof((struct sg_event *)0)->what + 1];
};

/* A call site with large blocks that are live, or were live at the process's peak or at its last refusal. */
struct model_site {
    bool is_named;
    int domain; /* enum sg_domain; -1: several */
    uint64_t offset;
    uint64_t live_bytes;
    uint64_t live_count;
    uint64_t peak_bytes;       /* highest live_bytes */
    uint64_t at_peak_bytes;    /* live_bytes at the process's peak */
    uint64_t at_refusal_bytes; /* live_bytes at the last refusal */
    char library[SG_CALLSITE_NAME_BYTES + 1];
};

/* The last action of a process's own watchdog before the process ended. */
enum model_watchdog { MODEL_NO_WATCHDOG, MODEL_SENT_TERM, MODEL_SENT_KILL, MODEL_ENDED_IT };

/* What a container with a directory of its own tells the host; figures that the machine cannot have are unknown. */
struct model_told {
    char *name;
    uint64_t limit_bytes;    /* of the job that spoke last; SG_UNKNOWN: none */
    uint64_t live_bytes;     /* of that job */
    uint64_t promised_bytes; /* as the host's programs count it */
};

struct model_process {
    uint32_t pid;           /* in its own PID namespace */
    uint32_t pid_namespace; /* the inode of that namespace; 0: unknown. Beside `pid`: the two are a key */
    uint32_t parent_pid;    /* in the same namespace */
    uint32_t host_pid;      /* the number in this PID namespace; 0: it has ended, or cannot be seen from here */
    uid_t user;             /* the owner of the record's file */
    char *record_name;      /* of that file */
    dev_t record_device;
    ino_t record_inode;
    char *container; /* the name of the container in which it runs or ran; NULL: none, or this tool's own */
    char container_note[SG_CONTAINER_BYTES + 1]; /* what the record says about that */
    uint64_t start_ticks;
    enum sg_state state;
    bool is_guarding;
    bool is_observing;
    bool is_claiming; /* a launcher that waits for the claim of a program, whose command line is `command` */
    bool is_limit_bound, is_reserve_bound; /* its limit, its reserve is a bound of the administrator (SG_BOUNDS_FILE) */
    bool is_sharing;                       /* the process and its peers count each other through the registry */
    bool is_watched;
    uint32_t oom;                             /* enum sg_oom, as the launcher found out */
    uint32_t command_hash;                    /* of the launcher's command line; 0: unknown */
    bool is_cut_off;                          /* ran when the machine stopped: its record is of an earlier boot */
    enum model_watchdog watchdog;             /* the action that ended the process, if any */
    const struct model_event *watchdog_event; /* the watchdog's event about that action, else NULL */
    const char *watchdog_detail;              /* the rest of the event's text, "" if none */
    int exit_code;                            /* -1: unknown */
    int signal;                               /* 0: none or unknown */
    int64_t started_ns;
    int64_t ended_ns;     /* 0: running or unknown */
    int64_t last_seen_ns; /* ended_ns if known, else the latest time in its record. Never 0 */
    uint64_t live_bytes;
    uint64_t peak_bytes;
    int64_t peak_ns;
    uint64_t job_peak_bytes;   /* highest sum over its job at one time, as this process saw it */
    uint64_t limit_peak_bytes; /* that sum with its own resident MAP_NORESERVE bytes; 0: it had none */
    uint64_t promised_bytes;
    struct sg_memory_file file[SG_FILE_CAPACITY]; /* mapped shared memory */
    bool is_named; /* other processes know which of its memory is shared: it runs, and has an entry in the registry */
    uint64_t in_flight_bytes;
    uint64_t inherited_bytes;
    uint64_t inherited_device_bytes; /* part of inherited_bytes */
    uint64_t inherited_shared_bytes; /* part of inherited_bytes */
    uint64_t shared_bytes;           /* of shared memory, as the process had it at its last change */
    uint64_t limit_bytes;            /* SG_UNKNOWN: none */
    uint64_t refused_count;
    uint64_t refused_bytes;
    uint64_t registered_bytes;
    uint64_t sparse_resident_bytes;
    uint64_t unaccounted_bytes; /* measured memory taken without a request; SG_UNKNOWN without CUDA */
    uint64_t unmatched_frees;
    uint64_t faults;
    struct model_domain domain[SG_DOMAIN_COUNT];
    struct model_refusal *refusals; /* oldest first */
    struct model_phase *phases;
    struct model_event *events;
    struct model_site *sites; /* largest first, by the larger of live_bytes and at_peak_bytes */
    size_t refusal_count, phase_count, event_count, site_count;
    struct sg_machine machine; /* the last snapshot that the process took */
    struct sg_device device[SG_DEVICE_CAPACITY];
    uint64_t run_key;          /* SG_RUN of its run of the job; 0: unknown */
    size_t run;                /* index of its run in the job's runs */
    uint32_t max_resident_mib; /* the kernel's largest resident size, recorded at exit; 0: unknown */
    char *command;
    char *job;
    uint64_t job_hash;
    char library_version[sizeof((struct sg_segment *)0)->library_version + 1];
    char *segment_path;                /* the file from which the process was read */
    struct model_process *prev, *next; /* utlist, sorted by start */
    struct model_process *parent;      /* the parent if the model shows it, else NULL */
    UT_hash_handle hh;                 /* by PID and namespace; used by model_parents_fill() only */
    void *line;                        /* for renderers */
    bool is_folded;                    /* has no line of its own: see model_fold() */
};

/* One run of a job: processes with the same first process, or with overlapping lifetimes. */
struct model_run {
    int64_t started_ns;
    int64_t last_seen_ns;
    uint32_t first_pid;   /* PID of the earliest recorded process */
    uint64_t limit_bytes; /* smallest limit of its processes; SG_UNKNOWN: none */
    uint64_t peak_bytes;  /* highest sum over its processes at one time, as one of them saw it or as of now */
    uint64_t refused_count;
    size_t process_count;
    size_t running_count;
    bool is_observing;                /* one of its processes is: what is counted as refused was not */
    struct model_job_verdict verdict; /* text NULL: not asked for */
};

struct model_job {
    char *name;
    uint64_t hash;         /* sg_job_hash() of name and user: one name of two users means two jobs; 0: unknown */
    const char *directory; /* SPARKGUARD_DIR of its processes; one name in two directories means two jobs */
    uint64_t limit_bytes;  /* smallest limit of its running processes, or of all if none runs; SG_UNKNOWN: none */
    bool is_limit_bound, is_reserve_bound; /* of a running process (model_process) */
    uint64_t shared_bytes;                 /* that running processes hold together (sg_observe_shared) */
    uint64_t live_bytes; /* sum over running processes; inherited bytes of forked processes count once */
    uint64_t peak_bytes; /* highest sum over its processes at one time, as one of them saw it or as of now */
    uint64_t refused_count;
    size_t process_count;
    size_t running_count;
    int64_t started_ns;
    int64_t last_seen_ns;
    struct model_run *runs; /* sorted by start; at least one. The verdict of a job is that of its last run */
    size_t run_count;
    struct model_process *processes;
    struct model_job *prev, *next; /* utlist, sorted by start */
    char *key;                     /* name and hash */
    bool has_namesake;             /* another user's job in the directory has this name */
    UT_hash_handle hh, hh_name;    /* by key; by name, the first of each */
};

struct model_device {
    bool is_known;
    uint64_t total_bytes;
    uint64_t live_bytes;
    uint64_t reserve_bytes; /* reserve of a discrete device; SG_UNKNOWN for unified memory */
    char name[sizeof((struct sg_device *)0)->name + 1];
};

struct model_machine {
    int unified;     /* 1: unified memory; 0: not; -1: unknown */
    bool is_sharing; /* all running guarded processes are in the model and count each other */
    uint64_t total_bytes;
    uint64_t ordinary_bytes; /* total_bytes less the memory set aside for huge pages; percentages refer to it */
    uint64_t available_bytes;
    uint64_t usable_bytes; /* of the constraint with the least headroom, for a job without a claim; the reserve is not
                            * subtracted */
    uint64_t reserve_bytes;
    uint64_t floor_bytes;
    uint64_t promised_bytes;
    uint64_t claimed_bytes;     /* what is left of the claims of running jobs */
    uint64_t guarded_bytes;     /* live bytes of all running processes in the machine's memory */
    uint64_t unaccounted_bytes; /* SG_UNKNOWN: no process has measured any */
    uint64_t swap_total_bytes;
    uint64_t swap_used_bytes;
    uint64_t cgroup_limit_bytes; /* smallest limit of the cgroups above this tool */
    uint64_t most_bytes;         /* what would be granted if nothing held memory */
    uint64_t device_room_bytes;  /* the largest request for device memory that would be granted now; SG_UNKNOWN: it is
                                  * not the machine's memory */
    uint64_t limit_left_bytes;   /* what the limit of the job that the scope joins leaves; SG_UNKNOWN: it has none */
    bool is_limit_bound;         /* /etc/sparkguard.conf decides that limit */
    struct model_device device[SG_DEVICE_CAPACITY];
};

struct model_unguarded {
    uint32_t pid;
    uint64_t resident_bytes;
    uint64_t device_bytes; /* by NVML; SG_UNKNOWN: it was not asked, or did not answer */
    char *command;
    uid_t user;
    char *container; /* as of a guarded process */
    char *reason;    /* why it is unguarded; NULL: unknown */
};

/* What unguarded processes of one container hold together. */
struct model_unguarded_container {
    char *id, *name;
    char *reason; /* why they are unguarded; NULL: unknown */
    uid_t user;   /* of the largest process */
    size_t process_count;
    uint64_t resident_bytes; /* anonymous bytes of all processes, plus the largest shared bytes of one */
    uint64_t device_bytes;   /* as of a process */
    uint64_t anonymous_bytes, shared_bytes, largest_bytes; /* while they are added up */
    uint32_t largest_pid;
};

enum { MODEL_UNGUARDED_CAPACITY = 5, MODEL_TOLD_CAPACITY = 64, MODEL_OTHER_DIRECTORY_CAPACITY = 4 };

/* The filters of a report. Without a filter the model holds the running jobs and the job that ended last. */
struct model_scope {
    char *const *directories; /* names or patterns; none: the reader's own directory */
    size_t directory_count;
    uint32_t pid;      /* 0: any */
    const char *job;   /* NULL: any */
    uint64_t job_hash; /* with `job`: of one user; 0: of any */
    bool is_all;
    bool is_last;
    int64_t since_ns;      /* only jobs last seen at or after this time; 0: all */
    uint64_t joins;        /* hash of the job that a process would begin in, whose limit counts; 0: a job of its own */
    bool wants_unguarded;  /* also list unguarded processes, and name claims that no record has named */
    bool wants_devices;    /* also ask NVML for their device memory */
    bool wants_history;    /* also read the history of the first directory */
    bool wants_containers; /* also read the containers' own directories, where others are named */
    bool wants_verdicts;   /* also judge each run, for which time lines are read */
};

/* Why a directory is read: by default, because it was named, because a pattern matched it, or because it is a
 * container's own. The last two may be a stranger's: what is read of them is bounded. */
enum model_origin { MODEL_DEFAULT, MODEL_NAMED, MODEL_MATCHED, MODEL_CONTAINER };

struct model_directory {
    char *path;
    enum model_origin origin;
    int error;              /* errno of opening the directory; 0: opened */
    size_t complaint_count; /* complaints about its files, and about the history if read with it */
    bool is_there;          /* the directory exists; the next three fields are valid */
    uid_t owner;
    dev_t device;
    ino_t inode;
};

struct model_found;

struct model {
    struct model_directory *directories;
    size_t directory_count;
    char *history; /* directory of the history; NULL: not requested or absent */
    int history_error;
    struct model_machine machine;
    struct model_job *jobs;             /* jobs to show */
    struct model_job *by_key, *by_name; /* hashes of one directory's jobs, while that directory is read */
    size_t hidden_jobs;                 /* number of jobs that the scope left out */
    size_t hidden_namesakes;            /* number of earlier processes with the requested PID */
    struct model_unguarded unguarded[MODEL_UNGUARDED_CAPACITY]; /* the largest, by resident and unified device memory */
    size_t unguarded_count;
    struct model_unguarded_container unguarded_containers[MODEL_UNGUARDED_CAPACITY]; /* in the same order */
    size_t unguarded_container_count;
    struct model_claims claims; /* of the directories read */
    uint64_t joins;             /* as in the scope */
    uint64_t shared_bytes;      /* as of a job, over all jobs */
    bool has_observed;
    struct sg_observation observed;              /* of the directories read: what the library would decide by */
    struct host_containers containers;           /* records of sparkguard-runtime beside the directories read */
    struct model_told told[MODEL_TOLD_CAPACITY]; /* the first that are read */
    size_t told_count;                           /* of all */
    /* Other directories, which are not counted here: the first ones by name, and the number of all. */
    char *other_directories[MODEL_OTHER_DIRECTORY_CAPACITY];
    size_t other_directory_count;
    char *own_directory;        /* the reader's own, where it has records and is not read; NULL: there is none */
    char *live_other_directory; /* the first other directory by name in which a process may run; NULL: none */
    size_t live_other_directory_count;
    size_t veiled_count; /* rejected files that a running process may own */
    char **complaints;   /* "FILE: why" for each rejected file */
    size_t complaint_count;
    size_t said_count;         /* complaints already printed */
    struct model_found *found; /* what was read of each owner's, by patterns */
    unsigned found_count;      /* segments of users other than root among it */
    bool is_terse;             /* complaints are counted and not kept: there are enough about a directory */
    size_t unsaid_count;       /* of these */
};

/* Returns the identity of a job of this user; 0: it has no name yet. In a job that root began, unless a new one begins
 * there, the user's processes are of root's job. */
uint64_t model_own_job(const char *name, bool is_new);
/* Returns the name of a job's user if another user's job has its name, else NULL. */
char *model_job_user(const struct model_job *job);

/* Reads the directories, builds the model and narrows it to the scope. Never NULL. */
struct model *model_build(const struct model_scope *scope);
/* Sets is_folded for the smallest processes of a job with very many: of its running or of its ended ones. Returns the
 * number of folded processes. */
size_t model_fold(const struct model_job *job, bool is_running);

/* Prints each complaint on stderr, once. */
void model_say_complaints(struct model *model);
/* Prints one line on stderr with the number of complaints and the first of them. */
void model_say_complaints_shortly(const struct model *model);

/* ---- parts of model_build(), one file each ---- */

/* process.c: makes a process from a verified segment. */
struct model_process *model_process_from(const struct model_segment *segment);
/* select.c: removes jobs outside of the scope; removes the processes of other PIDs, if the scope names one. */
void model_select(struct model *model, const struct model_scope *scope);
void model_select_process(struct model *model, const struct model_scope *scope);
/* Returns whether the scope names a job, process or time for which there may be no record. */
bool model_scope_is_narrow(const struct model_scope *scope);
/* machine.c: asks the core about a directory, whose segments have been read; -1: no directory. */
void model_machine_observe(struct model *model, int directory, const struct model_directory *from);
void model_machine_fill(struct model *model);
/* Returns the machine or the cgroup with the least room: what is usable above its reserve. Never NULL. */
const struct sg_observed_constraint *model_tightest(const struct sg_observation *observed);
void model_unguarded_fill(struct model *model, bool wants_devices);
/* Returns the machine's memory that a process takes, as far as it is known: its device memory too, unless that is known
 * to be a discrete GPU's. */
uint64_t model_unguarded_bytes(const struct model *model, const struct model_unguarded *unguarded);
/* place.c: reads the records of containers, and fills the container of each process. */
void model_places_fill(struct model *model);
void model_other_directories_fill(struct model *model);
/* Returns the folder where sparkguard-runtime keeps records and own directories of containers: 0 root's, 1 the user's;
 * NULL: there is none. */
enum { MODEL_RECORDS = 2 };
char *model_records_folder(size_t index);
/* Returns whether a directory may be a stranger's. */
bool model_directory_is_found(const struct model_directory *directory);
void model_directories_fill(struct model *model, const struct model_scope *scope);
/* Returns whether every directory could be read. */
bool model_directories_are_read(const struct model *model);
/* Returns whether all errors and complaints concern directories that a pattern matched, and there are any. Such a
 * directory may belong to anybody. */
bool model_directories_found_amiss(const struct model *model);
/* Returns whether a directory could not be read although it was named or exists. */
bool model_directory_is_faulty(const struct model_directory *directory);
/* Returns the directory with this identity, or NULL if the model does not read it. */
const struct model_directory *model_directory_find(const struct model *model, dev_t device, ino_t inode);
/* kernel_log.c: returns whether the kernel's log names the process with this PID as a victim of the OOM killer between
 * two times of CLOCK_REALTIME, which may be wrong by seconds. False also where the log cannot be read, as by users of a
 * kernel with kernel.dmesg_restrict=1, or holds no entry of that time any more. */
bool model_kernel_log_names(uint32_t pid, int64_t from_ns, int64_t until_ns);
/* tree.c: finds the parent of each process. */
void model_parents_fill(struct model *model);

/* runs.c: fills the runs of a job, and the run of each process. The processes must be sorted by start. */
void model_runs_fill(struct model_job *job);
/* outcome.c: finds out whether the process's own watchdog ended it, and corrects its state. All other fields must be
 * filled. */
void model_process_judge_end(struct model_process *process);

/* process.c: returns the most that its job held at one time, as far as this process knows: with its own resident
 * MAP_NORESERVE memory. */
uint64_t model_job_peak(const struct model_process *process);

/* process.c: returns the live bytes that no other process counts, nor sg_observe_shared(). */
uint64_t model_process_own_bytes(const struct model_process *process);
/* Returns whether a running process guards without a registry entry, that is, decides alone. The reason is a text of
 * the process's events such as "not sharing: no room ...", or "not sharing". */
bool model_process_is_alone(const struct model_process *process);
const char *model_process_alone_reason(const struct model_process *process);

/* Parts of the machine's memory, in the order of a bar from left to right: held by guarded processes, otherwise in
 * use, promised, what is left of the jobs' claims, headroom that admission would grant now, reserve. The floor is a
 * part of the reserve. */
enum model_part_kind {
    MODEL_PART_GUARDED,
    MODEL_PART_OTHER,
    MODEL_PART_PROMISED,
    MODEL_PART_CLAIMED,
    MODEL_PART_CAPACITY,
    MODEL_PART_RESERVE,
    MODEL_PART_FLOOR,
    MODEL_PART_COUNT,
};
struct model_part {
    uint64_t bytes;
    uint64_t shown_bytes; /* length in a bar, without overlap; reserve and floor are at the right end */
};
extern const char *const model_part_name[MODEL_PART_COUNT];
/* Fills the parts. Returns false where the kernel's figures are unknown. */
bool model_machine_parts(const struct model_machine *machine, struct model_part part[MODEL_PART_COUNT]);

/* Returns the number of a process for people: its PID in this namespace, else that of its record. */
uint32_t model_process_number(const struct model_process *process);
/* Returns the same as a text. A number of another PID namespace, of a process that has ended there, is called one. */
char *model_process_name(const struct model_process *process);
/* Returns where a job's processes run or ran and for whom, where that is not the reader's own and not said by the job's
 * name: "container web, user alice". NULL: there is nothing to say. Printable. */
char *model_job_place(const struct model_job *job, bool is_utf8);

/* Returns the composition of a process's peak, "device 60.0 GiB, heap 8.0 GiB"; "" if none. */
char *model_peak_text(const struct model_process *process);

/* Returns how a process ended: "exited with status 0", "killed by SIGKILL", "killed by SIGTERM from its own watchdog",
 * "running". The result is `text` or a constant. */
enum { MODEL_END_TEXT = 96 };
const char *model_end_text(const struct model_process *process, char text[MODEL_END_TEXT]);

/* Returns a text about a process that its watchdog ended: "4711 ended by its own watchdog at 13:07:42: " and the rest
 * of the watchdog's event. process->watchdog_event must not be NULL. */
char *model_fate_text(const struct model_process *process, bool is_utf8);

/* Returns the word for the amount that a refusal found too small: "usable" memory, or memory "left" of a limit. */
const char *model_headroom_word(enum sg_reason reason);

extern const char *const model_domain_name[SG_DOMAIN_COUNT];
extern const char *const model_state_name[SG_STATE_KILLED + 1];
extern const char *const model_reason_name[SG_REASON_DEVICE + 1];
extern const char *const model_driver_fact_name[SG_DRIVER_FACT_COUNT];
/* Sentences without capital and full stop: where it is so, and where it is not. */
extern const char *const model_driver_fact_text[SG_DRIVER_FACT_COUNT][2];
extern const char *const model_finding_name[SG_FACT_DISPROVED + 1];

#endif
