/*
 * verdict.h - says in one sentence how a run of a job went: "at its tightest 2.8 GiB of room were left", "refused 3
 * times for its limit; a limit of 14.0 GiB would have been enough for each of these requests", "killed by the kernel's
 * OOM killer, held 88.0 GiB".
 *
 * Report, page and launcher show the same sentence. It has no full stop and begins in lower case, so that it can follow
 * the name of the job. Its texts come from files of others; renderers must escape it.
 */
#ifndef SG_TOOLS_MODEL_VERDICT_H
#define SG_TOOLS_MODEL_VERDICT_H

#include <stddef.h>
#include <stdint.h>

/* The worst of what happened to the run, as `verdict_code` in the JSON report. A higher number outranks a lower one. */
enum model_verdict_code {
    MODEL_VERDICT_OK,
    MODEL_VERDICT_REFUSED_LIMIT,
    MODEL_VERDICT_REFUSED_RESERVE,
    MODEL_VERDICT_REFUSED_DEVICE,
    MODEL_VERDICT_KILLED,
    MODEL_VERDICT_WATCHDOG,
};
extern const char *const model_verdict_code_name[MODEL_VERDICT_WATCHDOG + 1];

struct model_job_verdict {
    enum model_verdict_code code;
    char *text;
};

/* What the launcher has seen of a run and the records do not tell. All zero: nothing. */
struct model_witness {
    uint64_t oom_kills; /* processes of this machine that the kernel's OOM killer ended meanwhile */
    /* The largest descendant without the guard; unguarded_bytes 0: none is known. */
    uint64_t unguarded_bytes;
    uint32_t unguarded_pid;
    const char *unguarded_name;
};

struct model;
struct model_process;
struct model_refusal;

/* Judges one run. `processes` are those of the run, the first one first; at least one. Reads their time lines, and the
 * kernel's log if one of them was killed. */
struct model_job_verdict model_judge(const struct model_process *const *processes, size_t count,
                                     const struct model_witness *witness);
/* Fills the verdict of each run of the model's jobs. */
void model_verdicts_fill(struct model *model);

/* Returns how much more of the limit, the machine or the device would have been enough for a refused request;
 * SG_UNKNOWN: it is not known. */
uint64_t model_missing_bytes(const struct model_process *process, const struct model_refusal *refusal);

#endif
