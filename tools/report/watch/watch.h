/*
 * watch.h - repeats the report: a live screen on a terminal, one line per interval elsewhere. Single-threaded.
 */
#ifndef SG_TOOLS_REPORT_WATCH_WATCH_H
#define SG_TOOLS_REPORT_WATCH_WATCH_H

#include <limits.h>

#include "report/report.h"
#include "model/model.h"
#include "report/watch/rate.h"
#include "report/watch/spark.h"

/* Shows the scope once per interval, until a key, a signal or a closed pipe ends the loop. Ends at once if nothing
 * matches. Returns the last model, from which the caller makes the exit status. */
struct model *report_watch(const struct model_scope *scope, int64_t interval_ns);

/* ---- for the files of this module -------------------------------------------------------------------------------- */

enum watch_sort { WATCH_BY_LIVE, WATCH_BY_PEAK, WATCH_BY_RATE, WATCH_BY_REFUSED, WATCH_BY_PID };

/* Hash key: a job by name, or a process by PID and start time. Unused bytes are zero. */
struct watch_key {
    char job[SG_JOB_BYTES + 8];
    uint64_t start_ticks; /* of a job: its hash */
    uint64_t pid;         /* with the PID namespace in the upper half; 0: a job */
};

struct watch_trace {
    struct watch_key key;
    struct watch_trend live;
    int64_t seen_ns; /* last time it was running, CLOCK_MONOTONIC */
    struct spark spark;
    int64_t run_ns; /* of a job: when the run has begun whose figures `spark` has */
    UT_hash_handle hh;
};

/* The rows of the list as they are on the screen, in their order; a job has PID 0. */
struct watch_rows {
    struct watch_key *key;
    size_t count;
};

enum { WATCH_FILTER_CAPACITY = 64 };

enum watch_question { WATCH_ASKS_NOTHING, WATCH_ASKS_TO_END, WATCH_ASKS_FOR_LIMIT };

/* A change that was asked for with a key, and what is said about it. */
struct watch_change {
    enum watch_question asks;
    bool is_on_screen;                     /* the question: what is typed from then on answers it */
    char said[2048];                       /* the question, or what came of it; "": nothing */
    char whom[SG_JOB_BYTES * 6 + 8];       /* a process or a job, printable */
    int *target;                           /* descriptors (pidfd) of the processes that get SIGTERM */
    size_t target_count, running_count;    /* of these; of all processes of the chosen job that run */
    char job[SG_JOB_BYTES + 8], typed[24]; /* the job whose limit is asked for; the limit so far */
    char directory[PATH_MAX];              /* where that job's processes share */
};

struct watch {
    const struct model_scope *scope;
    int64_t interval_ns;
    struct model *model; /* the last sample */
    size_t mark;         /* where the arena ended before it */
    int64_t sampled_ns;  /* time of that sample, CLOCK_MONOTONIC */
    struct watch_trend usable;
    struct watch_trend device[SG_DEVICE_CAPACITY]; /* live bytes of all guarded processes */
    struct watch_trace *traces;
    enum watch_sort sort;
    bool is_tree;
    size_t scroll; /* lines of the list above the screen */
    size_t page;   /* lines of the list on the screen */
    struct watch_rows rows;
    size_t chosen;    /* index of the chosen row */
    bool has_moved;   /* a key has chosen a row: the choice stays with its job or process when the order changes */
    bool has_help;    /* the keys are shown instead of the list */
    bool is_in_depth; /* the job or process `depth` is shown in depth */
    struct watch_key depth;
    bool is_typing;                     /* keys go to the filter */
    char filter[WATCH_FILTER_CAPACITY]; /* part of a job's name, a command or a PID; "": all are shown */
    struct watch_change change;
};

/* Takes a new sample. */
void watch_sample(struct watch *watch);
/* Forgets the processes and jobs that ran last before `before_ns`. */
void watch_forget(struct watch *watch, int64_t before_ns);

/* keys.c: handles a key. Returns false if it ends the watch. */
bool watch_act(struct watch *watch, int key);
/* typing.c: applies a key to a text that is being typed. */
void watch_type(char *text, size_t capacity, int key);

/* change.c: asks a question if the key is one that changes the chosen process or job. Returns whether it is. Forgets
 * what was said before. */
bool watch_change_begin(struct watch *watch, int key);
/* To be called before each frame: discards what was typed before the first one that shows the question. */
void watch_change_show(struct watch *watch);
/* Handles a key while a question is open. */
void watch_change_answer(struct watch *watch, int key);

struct watch_key watch_key_of_job(const struct model_job *job);
struct watch_key watch_key_of_process(const struct model_process *process);
bool watch_keys_are_equal(const struct watch_key *one, const struct watch_key *other);
/* Returns whether a process is shown in depth, because it was requested or chosen. */
bool watch_is_in_depth(const struct watch *watch, const struct model_process *process);
/* Returns whether only a process or several processes are shown in depth, without a list. */
bool watch_has_no_list(const struct watch *watch);

/* Return the history of a job or process, NULL if there is none. Of a process it leaves out inherited bytes. */
const struct spark *watch_spark(const struct watch *watch, const struct model_job *job);
const struct spark *watch_process_spark(const struct watch *watch, const struct model_process *process);
/* chart.c: prints the history of a job as a stack of its processes, with the limit, refusals and phases. */
void watch_put_chart(const struct watch *watch, const struct model_job *job, const struct style *style);
/* Reads what jobs held before the watch began from their time lines. */
void watch_look_back(struct watch *watch);

/* Prints the keys and the columns, one a line. */
void watch_put_help(const struct style *style);

/* Returns whether the list shows a process of a job: it passes the filter, and it runs, was requested, or ended a
 * moment ago. */
bool watch_is_shown(const struct watch *watch, const struct model_job *job, const struct model_process *process);

/* Return the growth of live bytes, and the time until a growing job meets the first bound at present rates. Bounds are
 * the machine's reserve, the job's limit, and the reserve of a discrete device that the job uses. */
int64_t watch_process_rate(const struct watch *watch, const struct model_process *process);
int64_t watch_job_rate(const struct watch *watch, const struct model_job *job);
int64_t watch_wall_ns(const struct watch *watch, const struct model_job *job, int64_t rate);

/* Returns the nanoseconds until usable memory falls to `left_bytes` at the present rate. */
int64_t watch_machine_wall_ns(const struct watch *watch, uint64_t left_bytes);

/* Lines of the screen: the head, the list from `first` on, the foot; the last line is the help. */
struct watch_layout {
    size_t head, first, list, foot;
};
struct watch_layout watch_lay_out(size_t rows, size_t head, size_t list, size_t foot, size_t scroll);

/* Returns a bar of live bytes relative to `total_bytes`, with another shade up to the peak. */
char *watch_bar(size_t cells, uint64_t live_bytes, uint64_t peak_bytes, uint64_t total_bytes, bool is_utf8);

/* Prints the table, its heading first, and notes its rows. */
void watch_put_table(struct watch *watch, const struct style *style);

void watch_draw(struct watch *watch);
/* Prints the line of this sample, after a heading if it is the first. */
void watch_put_line(const struct watch *watch, bool is_first);

#endif
