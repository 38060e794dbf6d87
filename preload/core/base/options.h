/*
 * options.h - the options of this process, read once from the environment.
 *
 * The constructor reads them, or a slow path that runs before it. Afterwards they are constant, except first_pid, which
 * set-up sets, dir, which sg_directory_choose() of directory.c sets, and reserve, limit and history, which the first
 * decision may take from the user's file of defaults. Any thread.
 */
#ifndef SG_PRELOAD_BASE_OPTIONS_H
#define SG_PRELOAD_BASE_OPTIONS_H

#include "sparkguard_abi.h"
#include "sparkguard_defaults.h"
#include "sparkguard_options.h"

enum sg_unified_choice { SG_UNIFIED_AUTO, SG_UNIFIED_ON, SG_UNIFIED_OFF };
enum sg_watchdog_choice { SG_WATCHDOG_OFF, SG_WATCHDOG_WARN, SG_WATCHDOG_TERM };
enum { SG_PATH_CAPACITY = 1024 };

/* In sg_options.given: the variables name a first process of the job, as a launcher sets it. */
#define SG_GIVEN_FIRST (UINT32_C(1) << 31)

/* In sg_options.given: the user has typed --limit, from which the launcher made the variable. */
#define SG_GIVEN_TYPED_LIMIT (UINT32_C(1) << 30)

/* In sg_options.given: the limit is of the user's file of defaults, from which a launcher may have made the variable;
 * that file is in $XDG_CONFIG_HOME. */
#define SG_GIVEN_FILE_LIMIT (UINT32_C(1) << 29)
#define SG_GIVEN_CONFIG_HOME (UINT32_C(1) << 28)

struct sg_options {
    struct sg_size reserve;
    struct sg_size limit;
    struct sg_size device_reserve;
    struct sg_size floor;
    struct sg_size large;
    uint64_t large_bytes; /* the smallest large request: one byte more than `large` */
    uint64_t wait_ns;
    int mode_observe;       /* 1: observe */
    int unified;            /* enum sg_unified_choice */
    int meminfo_honest;     /* 0: raw */
    int watchdog;           /* enum sg_watchdog_choice */
    int deepbind_kept;      /* 0: RTLD_DEEPBIND is cleared */
    int report_at_exit;     /* 1: a summary at the end */
    int is_disabled;        /* 1: pass everything through */
    int is_record_kept;     /* 1: leave a record, however little this process took */
    int64_t oom_score_adj;  /* INT64_MIN if unset */
    char job[SG_JOB_BYTES]; /* generated if the option is not set */
    char dir[SG_PATH_CAPACITY];
    char system_root[SG_PATH_CAPACITY]; /* without a slash at the end: "" for "/" */
    char history[SG_PATH_CAPACITY];     /* "": no history, because it is off or HOME is unknown */
    int is_history_off;                 /* 1: SPARKGUARD_HISTORY=off */
    int history_depth;                  /* how many of the path's last components may be made */
    int has_default_dir;                /* 1: dir is what sg_directory_choose() makes of it */
    uint32_t named_by;                  /* the process that generated the job's name; 0: the name was given */
    uint32_t given;                     /* 1 << option for each that a variable sets, and SG_GIVEN_... */
    uint32_t first_pid;                 /* the job's first process; 0: this process is the first, before set-up */
};

/* The default directory: below the folder that a login has, or with the user's number in the folder of shared
 * memory. */
#define SG_DEFAULT_DIR_BELOW "/sparkguard"
#define SG_DEFAULT_DIR "/dev/shm/sparkguard-"

extern struct sg_options sg_options;

/* Reads `environment` once; further calls, and calls with NULL, do nothing. A call beside the first one returns when
 * all is read. The job's first process reports values that it cannot read on stderr. */
void sg_options_read(char *const *environment);

/* The same for a tool: reports nothing. */
void sg_options_read_quietly(char *const *environment);

/* Takes over the user's defaults (sparkguard_defaults.h) for options that no variable sets: once, before the first
 * decision, so that a program that asks for little never looks for the file. The job's first process reports what has
 * no effect, unless a launcher has. `path`: of the file; NULL: by the environment that this process began with. Under
 * the decision lock. */
void sg_options_take_defaults(const char *path);

/* Stores the path of that file, by the values of XDG_CONFIG_HOME and HOME, which may be NULL; "": none is known. */
void sg_options_name_defaults(char path[SG_DEFAULTS_PATH_BYTES], const char *config_home, const char *home);

/* Reads that file, and returns out->state. A regular file of this user or of root is believed that not everybody may
 * write: with the HOME of somebody else, as under sudo, it has no effect. *out must be zero; where there is no file
 * it is left alone. */
enum sg_defaults_state sg_options_read_defaults(struct sg_defaults *out, const char *path);

/* Whether all options are read. */
bool sg_options_are_read(void);

#endif
