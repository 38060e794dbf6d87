/*
 * model.h - the model: machine -> jobs -> processes, every figure computed once, rendered as text or as JSON.
 *
 * Bytes are SG_UNKNOWN where unknown. Texts are the raw bytes of the segments, ended with NUL; renderers escape them.
 * Only model_build() and what it calls write to a model.
 */
#ifndef SG_TOOLS_MODEL_MODEL_H
#define SG_TOOLS_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uthash.h>
#include <utlist.h>

#include "model/segment_reader.h"
#include "sparkguard_abi.h"

struct model_domain {
    uint64_t live_bytes;
    uint64_t peak_bytes;
    uint64_t at_peak_bytes; /* its part of the process's peak */
    uint64_t allocations;
    uint64_t frees;
    uint64_t refused_count;
};

struct model_refusal {
    uint64_t sequence;
    int64_t time_ns;
    uint64_t size_bytes;
    uint64_t usable_bytes;
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

/* Where large blocks were asked for that are live, or were at the process's peak or at its last refusal. */
struct model_site {
    bool is_named;
    int domain; /* enum sg_domain; -1: several */
    uint64_t offset;
    uint64_t live_bytes;
    uint64_t live_count;
    uint64_t peak_bytes;       /* the highest of its own */
    uint64_t at_peak_bytes;    /* when the process held most */
    uint64_t at_refusal_bytes; /* when a request was last refused */
    char library[SG_CALLSITE_NAME_BYTES + 1];
};

/* What a process's own watchdog did about its end. */
enum model_watchdog { MODEL_NO_WATCHDOG, MODEL_SENT_TERM, MODEL_SENT_KILL, MODEL_ENDED_IT };

struct model_process {
    uint32_t pid;
    uint32_t parent_pid;
    uint64_t start_ticks;
    enum sg_state state;
    bool is_guarding;
    bool is_observing;
    bool is_sharing; /* others count it, and it counts them */
    bool is_watched;
    enum model_watchdog watchdog;   /* if it ended by it */
    const struct model_event *fate; /* that event, else NULL */
    const char *fate_detail;        /* what it says beyond that, "" if nothing */
    int exit_code;                  /* -1 unknown */
    int signal;                     /* 0 none or unknown */
    int64_t started_ns;
    int64_t ended_ns;     /* 0 running or unknown */
    int64_t last_seen_ns; /* the last evidence that it lived; ended_ns where that is known. Never 0 */
    uint64_t live_bytes;
    uint64_t peak_bytes;
    int64_t peak_ns;
    uint64_t job_peak_bytes;   /* the most that its job held at one time, as far as it saw */
    uint64_t limit_peak_bytes; /* the same with its own resident MAP_NORESERVE bytes; 0: it had none */
    uint64_t promised_bytes;
    struct sg_memory_file file[SG_FILE_CAPACITY]; /* shared memory that it maps, and what of it is missing */
    struct sg_origin origin[SG_ORIGIN_CAPACITY];  /* whom it has its private inherited bytes from */
    uint64_t inherited_promise_bytes; /* missing of what its parent was promised: counts when that is gone */
    uint64_t in_flight_bytes;
    uint64_t inherited_bytes;
    uint64_t inherited_device_bytes; /* part of inherited_bytes */
    uint64_t inherited_shared_bytes; /* part of inherited_bytes */
    uint64_t limit_bytes;            /* SG_UNKNOWN: none */
    uint64_t refused_count;
    uint64_t refused_bytes;
    uint64_t registered_bytes;
    uint64_t sparse_resident_bytes;
    uint64_t unaccounted_bytes; /* taken without asking, as measured; SG_UNKNOWN without CUDA */
    uint64_t unmatched_frees;
    uint64_t faults;
    struct model_domain domain[SG_DOMAIN_COUNT];
    struct model_refusal *refusals; /* oldest first */
    struct model_phase *phases;
    struct model_event *events;
    struct model_site *sites; /* the largest first, live or at the peak */
    size_t refusal_count, phase_count, event_count, site_count;
    struct sg_machine machine; /* as the process last saw it */
    struct sg_device device[SG_DEVICE_CAPACITY];
    uint64_t run_key;          /* SG_RUN of its run of the job; 0: unknown */
    size_t run;                /* its run: a place in the job's runs, from 0 */
    uint32_t max_resident_mib; /* the kernel's figure, noted at the end; 0: unknown */
    char *command;
    char *job;
    char library_version[sizeof((struct sg_segment *)0)->library_version + 1];
    char *segment_path;                /* of the file that it was read from */
    struct model_process *prev, *next; /* utlist, by start */
    struct model_process *parent;      /* of those shown; NULL: none */
    UT_hash_handle hh;                 /* by pid, while the parents are looked for */
    void *line;                        /* for renderers */
    bool is_folded;                    /* has no line of its own: see model_fold() */
};

/* One run of a job: processes that have the same first process, or that lived at one time. */
struct model_run {
    int64_t started_ns;
    int64_t last_seen_ns;
    uint32_t first_pid;   /* of the earliest process on record */
    uint64_t limit_bytes; /* the smallest of its processes; SG_UNKNOWN: none */
    uint64_t peak_bytes;  /* of all its processes at one time: the highest that one of them saw, or now */
    uint64_t refused_count;
    size_t process_count;
    size_t running_count;
};

struct model_job {
    char *name;
    const char *directory; /* in which its processes meet; another one's job of the same name is another job */
    uint64_t limit_bytes;  /* the smallest of its running processes, of all where none runs; SG_UNKNOWN: none */
    uint64_t live_bytes;   /* running processes; of forked ones what exceeds what they inherited */
    uint64_t peak_bytes;   /* of all its processes at one time: the highest that one of them saw, or now */
    uint64_t refused_count;
    size_t process_count;
    size_t running_count;
    int64_t started_ns;
    int64_t last_seen_ns;
    struct model_run *runs; /* by start; never none */
    size_t run_count;
    struct model_process *processes;
    struct model_job *prev, *next; /* utlist, by start */
    UT_hash_handle hh;             /* by name */
};

struct model_device {
    bool is_known;
    uint64_t total_bytes;
    uint64_t live_bytes;
    uint64_t reserve_bytes; /* of memory of its own; SG_UNKNOWN */
    char name[sizeof((struct sg_device *)0)->name + 1];
};

struct model_machine {
    int unified;     /* 1, 0, or -1: not known */
    bool is_sharing; /* every guarded process that runs is known, counted by the others, and counts them */
    uint64_t total_bytes;
    uint64_t ordinary_bytes; /* the same less the pool of huge pages: what percentages are of */
    uint64_t available_bytes;
    uint64_t usable_bytes; /* before the reserve; with reserve and floor of the constraint that leaves least room */
    uint64_t reserve_bytes;
    uint64_t floor_bytes;
    uint64_t promised_bytes;
    uint64_t guarded_bytes;     /* live bytes of all running processes that are the machine's memory */
    uint64_t unaccounted_bytes; /* SG_UNKNOWN: nobody has measured any */
    uint64_t swap_total_bytes;
    uint64_t swap_used_bytes;
    uint64_t cgroup_limit_bytes; /* the smallest of those above us */
    struct model_device device[SG_DEVICE_CAPACITY];
};

struct model_unguarded {
    uint32_t pid;
    uint64_t resident_bytes;
    char *command;
};

enum { MODEL_UNGUARDED_CAPACITY = 5, MODEL_NEIGHBOUR_CAPACITY = 4 };

/* What to show. Without a filter: what runs now, and the job that ended last. */
struct model_scope {
    char *const *directories; /* names or patterns; where there are none, the reader's own */
    size_t directory_count;
    uint32_t pid;    /* 0: any */
    const char *job; /* NULL: any */
    bool is_all;
    bool is_last;
    int64_t since_ns;     /* 0: any time; else jobs of which something is known at or after it */
    bool wants_unguarded; /* look for unguarded processes as well */
    bool wants_history;   /* read what is kept of ended processes of the first directory, too */
};

/* Why a directory is read: nobody said which, it was named, or a pattern found it. */
enum model_origin { MODEL_DEFAULT, MODEL_NAMED, MODEL_MATCHED };

struct model_directory {
    char *path;
    enum model_origin origin;
    int error;              /* errno of opening it, 0 */
    size_t complaint_count; /* of its files, and of the history if that is read with it */
    bool is_there;          /* then it is known by these: */
    uid_t owner;
    dev_t device;
    ino_t inode;
};

struct model {
    struct model_directory *directories;
    size_t directory_count;
    char *history; /* the directory of it; NULL: not asked for, or there is none */
    int history_error;
    struct model_machine machine;
    struct model_job *jobs;    /* shown */
    struct model_job *by_name; /* those of one directory in a hash, while it is read */
    size_t hidden_jobs;        /* in the directory, left out by the scope */
    size_t hidden_namesakes;   /* earlier processes with the pid asked for */
    struct model_unguarded unguarded[MODEL_UNGUARDED_CAPACITY];
    size_t unguarded_count;
    char *neighbours[MODEL_NEIGHBOUR_CAPACITY]; /* directories whose programs are not counted here, the first by name */
    size_t neighbour_count;                     /* of all, also of those that found no room */
    char *live_neighbour;                       /* the first by name in which a process may live; NULL: none */
    size_t live_neighbour_count;
    size_t veiled_count; /* files not believed though a running process may own them */
    char **complaints;   /* "FILE: why" of each file that was not believed */
    size_t complaint_count;
    size_t said_count; /* of them, the first that were said */
};

struct model *model_build(const struct model_scope *scope);
void model_free(struct model *model);
/* Folds the smallest of very many processes of a job, of those that run or of those that have ended: how many. */
size_t model_fold(const struct model_job *job, bool is_running);

/* Says on stderr which files were not believed, each once. */
void model_say_complaints(struct model *model);
/* The same in one line: how many, and the first. */
void model_say_complaints_shortly(const struct model *model);

/* Parts of the building, one file each. */
struct model_process *model_process_from(const struct model_segment *segment);
void model_process_free(struct model_process *process);
void model_select(struct model *model, const struct model_scope *scope);
/* Whether something was asked for that may not be there. */
bool model_scope_is_narrow(const struct model_scope *scope);
void model_machine_fill(struct model *model);
void model_unguarded_fill(struct model *model);
void model_neighbours_fill(struct model *model);
void model_directories_fill(struct model *model, const struct model_scope *scope);
void model_directories_free(struct model *model);
/* Whether each could be. */
bool model_directories_are_read(const struct model *model);
/* Whether something is amiss, but only in directories that a pattern found, which may be anybody's. */
bool model_directories_found_amiss(const struct model *model);
/* Whether one could not, though it was named or is there. */
bool model_directory_is_faulty(const struct model_directory *directory);
/* The one that it is; NULL: it is not read. */
const struct model_directory *model_directory_find(const struct model *model, dev_t device, ino_t inode);
void model_parents_fill(struct model *model);

/* runs.c: fills the runs of a job whose processes are sorted by start, and each process's run. */
void model_runs_fill(struct model_job *job);
/* Whether its watchdog ended it; puts the state right. Once all else is known of it. */
void model_process_judge_end(struct model_process *process);
void model_job_free(struct model_job *job);

/* Whether it guards and decides alone: it runs, without a registry entry among the others. Why, as its events say: "not
 * sharing: no room ...", or "not sharing". */
bool model_process_is_alone(const struct model_process *process);
const char *model_process_alone_reason(const struct model_process *process);

/* The memory of the machine from the left to the right: what guarded processes hold, what else is in use, what was
 * promised, what admission would grant now, and the reserve, of which the floor. */
enum model_part_kind {
    MODEL_PART_GUARDED,
    MODEL_PART_OTHER,
    MODEL_PART_PROMISED,
    MODEL_PART_CAPACITY,
    MODEL_PART_RESERVE,
    MODEL_PART_FLOOR,
    MODEL_PART_COUNT,
};
struct model_part {
    uint64_t bytes;
    uint64_t shown_bytes; /* what a bar shows of it, and of nothing else; reserve and floor stand at its right end */
};
extern const char *const model_part_name[MODEL_PART_COUNT];
/* False where the kernel did not say. */
bool model_machine_parts(const struct model_machine *machine, struct model_part part[MODEL_PART_COUNT]);

/* What a process's peak was made of: "device 60.0 GiB, heap 8.0 GiB"; "" if nothing. The caller frees. */
char *model_peak_text(const struct model_process *process);

/* "exited with status 0", "killed by SIGKILL", "killed by SIGTERM from its own watchdog", "running". */
enum { MODEL_END_TEXT = 96 };
const char *model_end_text(const struct model_process *process, char text[MODEL_END_TEXT]);

/* Of a process that its watchdog ended: "4711 ended by its own watchdog at 13:07:42: " and what it noted. The caller
 * frees. */
char *model_fate_text(const struct model_process *process, bool is_utf8);

/* What a refusal found too small: "usable" memory, or what was "left" of a limit. */
const char *model_room_word(enum sg_reason reason);

extern const char *const model_domain_name[SG_DOMAIN_COUNT];
extern const char *const model_state_name[SG_STATE_KILLED + 1];
extern const char *const model_reason_name[SG_REASON_DEVICE + 1];

#endif
