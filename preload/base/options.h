/*
 * options.h - the options in force for this process, read once from the environment.
 *
 * Read by whoever comes first: the constructor, or a slow path before it. Afterwards constant (but for first_pid, which
 * set-up sets); any thread.
 */
#ifndef SG_PRELOAD_BASE_OPTIONS_H
#define SG_PRELOAD_BASE_OPTIONS_H

#include "sparkguard_abi.h"
#include "sparkguard_options.h"

enum sg_unified_choice { SG_UNIFIED_AUTO, SG_UNIFIED_ON, SG_UNIFIED_OFF };
enum sg_watchdog_choice { SG_WATCHDOG_OFF, SG_WATCHDOG_WARN, SG_WATCHDOG_TERM };
enum { SG_PATH_CAPACITY = 1024 };

struct sg_options {
    struct sg_size reserve;
    struct sg_size limit;
    struct sg_size device_reserve;
    struct sg_size floor;
    struct sg_size large;
    uint64_t large_bytes; /* what that comes to */
    uint64_t wait_ns;
    int mode_observe;       /* 1: observe */
    int unified;            /* enum sg_unified_choice */
    int meminfo_honest;     /* 0: raw */
    int watchdog;           /* enum sg_watchdog_choice */
    int deepbind_kept;      /* 0: RTLD_DEEPBIND is cleared */
    int report_at_exit;     /* 1: a summary at the end */
    int is_disabled;        /* 1: pass everything through */
    int64_t oom_score_adj;  /* INT64_MIN if unset */
    char job[SG_JOB_BYTES]; /* made up if it was not given */
    char dir[SG_PATH_CAPACITY];
    char system_root[SG_PATH_CAPACITY]; /* without a slash at the end: "" for "/" */
    char history[SG_PATH_CAPACITY];     /* "": there is no place for one */
    int is_history_off;                 /* 1: none is wanted */
    int history_depth;                  /* how many of its last folders may be made */
    int has_default_dir;                /* dir follows the effective user */
    uint32_t named_by;                  /* the process that made up the job's name; 0: nobody did */
    uint32_t first_pid;                 /* the job's first process; 0: that is this one, and nobody has said so yet */
};

extern struct sg_options sg_options;

/* Reads `environment` (may be NULL) once; further calls do nothing. Complains on stderr about what it cannot read, if
 * this is the job's first process. */
void sg_options_read(char *const *environment);

bool sg_options_are_read(void);

/* Sets dir to /dev/shm/sparkguard-UID if it was not given: a program may change its user before it needs it. */
void sg_options_default_dir(void);

#endif
