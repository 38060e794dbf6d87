/*
 * refine.c - values between the largest that fitted and the smallest that did not: the value that the measurements
 * predict to fit, and with --refine further runs, each in the middle of what is left.
 *
 * Whole numbers are narrowed down until two adjacent values are known, other numbers to a thirty-second of the value.
 * The added values are kept in the record in the order in which they were added. Adding them again in this order gives
 * every run its index again.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sweep/sweep.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

enum { FINENESS = 32, SEARCH_STEPS = 60 };
#define WHOLE_LIMIT 1e15
#define EXTRAPOLATION 1024 /* how many times a measured value a predicted one may be */

static double value_of_run(const struct sweep *sweep, const struct sweep_run *run, size_t parameter)
{
    return sweep->parameter[parameter].number[run->place[parameter]];
}

/* Returns whether all given values of a parameter are whole, so that only whole ones make sense. */
static bool is_whole(const struct sweep_parameter *parameter)
{
    for (size_t i = 0; i < parameter->count; i++)
        if (parameter->number[i] != floor(parameter->number[i]) || fabs(parameter->number[i]) > WHOLE_LIMIT)
            return false;
    return true;
}

/* Returns the run with the next larger value of a parameter and the same other values; NULL if there is none. */
static const struct sweep_run *next_larger(const struct sweep *sweep, const struct sweep_run *run, size_t along)
{
    const struct sweep_run *next = NULL;
    for (size_t i = 0; i < sweep->run_count; i++) {
        const struct sweep_run *other = &sweep->run[i];
        bool is_on_line = other->place[along] > run->place[along];
        for (size_t j = 0; j < sweep->parameter_count; j++)
            is_on_line = is_on_line && (j == along || other->place[j] == run->place[j]);
        if (is_on_line && (next == NULL || other->place[along] < next->place[along]))
            next = other;
    }
    return next;
}

/* Returns the number of runs that halving a gap takes: until neighbours are left, or little of the value. */
static unsigned runs_for(double low, double high, bool is_whole_number)
{
    double least = is_whole_number ? 1 : fmax(fabs(low), fabs(high)) / FINENESS, left = high - low;
    unsigned runs = 0;
    for (; left > least && runs < SWEEP_REFINEMENTS; runs++)
        left = is_whole_number ? ceil(left / 2) : left / 2;
    return runs;
}

bool sweep_find_gap(const struct sweep *sweep, struct sweep_gap *gap)
{
    const struct sweep_run *best = sweep_recommend(sweep);
    for (size_t i = 0; best != NULL && i < sweep->parameter_count; i++) {
        const struct sweep_run *next = sweep->parameter[i].is_number ? next_larger(sweep, best, i) : NULL;
        /* One that took the machine down says where not to go, and one that is yet to be run says nothing. */
        if (next == NULL || next->status == SWEEP_LOST || next->status <= SWEEP_UNDER_WAY ||
            next->status == SWEEP_INTERRUPTED || sweep_has_fitted(sweep, next))
            continue;
        *gap = (struct sweep_gap){.parameter = i, .last = best, .first = next};
        gap->runs =
            runs_for(value_of_run(sweep, best, i), value_of_run(sweep, next, i), is_whole(&sweep->parameter[i]));
        if (gap->runs > 0)
            return true;
    }
    return false;
}

const struct sweep_run *sweep_find_neighbour(const struct sweep *sweep, const struct sweep_run *run)
{
    for (size_t i = 0; i < sweep->parameter_count; i++) {
        const struct sweep_parameter *parameter = &sweep->parameter[i];
        const struct sweep_run *next = parameter->is_number ? next_larger(sweep, run, i) : NULL;
        if (next != NULL && !sweep_has_fitted(sweep, next) && is_whole(parameter) &&
            value_of_run(sweep, next, i) - value_of_run(sweep, run, i) <= 1)
            return next;
    }
    return NULL;
}

/* ---- predicting ---- */

static bool is_predicted_to_fit(const struct sweep *sweep, const struct sweep_run *best, size_t along, double number)
{
    struct sweep_prediction prediction = sweep_predict_at(sweep, best, along, number);
    uint64_t need = prediction.likely_bytes != SG_UNKNOWN ? prediction.likely_bytes : prediction.most_bytes;
    return need <= bytes_less(best->start_headroom_bytes, sweep_margin_bytes(sweep));
}

/* Returns the largest number from `low`, which fits, up to `high` that is predicted to fit. */
static double search(const struct sweep *sweep, const struct sweep_run *best, size_t along, double low, double high)
{
    for (int i = 0; i < SEARCH_STEPS; i++) {
        double middle = (low + high) / 2;
        if (is_predicted_to_fit(sweep, best, along, middle))
            low = middle;
        else
            high = middle;
    }
    return low;
}

static bool predict_along(const struct sweep *sweep, const struct sweep_run *best, size_t along, double *number)
{
    const struct sweep_parameter *parameter = &sweep->parameter[along];
    const struct sweep_run *next = next_larger(sweep, best, along);
    double low = value_of_run(sweep, best, along), high = next != NULL ? value_of_run(sweep, next, along) : 0;
    if (next == NULL) {
        high = low * EXTRAPOLATION;
        if (low <= 0 || is_predicted_to_fit(sweep, best, along, high))
            return false; /* it does not grow with this parameter */
    } else if (sweep_has_fitted(sweep, next) || next->status <= SWEEP_UNDER_WAY) {
        return false;
    }
    *number = search(sweep, best, along, low, high);
    if (is_whole(parameter)) {
        *number = floor(*number + 1e-6);
        if (next != NULL && *number >= high)
            *number = high - 1;
        return *number > low;
    }
    /* Two digits, rounded down. powl, for pow has a version of glibc 2.29. */
    double step = (double)powl(10, floor(log10(fmax(fabs(*number), 1e-300))) - 1);
    *number = floor(*number / step + 1e-6) * step;
    return *number > low && (next == NULL || *number < high);
}

bool sweep_predict_largest(const struct sweep *sweep, size_t *along, double *number, size_t *points)
{
    const struct sweep_run *best = sweep_recommend(sweep);
    for (size_t i = 0; best != NULL && best->start_headroom_bytes != SG_UNKNOWN && i < sweep->parameter_count; i++) {
        if (!sweep->parameter[i].is_number)
            continue;
        struct sweep_prediction here = sweep_predict_at(sweep, best, i, value_of_run(sweep, best, i));
        if (here.points >= 2 && predict_along(sweep, best, i, number)) {
            *along = i;
            *points = here.points;
            return true;
        }
    }
    return false;
}

/* ---- adding ---- */

struct sweep_run sweep_new_run(void)
{
    return (struct sweep_run){.peak_bytes = SG_UNKNOWN,
                              .needed_bytes = SG_UNKNOWN,
                              .headroom_bytes = SG_UNKNOWN,
                              .start_headroom_bytes = SG_UNKNOWN,
                              .predicted_bytes = SG_UNKNOWN,
                              .duration_ns = -1,
                              .exit_code = -1,
                              .note = text_copy("", 0)};
}

/* Makes room for a value of a parameter at a place, or finds it there. Returns false if there is no room. */
static bool insert_value(struct sweep *sweep, struct sweep_parameter *parameter, size_t place, const char *value,
                         double number)
{
    size_t index = (size_t)(parameter - sweep->parameter), moved = parameter->count - place;
    if (place < parameter->count && parameter->number[place] <= number)
        return true;
    if (parameter->count == SWEEP_VALUES + SWEEP_REFINEMENTS)
        return false;
    memmove(&parameter->value[place + 1], &parameter->value[place], moved * sizeof *parameter->value);
    memmove(&parameter->number[place + 1], &parameter->number[place], moved * sizeof *parameter->number);
    parameter->value[place] = value;
    parameter->number[place] = number;
    parameter->count++;
    for (size_t i = 0; i < sweep->run_count; i++)
        sweep->run[i].place[index] += sweep->run[i].place[index] >= place;
    return true;
}

struct sweep_run *sweep_refine_add(struct sweep *sweep, size_t along, const char *value, size_t behind)
{
    double number;
    if (sweep->refinement_count == SWEEP_REFINEMENTS || along >= sweep->parameter_count || behind >= sweep->run_count ||
        !sweep->parameter[along].is_number || !sweep_read_number(value, &number))
        return NULL;
    struct sweep_parameter *parameter = &sweep->parameter[along];
    const struct sweep_run *last = &sweep->run[behind], *next = next_larger(sweep, last, along);
    if (number <= value_of_run(sweep, last, along) || (next != NULL && number >= value_of_run(sweep, next, along)))
        return NULL;
    size_t place = last->place[along] + 1;
    while (place < parameter->count && parameter->number[place] < number)
        place++;
    char *text = text_copy(value, SIZE_MAX);
    if (!insert_value(sweep, parameter, place, text, number))
        return NULL;
    sweep->refinement[sweep->refinement_count++] = (struct sweep_refinement){along, behind, text};
    struct sweep_run *runs = tool_allocate(sweep->run_count + 1, sizeof *runs);
    memcpy(runs, sweep->run, (behind + 1) * sizeof *runs);
    memcpy(runs + behind + 2, sweep->run + behind + 1, (sweep->run_count - behind - 1) * sizeof *runs);
    sweep->run = runs;
    sweep->run_count++;
    struct sweep_run *run = &runs[behind + 1];
    *run = sweep_new_run();
    memcpy(run->place, runs[behind].place, sizeof run->place);
    run->place[along] = place;
    run->is_refinement = true;
    return run;
}

struct sweep_run *sweep_refine_next(struct sweep *sweep, const struct sweep_gap *gap)
{
    char text[40];
    double low = value_of_run(sweep, gap->last, gap->parameter), high = value_of_run(sweep, gap->first, gap->parameter);
    bool is_integer = is_whole(&sweep->parameter[gap->parameter]);
    snprintf(text, sizeof text, is_integer ? "%.0f" : "%.6g", is_integer ? floor((low + high) / 2) : (low + high) / 2);
    return sweep_refine_add(sweep, gap->parameter, text, (size_t)(gap->last - sweep->run));
}

/* Returns whether a run has the value at a place of a parameter. */
static bool is_used(const struct sweep *sweep, size_t along, size_t place)
{
    for (size_t i = 0; i < sweep->run_count; i++)
        if (sweep->run[i].place[along] == place)
            return true;
    return false;
}

void sweep_refine_forget(struct sweep *sweep)
{
    while (sweep->refinement_count > 0) {
        struct sweep_refinement *last = &sweep->refinement[--sweep->refinement_count];
        struct sweep_parameter *parameter = &sweep->parameter[last->parameter];
        struct sweep_run *run = &sweep->run[last->behind + 1];
        size_t place = run->place[last->parameter];
        sweep->run_count--;
        memmove(run, run + 1, (sweep->run_count - last->behind - 1) * sizeof *run);
        if (!is_used(sweep, last->parameter, place)) {
            parameter->count--;
            size_t moved = parameter->count - place;
            memmove(&parameter->value[place], &parameter->value[place + 1], moved * sizeof *parameter->value);
            memmove(&parameter->number[place], &parameter->number[place + 1], moved * sizeof *parameter->number);
            for (size_t i = 0; i < sweep->run_count; i++)
                sweep->run[i].place[last->parameter] -= sweep->run[i].place[last->parameter] > place;
        }
    }
}
