/*
 * facts.c - sparkguard --check --cuda: what a probe found out about the driver of this machine's GPU, a line for each
 * assumption.
 */
#include <string.h>
#include <unistd.h>

#include "launch/check/check.h"
#include "common/bytes.h"
#include "common/text.h"
#include "model/model.h"

#define ROOM_LEAST (UINT64_C(2) << 30)
#define PATIENCE_NS INT64_C(60000000000) /* a context takes seconds where the machine is busy */

static const struct {
    const char *id;
    bool matters; /* the guard refuses wrongly, or does not protect, where it is not so */
    const char *advice;
} facts[SG_DRIVER_FACT_COUNT] = {
    [SG_DRIVER_TAKES] = {"memory", true, "only SPARKGUARD_LIMIT bounds device memory here"},
    [SG_DRIVER_SIZE] = {"size", true, "report this with the driver's version"},
    [SG_DRIVER_SERVES] = {"refusals", true, "report this with the driver's version"},
    [SG_DRIVER_RETURNS] = {"frees", true, "report this with the driver's version"},
    [SG_DRIVER_KEEPS] = {"pool", false, NULL},
    [SG_DRIVER_POOL_SERVES] = {"pool first", true, "report this with the driver's version"},
    [SG_DRIVER_PINNED] = {"pinned", false, NULL},
};

static enum sg_finding finding(const struct check *check, enum sg_driver_fact fact)
{
    return sg_driver_finding(check->driver_facts, fact);
}

/* Whether a fact does not apply: a driver has a pool, or gives back what is freed. */
static bool is_left_out(const struct check *check, enum sg_driver_fact fact)
{
    bool has_pool =
        finding(check, SG_DRIVER_KEEPS) != SG_FACT_UNKNOWN || finding(check, SG_DRIVER_POOL_SERVES) != SG_FACT_UNKNOWN;
    bool is_of_pool = fact == SG_DRIVER_KEEPS || fact == SG_DRIVER_POOL_SERVES;
    return has_pool ? fact == SG_DRIVER_RETURNS : is_of_pool;
}

static void add_fact(struct check *check, enum sg_driver_fact fact)
{
    const char *const *text = model_driver_fact_text[fact];
    switch (finding(check, fact)) {
    case SG_FACT_PROVED:
        check_add(check, facts[fact].id, FINDING_FINE, NULL, "%s", text[0]);
        return;
    case SG_FACT_DISPROVED:
        check_add(check, facts[fact].id, facts[fact].matters ? FINDING_DANGER : FINDING_WARNING, facts[fact].advice,
                  "%s", text[1]);
        return;
    case SG_FACT_UNKNOWN:
        check_add(check, facts[fact].id, FINDING_NONE,
                  fact == SG_DRIVER_TAKES && finding(check, SG_DRIVER_POOL_SERVES) == SG_FACT_PROVED
                      ? "echo 2 | sudo tee /proc/sys/vm/drop_caches  # empties the pool: then measure again"
                      : NULL,
                  "could not be told: whether %s", text[0]);
    }
}

/* Judges all that was found. */
static int judge_facts(struct check *check)
{
    size_t disproved = 0, unknown = 0;
    for (int i = 0; i < SG_DRIVER_FACT_COUNT; i++) {
        if (is_left_out(check, (enum sg_driver_fact)i))
            continue;
        add_fact(check, (enum sg_driver_fact)i);
        enum sg_finding found = finding(check, (enum sg_driver_fact)i);
        disproved += facts[i].matters && found == SG_FACT_DISPROVED;
        unknown += facts[i].matters && found == SG_FACT_UNKNOWN;
    }
    check->verdict = disproved > 0 ? "What the guard assumes of this driver is not so: see above."
                     : unknown > 0 ? "Not all that the guard assumes of this driver could be told."
                                   : "What the guard assumes of this driver is so.";
    return disproved > 0 ? CHECK_EXIT_UNGUARDED : unknown > 0 ? CHECK_EXIT_UNKNOWN : CHECK_EXIT_GUARDED;
}

static int give_up(struct check *check, const char *verdict)
{
    check->verdict = verdict;
    return CHECK_EXIT_UNKNOWN;
}

/* Adds a line if there is too little room to measure. */
static bool has_room(struct check *check)
{
    const struct model_scope scope = {.is_all = true};
    struct model *model = model_build(&scope);
    uint64_t room = model->machine.usable_bytes == SG_UNKNOWN || model->machine.reserve_bytes == SG_UNKNOWN
                        ? 0
                        : bytes_less(model->machine.usable_bytes, model->machine.reserve_bytes);
    if (room < ROOM_LEAST)
        check_add(check, "room", FINDING_WARNING, "end what holds memory (sparkguard-report), then measure again",
                  "%s of room; it takes %s to measure without harm", text_size(room), text_size(ROOM_LEAST));
    return room >= ROOM_LEAST;
}

/* Takes what the probe found from its record. The record goes: it is no job of the user's. */
static bool take_facts(struct check *check, pid_t probe, char **path)
{
    const struct model_scope scope = {.is_all = true};
    const struct model_process *record = check_find_probe(model_build(&scope), probe);
    *path = NULL;
    if (record != NULL) {
        check->driver_facts = record->machine.driver_facts;
        *path = text_copy(record->segment_path, SIZE_MAX);
    }
    return record != NULL;
}

static void remove_record(const char *path)
{
    size_t stem = strlen(path) - strlen(SG_SEGMENT_SUFFIX);
    char *timeline = text_format("%.*s%s", (int)stem, path, SG_TIMELINE_SUFFIX);
    (void)unlink(path);
    (void)unlink(timeline);
}

static void add_driver(struct check *check, const struct check_answer *answer)
{
    if (answer->driver[0] == '\0')
        check_add(check, "driver", FINDING_NONE, NULL, "no driver here: %s", answer->driver_fault);
    else if (answer->failed_call[0] != '\0')
        check_add(check, "driver", FINDING_WARNING, NULL, "%s failed with error %d of CUDA", answer->failed_call,
                  answer->error);
    if (answer->device[0] != '\0')
        check_add(check, "device", FINDING_FINE, NULL, "%s, CUDA %d.%d: %s", answer->device,
                  answer->cuda_version / 1000, answer->cuda_version % 1000 / 10,
                  answer->is_integrated ? "by its own word without memory of its own" : "memory of its own");
}

static int measure(struct check *check)
{
    const struct check_variable variables[] = {
        {"SPARKGUARD_JOB", "sparkguard-check"}, {SG_VARIABLE_FIRST, NULL},    {"SPARKGUARD_HISTORY", "off"},
        {"SPARKGUARD_OOM_SCORE_ADJ", NULL},     {"SPARKGUARD_LIMIT", NULL},   {"SPARKGUARD_DISABLE", NULL},
        {"SPARKGUARD_MODE", "enforce"},         {"SPARKGUARD_REPORT", "off"}, {NULL, NULL},
    };
    struct check_trial trial;
    struct check_answer answer = {0};
    int status;
    char *path = NULL;
    (void)check_trial_start_probe(&trial, check->library, CHECK_PROBE_CUDA, variables);
    trial.patience_ns = PATIENCE_NS;
    bool has_answer = check_trial_hear(&trial, &answer);
    bool has_record = has_answer && take_facts(check, trial.pid, &path);
    (void)check_trial_end(&trial, &status);
    if (path != NULL)
        remove_record(path);
    if (!has_answer) {
        check_add(check, "driver", FINDING_WARNING, NULL, "no answer within a minute, or the probe was ended");
        return give_up(check, "Nothing could be measured.");
    }
    add_driver(check, &answer);
    if (answer.driver[0] == '\0' || answer.device[0] == '\0')
        return give_up(check, "Nothing could be measured.");
    if (!answer.is_integrated)
        return give_up(check, "The guard assumes nothing of a driver whose device has memory of its own.");
    if (!has_record) {
        check_add(check, "record", FINDING_WARNING, "sparkguard --check says why", "the probe left no record");
        return give_up(check, "Nothing could be measured.");
    }
    return judge_facts(check);
}

int check_facts(struct check *check)
{
    check_loading_library(check);
    if (check->library == NULL || !has_room(check))
        return give_up(check, "Nothing was measured.");
    return measure(check);
}
