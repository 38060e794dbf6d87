/*
 * watch.h - the report again and again: a live screen on a terminal, a line per interval elsewhere. One thread.
 */
#ifndef SG_TOOLS_REPORT_WATCH_WATCH_H
#define SG_TOOLS_REPORT_WATCH_WATCH_H

#include "report/report.h"
#include "model/model.h"
#include "common/text.h"
#include "report/watch/rate.h"

/* Shows the scope every interval until a key, a signal or a closed pipe ends it; at once where nothing matches. Returns
 * the last report, for whoever says what came of it; the caller frees. */
struct model *report_watch(const struct model_scope *scope, int64_t interval_ns);

/* ---- for the files of this module -------------------------------------------------------------------------------- */

enum watch_sort { WATCH_BY_LIVE, WATCH_BY_PEAK, WATCH_BY_RATE, WATCH_BY_REFUSED, WATCH_BY_PID };

/* A job by its name, or a process by pid and start. The rest is zero. */
struct watch_key {
    char job[SG_JOB_BYTES + 8];
    uint64_t start_ticks;
    uint64_t pid;
};

struct watch_trace {
    struct watch_key key;
    struct watch_trend live;
    int64_t seen_ns; /* when it ran last, CLOCK_MONOTONIC */
    UT_hash_handle hh;
};

struct watch {
    const struct model_scope *scope;
    int64_t interval_ns;
    struct model *model; /* the last sample */
    int64_t sampled_ns;  /* and its time, CLOCK_MONOTONIC */
    struct watch_trend usable;
    struct watch_trend device[SG_DEVICE_CAPACITY]; /* live bytes of all guarded processes */
    struct watch_trace *traces;
    enum watch_sort sort;
    bool is_tree;
    size_t scroll; /* lines of the list above the screen */
    size_t page;   /* lines of the list on the screen */
};

/* Reads all anew. */
void watch_sample(struct watch *watch);
/* Forgets the processes and jobs that ran last before `before_ns`. */
void watch_forget(struct watch *watch, int64_t before_ns);

/* Whether the list has it: it runs, was asked for, or ended a moment ago. */
bool watch_is_shown(const struct watch *watch, const struct model_process *process);

/* How fast live bytes grow, and when they meet the first wall at the present rates: the machine's reserve, the job's
 * limit, or the reserve of a discrete device that the job uses. Only what grows meets one. */
int64_t watch_process_rate(const struct watch *watch, const struct model_process *process);
int64_t watch_job_rate(const struct watch *watch, const struct model_job *job);
int64_t watch_wall_ns(const struct watch *watch, const struct model_job *job, int64_t rate);

/* Nanoseconds until usable memory is down to `left_bytes`. */
int64_t watch_machine_wall_ns(const struct watch *watch, uint64_t left_bytes);

/* Lines of the screen: of the head, of the list from `first` on, of the foot; and the help in the last. */
struct watch_layout {
    size_t head, first, list, foot;
};
struct watch_layout watch_lay_out(size_t rows, size_t head, size_t list, size_t foot, size_t scroll);

/* What is held, in its share of `total_bytes`, and in another shade up to its peak. The caller frees. */
char *watch_bar(size_t cells, uint64_t live_bytes, uint64_t peak_bytes, uint64_t total_bytes, bool is_utf8);

/* The table of what is shown, its heading first. */
void watch_put_table(const struct watch *watch, const struct style *style);

void watch_draw(struct watch *watch);
/* The line for this sample, below a heading if it is the first. */
void watch_put_line(const struct watch *watch, bool is_first);

#endif
