/*
 * sweep.h - the parts of sparkguard-sweep(1): the plan of configurations, the measurements of each run, the predictions
 * for the next run, and the record on disk.
 *
 * Unknown byte counts are SG_UNKNOWN. Single-threaded.
 */
#ifndef SG_TOOLS_SWEEP_SWEEP_H
#define SG_TOOLS_SWEEP_SWEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "launch/launch.h"
#include "common/style.h"
#include "model/model.h"
#include "sweep/fits/fits.h"

/* Exit codes, part of the interface; LAUNCH_... of launch.h for programs that cannot be run. */
enum { SWEEP_DONE = 0, SWEEP_NOTHING_FITS = 1, SWEEP_USAGE = 2, SWEEP_UNTRUSTED = 3, SWEEP_NOT_CLEAN = 4 };

enum { SWEEP_PARAMETERS = 8, SWEEP_VALUES = 64, SWEEP_CONFIGURATIONS = 4096, SWEEP_EXPORTS = 8, SWEEP_TEXTS = 32 };
#define SWEEP_SMALL_BYTES (UINT64_C(16) << 20) /* smaller guarded programs, such as shells, are no load */
enum { SWEEP_REFINEMENTS = 20 };               /* runs that --refine adds at most */

enum sweep_status {
    SWEEP_PENDING,
    SWEEP_UNDER_WAY,
    SWEEP_OK,
    SWEEP_REFUSED,
    SWEEP_FAILED,
    SWEEP_KILLED,
    SWEEP_TIMED_OUT,
    SWEEP_INTERRUPTED, /* the sweep was ended during the run; the run is repeated */
    SWEEP_LOST,        /* the machine went down during the run; the run is not repeated */
    SWEEP_TOO_LARGE,   /* not started: predicted not to fit */
    SWEEP_SKIPPED,     /* not started: a configuration that is no larger did not end well */
    SWEEP_STATUS_COUNT
};

extern const char *const sweep_status_name[SWEEP_STATUS_COUNT];

struct sweep_parameter {
    const char *name;
    const char *value[SWEEP_VALUES + SWEEP_REFINEMENTS]; /* numbers are sorted, smallest first */
    double number[SWEEP_VALUES + SWEEP_REFINEMENTS];
    size_t count;
    bool is_number; /* all values are numbers; words have no order */
};

/* Prediction of a peak from measured points. */
struct sweep_prediction {
    uint64_t least_bytes;  /* for linear growth; SG_UNKNOWN: no prediction */
    uint64_t likely_bytes; /* for growth as measured; SG_UNKNOWN with fewer than three points */
    uint64_t most_bytes;   /* with two points: for quadratic growth */
    double exponent;       /* measured growth: parameter^exponent; 0: unknown */
    size_t points;
    size_t parameter; /* index of the parameter that varies over the points */
};

/* One configuration, and the result of its run. */
struct sweep_run {
    size_t place[SWEEP_PARAMETERS]; /* indexes of its values */
    enum sweep_status status;
    unsigned attempts;
    uint64_t peak_bytes;     /* the job's highest live bytes */
    uint64_t needed_bytes;   /* memory of the machine: the peak plus unannounced memory, without other programs' */
    uint64_t headroom_bytes; /* lowest headroom above the reserve during the run */
    uint64_t start_headroom_bytes; /* headroom above the reserve at the start */
    uint64_t predicted_bytes;
    uint64_t refused_count;
    int64_t started_ns;
    int64_t duration_ns; /* -1 unknown */
    int exit_code;       /* -1 unknown */
    int signal;          /* 0 none */
    char *note;          /* printable ASCII, never NULL */
    bool is_refinement;  /* added by --refine */
};

/* A run that --refine added: behind which run of that time, and with which value of a parameter. */
struct sweep_refinement {
    size_t parameter, behind;
    char *value;
};

/* The client of a command that starts a container. */
struct sweep_client {
    size_t run_at; /* index of the word "run"; 0: the command is no such client */
    bool has_name; /* the command names the container */
};

struct sweep {
    struct sweep_parameter parameter[SWEEP_PARAMETERS];
    size_t parameter_count;
    char **command; /* the template; NULL after the last */
    struct sweep_run *run;
    size_t run_count;
    struct sweep_refinement refinement[SWEEP_REFINEMENTS];
    size_t refinement_count;

    char *text[SWEEP_TEXTS]; /* names and values point into these texts */
    size_t text_count;
    const char *export_file[SWEEP_EXPORTS];
    size_t export_count;
    const char *state_file; /* given, else NULL */
    const char *library;
    char *library_name; /* base name of the library that programs get; NULL: they are containers */
    struct sweep_client client;
    struct fits fits;
    struct sg_size margin, large;
    int64_t timeout_ns; /* 0 none */
    int64_t clean_ns;
    bool is_unclean_welcome;
    bool is_dry, is_json, is_fresh, wants_resume, wants_retry, wants_refinement, is_showing_output;

    char *identity; /* folder, parameters and command as printable ASCII */
    char *state;    /* path of the record, NULL: none is kept */
    int lock_fd;
    bool is_complete;  /* no run is pending */
    char *false_start; /* what the last run that could not start said, else NULL */
    int64_t begun_ns;
    int64_t session_ns;     /* when this process began */
    uint64_t total_bytes;   /* of the machine, less the pool of huge pages */
    uint64_t reserve_bytes; /* as last seen */
    uint64_t found_bytes;   /* headroom that the last started run found; 0: none was started */
};

/* sweep/options.c: exits 2 on bad usage, 0 after --help. */
void sweep_parse(struct sweep *sweep, int argc, char **argv);
/* values.c: parses "batch=1,2,4..8". Returns NULL, or a sentence about the error. Cuts `text` to pieces. */
const char *sweep_take_parameter(struct sweep *sweep, char *text);
/* Parses a number: no blanks, no hexadecimal, not infinite. */
bool sweep_read_number(const char *text, double *number);
/* Parses "90", "90s", "15m", "2h" or "none" to nanoseconds. Returns false if it is not a duration. */
bool sweep_take_duration(const char *text, int64_t *duration_ns);

/* plan.c: makes all configurations; the first parameter varies fastest. Returns NULL, or a sentence about the error. */
const char *sweep_plan(struct sweep *sweep);
/* Returns the command with {name} replaced; NULL after the last. */
char **sweep_command_of(const struct sweep *sweep, const struct sweep_run *run);
/* Returns a command as one line of printable ASCII, quoted for a shell. */
char *sweep_command_text(char *const *command);
/* Returns a text such as "batch=4 accum=1", printable. */
char *sweep_run_text(const struct sweep *sweep, const struct sweep_run *run);
void sweep_set_note(struct sweep_run *run, char *note);

/* state.c: finds, locks and reads the record. Returns 0, or an exit status after a message on stderr. */
int sweep_state_open(struct sweep *sweep);
/* Writes the record atomically and waits until it is on disk. Returns false after a message on stderr. */
bool sweep_state_write(const struct sweep *sweep);
/* Discards the content of the record. */
void sweep_state_forget(struct sweep *sweep);
void sweep_state_close(struct sweep *sweep);
/* state_read.c: reads the record. Returns 0, -ENOENT, or -EINVAL with a sentence in `why`. */
enum { SWEEP_WHY_CAPACITY = 200, SWEEP_STATE_VERSION = 2 };
int sweep_state_read(struct sweep *sweep, const char *path, const char *boot, char why[SWEEP_WHY_CAPACITY]);
void sweep_boot_id(char boot[64]);

/* predict.c */
struct sweep_prediction sweep_predict(const struct sweep *sweep, const struct sweep_run *run);
/* Predicts the need of a run with another number of one parameter, from this run and the smaller ones. */
struct sweep_prediction sweep_predict_at(const struct sweep *sweep, const struct sweep_run *run, size_t along,
                                         double number);
/* Returns a run that is no larger in any parameter and did not end well, or NULL. */
const struct sweep_run *sweep_find_wall(const struct sweep *sweep, const struct sweep_run *run);
/* Returns the headroom above the reserve that a recommended run must leave. */
uint64_t sweep_margin_bytes(const struct sweep *sweep);
/* Returns whether a run ended well and left the margin. */
bool sweep_has_fitted(const struct sweep *sweep, const struct sweep_run *run);
/* Returns the largest run that ended well and left the margin, or NULL. */
const struct sweep_run *sweep_recommend(const struct sweep *sweep);
/* Returns whether a run that has ended never began: it failed in its first seconds, took no memory worth a record, and
 * no run has ended well. */
bool sweep_is_false_start(const struct sweep *sweep, const struct sweep_run *run);

/* refine.c: the gap between the recommended run and the next larger one, which did not fit. */
struct sweep_gap {
    size_t parameter; /* in which the two differ */
    const struct sweep_run *last, *first;
    unsigned runs; /* how many it takes at most to close it */
};
/* Returns false if no gap is left. */
bool sweep_find_gap(const struct sweep *sweep, struct sweep_gap *gap);
/* Returns the run that did not fit and is one larger than this one, NULL if that is not known. */
const struct sweep_run *sweep_find_neighbour(const struct sweep *sweep, const struct sweep_run *run);
/* Predicts the largest number of a parameter that fits beside the recommended run's other values, if it is larger. */
bool sweep_predict_largest(const struct sweep *sweep, size_t *along, double *number, size_t *points);
/* Returns a run that is pending, without figures. */
struct sweep_run sweep_new_run(void);
/* Add a run in the middle of a gap, or with a given value. Runs move in memory. Return NULL if that is not possible. */
struct sweep_run *sweep_refine_next(struct sweep *sweep, const struct sweep_gap *gap);
struct sweep_run *sweep_refine_add(struct sweep *sweep, size_t along, const char *value, size_t behind);
/* Removes all added runs. */
void sweep_refine_forget(struct sweep *sweep);

/* measure.c: the machine before, during and after a run. */
struct sweep_sample {
    uint64_t headroom_bytes; /* headroom above the reserve and below the limit, now */
    uint64_t total_bytes, reserve_bytes;
    uint64_t held_bytes; /* held by the job */
};
struct sweep_sample sweep_take_sample(const char *job, bool is_container);
/* Returns when the newest process on record of the sweep's job has begun; 0: none is on record. */
int64_t sweep_newest_start(const char *job);
/* Fills peak, needed, headroom, refusals, status and note of a run that has ended. Of a container, `newest_before_ns`
 * is what sweep_newest_start() said before the run; else NULL. */
void sweep_measure(struct sweep_run *run, const struct launch *launch, const int64_t *newest_before_ns,
                   uint64_t least_headroom, uint64_t most_held);
/* Returns which process keeps the machine from being clean, "" if none. */
char *sweep_in_the_way(const struct sweep *sweep);

/* run.c: executes one run and calls `tick` several times a second. Returns 0, or LAUNCH_... after a message on
 * stderr. */
struct sweep_progress;
int sweep_execute(struct sweep *sweep, struct sweep_run *run, struct sweep_progress *progress, int *ended_by);

/* evidence.c: whether a run was guarded. Waits, 3 s at most, until no process of a small run is about to become another
 * program. */
void sweep_await_records(const struct launch *launch);
/* Returns LAUNCH_FAILED after a message on stderr if a program of the run was not guarded, or nothing shows that one
 * was: the next, larger run would take the machine down. Removes the run's small records. */
int sweep_check_guarded(const struct sweep *sweep, const struct sweep_run *run, const struct launch *launch);

/* run.c. Prints the end of a run's output and the path of the log. */
void sweep_show_output(const struct sweep *sweep, const struct sweep_run *run, struct sweep_progress *progress);
/* Blocks the signals that end a sweep; waits for one. The latter returns the signal that came in time, or 0. */
void sweep_signals_begin(void);
int sweep_signal_within(int64_t wait_ns);

/* container.c: commands that start a container by a client, such as docker run. */
enum sweep_container { SWEEP_NO_CONTAINER, SWEEP_CONTAINER, SWEEP_CONTAINER_REFUSED };
/* Says whether a command is such a client, and whether its container can be measured; if it cannot, a message on stderr
 * says why. If it can, SPARKGUARD_DIR becomes the directory that containers share with the host, unless it is set. */
enum sweep_container sweep_container_judge(char *const *words, struct sweep_client *client);
/* Returns the command with the options that give the container its job, its name and the guard's settings. Takes over
 * `words`. */
char **sweep_container_command(char **words, const struct sweep_client *client, const char *job, const char *name);
/* Begins to kill the container of a command from sweep_container_command(), whose client gets no signal through to
 * it. */
void sweep_container_kill(char *const *words, const struct sweep_client *client, const char *name);

/* progress.c: shows the progress on stderr: on a terminal one line that is rewritten, otherwise a line for each run. */
struct sweep_progress {
    struct style style;
    bool is_line_up;
    char *title;
    char *expected; /* " about 12.0 GiB", NULL */
};
void sweep_progress_begin(struct sweep_progress *progress);
void sweep_progress_name(struct sweep_progress *progress, const struct sweep *sweep, const struct sweep_run *run);
void sweep_progress_show(struct sweep_progress *progress, const char *text);
void sweep_progress_run(struct sweep_progress *progress, const struct sweep *sweep, const struct sweep_run *run,
                        int64_t elapsed_ns, uint64_t held_bytes);
/* Prints a line that is not rewritten. */
void sweep_progress_say(struct sweep_progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sweep_progress_end_of(struct sweep_progress *progress, const struct sweep *sweep, const struct sweep_run *run);
void sweep_progress_end(struct sweep_progress *progress);

/* loop.c: runs all pending configurations. Returns 0 or an exit status; *ended_by is the signal that ended the
 * sweep. */
int sweep_all(struct sweep *sweep, struct sweep_progress *progress, int *ended_by);

/* sweep/table.c, export.c */
void sweep_render_text(const struct sweep *sweep, const struct style *style);
void sweep_render_plan(const struct sweep *sweep, const struct style *style);
void sweep_render_json(const struct sweep *sweep, FILE *stream);
/* Returns the text of the table's last column. */
char *sweep_remark(const struct sweep *sweep, const struct sweep_run *run);
/* Returns whether the suffix of a file names a known format. */
bool sweep_export_is_known(const char *path);
bool sweep_export(const struct sweep *sweep, const char *path);

#endif
