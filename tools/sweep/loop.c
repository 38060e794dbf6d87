/*
 * loop.c - runs all pending configurations one after another: wait for a clean machine, take a sample, predict, run,
 * record.
 *
 * The record shows a run as active before it starts, and its result before the next run starts.
 */
#include <string.h>

#include "sweep/sweep.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

#define SECOND_NS INT64_C(1000000000)
#define LOOK_NS (SECOND_NS / 5)
#define STILL_BYTES (UINT64_C(16) << 20) /* headroom that grows by less counts as constant */
enum { STILL_LOOKS = 15 }; /* 3 s, as long as a request waits for deferred frees (admit/deferred_frees.c) */

/* Waits until the machine is clean. Returns false after the time limit or a signal. */
static bool wait_for_clean(const struct sweep *sweep, struct sweep_progress *progress, int *ended_by)
{
    const int64_t began_ns = tool_now_ns();
    bool is_said = false;
    for (;;) {
        size_t mark = tool_arena_mark();
        char *obstacle = sweep->is_unclean_welcome ? text_copy("", 0) : sweep_in_the_way(sweep);
        if (obstacle[0] == '\0')
            return true;
        int64_t left_ns = sweep->clean_ns - (tool_now_ns() - began_ns);
        bool is_over = left_ns <= 0;
        if (is_over)
            sweep_progress_say(
                progress, "sparkguard-sweep: the machine is not clean: %s; end it, or start with --unclean", obstacle);
        else if (!is_said && !progress->style.is_terminal)
            sweep_progress_say(progress, "waiting up to %s for a clean machine: %s", text_duration(left_ns), obstacle);
        char *line = text_format("waiting for a clean machine: %s; %s left", obstacle, text_duration(left_ns));
        if (!is_over)
            sweep_progress_show(progress, line);
        is_said = true;
        tool_arena_release(mark);
        if (is_over || (*ended_by = sweep_signal_within(SECOND_NS / 2)) != 0)
            return false;
    }
}

/* Returns a sample of the machine after the memory of the last run is free again. Drivers return pages late. Drivers
 * that keep freed pages (590 and later) return them all at once after a pause. So, while there is less headroom than
 * the last run found, the figures must stay constant for several samples. Samples are counted instead of time, because
 * this tool itself may have been stopped meanwhile. */
static struct sweep_sample measure_when_still(const struct sweep *sweep, int *ended_by)
{
    const int64_t until_ns = tool_now_ns() + sweep->clean_ns;
    uint64_t grown_bytes = sweep_take_sample(NULL, false).headroom_bytes;
    for (unsigned still = 0;;) {
        *ended_by = sweep_signal_within(LOOK_NS);
        struct sweep_sample now = sweep_take_sample(NULL, false);
        if (*ended_by != 0 || now.headroom_bytes == SG_UNKNOWN || tool_now_ns() >= until_ns)
            return now;
        if (now.headroom_bytes > bytes_add(grown_bytes, STILL_BYTES)) {
            grown_bytes = now.headroom_bytes;
            still = 0;
        } else {
            still++;
        }
        bool is_back = bytes_add(now.headroom_bytes, STILL_BYTES) >= sweep->found_bytes;
        if (still >= (is_back ? 1 : STILL_LOOKS))
            return now;
    }
}

/* Describes the basis of a prediction: "from 3 points, grows with batch^2.0". */
static char *basis_text(const struct sweep *sweep, const struct sweep_prediction *prediction)
{
    const char *name = sweep->parameter[prediction->parameter].name;
    if (prediction->points == 1)
        return text_format("a smaller %s needed it", name);
    if (prediction->points == 2)
        return text_format("two points, even if it grows only in line with %s", name);
    return text_format("%zu points, grows with %s^%.1f", prediction->points, name, prediction->exponent);
}

/* Returns whether the run is predicted not to fit, and records the prediction. */
static bool would_not_fit(const struct sweep *sweep, struct sweep_run *run)
{
    struct sweep_prediction prediction = sweep_predict(sweep, run);
    run->predicted_bytes = prediction.likely_bytes;
    uint64_t need_bytes = prediction.likely_bytes != SG_UNKNOWN ? prediction.likely_bytes : prediction.least_bytes;
    uint64_t headroom_bytes = bytes_less(run->start_headroom_bytes, sweep_margin_bytes(sweep));
    if (prediction.points == 0 || run->start_headroom_bytes == SG_UNKNOWN || need_bytes <= headroom_bytes)
        return false;
    char *basis = basis_text(sweep, &prediction);
    run->predicted_bytes = need_bytes;
    run->status = SWEEP_TOO_LARGE;
    sweep_set_note(
        run, text_format("would need %s, %s of room (%s)", text_size(need_bytes), text_size(headroom_bytes), basis));
    return true;
}

/* Shows the prediction: on a terminal in the line of the run, otherwise on its own line. */
static void say_prediction(const struct sweep *sweep, const struct sweep_run *run, struct sweep_progress *progress)
{
    struct sweep_prediction prediction = sweep_predict(sweep, run);
    const char *name = sweep->parameter[prediction.parameter].name;
    char *expected = NULL, *basis = NULL;
    progress->expected = NULL;
    if (prediction.points == 0)
        return;
    const char *least = text_size(prediction.least_bytes);
    if (prediction.points == 1) {
        expected = text_format(" at least %s", least);
        basis = text_copy("one point is too few to predict", 64);
    } else if (prediction.points == 2) {
        expected = text_format(" %s to %s", least, text_size(prediction.most_bytes));
        basis = text_format("two points do not say how fast it grows with %s", name);
    } else {
        expected = text_format(" about %s", text_size(prediction.likely_bytes));
        basis = basis_text(sweep, &prediction);
    }
    progress->expected = expected;
    if (!progress->style.is_terminal)
        sweep_progress_say(progress, "%s: starting, expecting to need%s (%s)", progress->title, expected, basis);
}

/* Runs one configuration. Returns 0, or an exit status that ends the sweep. */
static int run_configuration(struct sweep *sweep, struct sweep_run *run, struct sweep_progress *progress, int *ended_by)
{
    const struct sweep_run *wall = sweep_find_wall(sweep, run);
    if (wall != NULL) {
        char *text = sweep_run_text(sweep, wall);
        run->status = SWEEP_SKIPPED;
        sweep_set_note(
            run, text_format("%s %s%s", text, wall->status == SWEEP_OK ? "" : "was ", sweep_status_name[wall->status]));
        sweep_progress_end_of(progress, sweep, run);
        return 0;
    }
    sweep_progress_name(progress, sweep, run);
    if (!wait_for_clean(sweep, progress, ended_by))
        return *ended_by != 0 ? 0 : SWEEP_NOT_CLEAN;
    struct sweep_sample seen = measure_when_still(sweep, ended_by);
    if (*ended_by != 0)
        return 0;
    run->start_headroom_bytes = seen.headroom_bytes;
    sweep->total_bytes = seen.total_bytes;
    sweep->reserve_bytes = seen.reserve_bytes;
    if (!run->is_refinement && would_not_fit(sweep, run)) {
        sweep_progress_end_of(progress, sweep, run);
        return 0;
    }
    sweep->found_bytes = seen.headroom_bytes != SG_UNKNOWN ? seen.headroom_bytes : 0;
    say_prediction(sweep, run, progress);
    run->status = SWEEP_UNDER_WAY;
    run->attempts++;
    sweep_set_note(run, text_copy("", 0));
    if (!sweep_state_write(sweep))
        return SWEEP_UNTRUSTED;
    int failure = sweep_execute(sweep, run, progress, ended_by);
    if (failure != 0) {
        run->status = SWEEP_PENDING;
        return failure;
    }
    sweep_progress_end_of(progress, sweep, run);
    return 0;
}

/* Takes a turn and records what came of it. */
static int turn(struct sweep *sweep, struct sweep_run *run, struct sweep_progress *progress, int *ended_by)
{
    int status = run_configuration(sweep, run, progress, ended_by);
    bool has_started = run->status > SWEEP_UNDER_WAY && run->status < SWEEP_LOST;
    if ((status != 0 || *ended_by != 0 || has_started) && !sweep_state_write(sweep))
        return SWEEP_UNTRUSTED;
    return status;
}

/* Returns whether a run says that the program cannot start, and shows why. Where a parameter has words, the reason may
 * be one of these: then two runs must fail with the same last line. */
static bool is_hopeless(struct sweep *sweep, const struct sweep_run *run, struct sweep_progress *progress)
{
    bool has_words = false;
    if (!sweep_is_false_start(sweep, run))
        return false;
    for (size_t i = 0; i < sweep->parameter_count; i++)
        has_words = has_words || !sweep->parameter[i].is_number;
    bool is_same = sweep->false_start != NULL && strcmp(sweep->false_start, run->note) == 0;
    sweep->false_start = text_copy(run->note, SIZE_MAX);
    if (has_words && !is_same)
        return false;
    sweep_progress_say(progress, "sparkguard-sweep: the program cannot start: %s, before it took any memory",
                       run->note);
    sweep_show_output(sweep, run, progress);
    return true;
}

/* Marks all that is left: the sweep ends here. */
static void skip_rest(struct sweep *sweep)
{
    for (size_t i = 0; i < sweep->run_count; i++) {
        struct sweep_run *run = &sweep->run[i];
        if (run->status == SWEEP_PENDING || run->status == SWEEP_INTERRUPTED) {
            run->status = SWEEP_SKIPPED;
            sweep_set_note(run, text_copy("the program cannot start", 64));
        }
    }
}

static void say_gap(const struct sweep *sweep, const struct sweep_gap *gap, struct sweep_progress *progress)
{
    sweep_progress_say(progress, "refining between %s, which fits, and %s=%s, which does not: at most %u more run%s",
                       sweep_run_text(sweep, gap->last), sweep->parameter[gap->parameter].name,
                       sweep->parameter[gap->parameter].value[gap->first->place[gap->parameter]], gap->runs,
                       gap->runs == 1 ? "" : "s");
}

/* Closes the gaps one after the other. What is predicted not to fit is started too: it is asked where the wall is. */
static int refine(struct sweep *sweep, struct sweep_progress *progress, int *ended_by)
{
    struct sweep_gap gap;
    struct sweep_run *run;
    size_t parameter = SWEEP_PARAMETERS;
    while (sweep_find_gap(sweep, &gap)) {
        if (gap.parameter != parameter)
            say_gap(sweep, &gap, progress);
        parameter = gap.parameter;
        sweep->is_complete = false;
        run = sweep_refine_next(sweep, &gap);
        if (run == NULL) {
            sweep_progress_say(progress, "no more than %d runs are added", (int)SWEEP_REFINEMENTS);
            return 0;
        }
        int status = turn(sweep, run, progress, ended_by);
        if (status != 0 || *ended_by != 0)
            return status;
    }
    return 0;
}

int sweep_all(struct sweep *sweep, struct sweep_progress *progress, int *ended_by)
{
    for (size_t i = 0; i < sweep->run_count; i++) {
        struct sweep_run *run = &sweep->run[i];
        if (run->status != SWEEP_PENDING && run->status != SWEEP_INTERRUPTED)
            continue;
        int status = turn(sweep, run, progress, ended_by);
        if (status != 0 || *ended_by != 0)
            return status;
        if (is_hopeless(sweep, run, progress))
            skip_rest(sweep);
    }
    int status = sweep->wants_refinement ? refine(sweep, progress, ended_by) : 0;
    if (status != 0 || *ended_by != 0)
        return status;
    sweep->is_complete = true;
    return sweep_state_write(sweep) ? 0 : SWEEP_UNTRUSTED;
}
