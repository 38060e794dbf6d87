/*
 * predict.c - predicts the need of the next configuration from measurements along one parameter.
 *
 * Peaks often grow faster than linearly: attention grows with the square of the sequence, and published figures for
 * batches of 2, 4, 8 and 16 (21.1, 29.0, 46.8, 80.9 GB) have steps that more than double. With three points, y = a + b
 * x^p is fitted through the last three, with 1 <= p <= 3. Memory is not known to grow more slowly, and a steeper curve
 * through three points is noise. With two points p is unknown: the prediction is the range from p = 1 to p = 2, and
 * only a configuration that would not fit even with p = 1 is not started. With one point, a larger configuration is
 * assumed to need no less.
 *
 * A wrong prediction costs a refusal at most, because every run is guarded.
 */
#include <math.h>

#include "sweep/sweep.h"

#define START_NS INT64_C(10000000000) /* a program that fails sooner has hardly begun */

enum { EXPONENT_MAX = 3, BISECTIONS = 60 };

struct point {
    double x, y;
};

static bool is_wall(enum sweep_status status)
{
    return status == SWEEP_REFUSED || status == SWEEP_FAILED || status == SWEEP_KILLED || status == SWEEP_TIMED_OUT ||
           status == SWEEP_LOST || status == SWEEP_TOO_LARGE;
}

/* Returns whether two runs are equal in all parameters but one. */
static bool is_on_line(const struct sweep *sweep, const struct sweep_run *a, const struct sweep_run *b, size_t along)
{
    for (size_t i = 0; i < sweep->parameter_count; i++)
        if (i != along && a->place[i] != b->place[i])
            return false;
    return true;
}

/* Collects the last three runs along a parameter below a place, the largest first. Returns the number of all below. */
static size_t collect(const struct sweep *sweep, const struct sweep_run *run, size_t along, size_t below,
                      struct point point[3])
{
    size_t count = 0;
    for (size_t place = below; place-- > 0;)
        for (size_t i = 0; i < sweep->run_count; i++) {
            const struct sweep_run *seen = &sweep->run[i];
            if (seen->place[along] != place || seen->status != SWEEP_OK || seen->needed_bytes == SG_UNKNOWN ||
                !is_on_line(sweep, seen, run, along))
                continue;
            if (count < 3)
                point[count] = (struct point){sweep->parameter[along].number[place], (double)seen->needed_bytes};
            count++;
        }
    return count;
}

/* By powl, for pow has a version of glibc 2.29. */
static double power(double x, double p)
{
    return (double)powl(x, p);
}

/* Returns the ratio of the second step to the first if y grows with x^p. */
static double steepness(const struct point point[3], double p)
{
    double x1 = power(point[2].x, p), x2 = power(point[1].x, p), x3 = power(point[0].x, p);
    return (x3 - x2) / (x2 - x1);
}

/* Finds p by bisection: the ratio of the steps grows with p for points above zero. */
static double find_exponent(const struct point point[3])
{
    double first = point[1].y - point[2].y, second = point[0].y - point[1].y, low = 1, high = EXPONENT_MAX;
    if (second <= 0 || point[2].x < 0)
        return low;
    if (first <= 0 || second / first >= steepness(point, high))
        return high;
    for (int i = 0; i < BISECTIONS; i++) {
        double middle = (low + high) / 2;
        if (steepness(point, middle) < second / first)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Extrapolates through the last two points with an exponent. Memory that shrinks is assumed to stay constant. */
static uint64_t extend(const struct point *point, double x, double p)
{
    double slope = (point[0].y - point[1].y) / (power(point[0].x, p) - power(point[1].x, p));
    double y = point[0].y + (slope > 0 ? slope * (power(x, p) - power(point[0].x, p)) : 0);
    return y >= 0x1p62 ? UINT64_C(1) << 62 : (uint64_t)y;
}

/* Predicts the need for x, from the runs whose place along a parameter is below a given one. */
static struct sweep_prediction predict_along(const struct sweep *sweep, const struct sweep_run *run, size_t along,
                                             size_t below, double x)
{
    struct point point[3];
    size_t points = collect(sweep, run, along, below, point);
    struct sweep_prediction found = {SG_UNKNOWN, SG_UNKNOWN, SG_UNKNOWN, 0, points, along};
    if (found.points == 0)
        return found;
    bool is_positive = point[found.points > 2 ? 2 : found.points - 1].x >= 0;
    found.least_bytes = found.points == 1 ? (uint64_t)point[0].y : extend(point, x, 1);
    if (found.points == 2)
        found.most_bytes = extend(point, x, is_positive ? 2 : 1);
    if (found.points > 2) {
        found.exponent = find_exponent(point);
        found.likely_bytes = extend(point, x, found.exponent);
    }
    return found;
}

/* Returns the figure that decides: the likely one if there is one. */
static uint64_t weight(const struct sweep_prediction *prediction)
{
    return prediction->likely_bytes != SG_UNKNOWN ? prediction->likely_bytes : prediction->least_bytes;
}

struct sweep_prediction sweep_predict(const struct sweep *sweep, const struct sweep_run *run)
{
    struct sweep_prediction best = {SG_UNKNOWN, SG_UNKNOWN, SG_UNKNOWN, 0, 0, 0};
    for (size_t i = 0; i < sweep->parameter_count; i++) {
        if (!sweep->parameter[i].is_number)
            continue;
        size_t place = run->place[i];
        struct sweep_prediction found = predict_along(sweep, run, i, place, sweep->parameter[i].number[place]);
        if (found.points > 0 && (best.points == 0 || weight(&found) > weight(&best)))
            best = found;
    }
    return best;
}

struct sweep_prediction sweep_predict_at(const struct sweep *sweep, const struct sweep_run *run, size_t along,
                                         double number)
{
    return predict_along(sweep, run, along, run->place[along] + 1, number);
}

const struct sweep_run *sweep_find_wall(const struct sweep *sweep, const struct sweep_run *run)
{
    for (size_t i = 0; i < sweep->run_count; i++) {
        const struct sweep_run *wall = &sweep->run[i];
        bool is_smaller = wall != run && is_wall(wall->status);
        for (size_t j = 0; is_smaller && j < sweep->parameter_count; j++)
            is_smaller =
                sweep->parameter[j].is_number ? wall->place[j] <= run->place[j] : wall->place[j] == run->place[j];
        if (is_smaller)
            return wall;
    }
    return NULL;
}

/* Returns the product of all numbers, such as batch times accumulation. */
static double worth(const struct sweep *sweep, const struct sweep_run *run)
{
    double product = 1;
    for (size_t i = 0; i < sweep->parameter_count; i++)
        if (sweep->parameter[i].is_number)
            product *= sweep->parameter[i].number[run->place[i]];
    return product;
}

/* Returns whether a run is better: a larger product, or the same product with less memory. */
static bool is_better(const struct sweep *sweep, const struct sweep_run *run, const struct sweep_run *best)
{
    double more = worth(sweep, run) - worth(sweep, best);
    return more > 0 || (more == 0 && run->needed_bytes < best->needed_bytes);
}

uint64_t sweep_margin_bytes(const struct sweep *sweep)
{
    return sg_size_of(sweep->margin, sweep->total_bytes != SG_UNKNOWN ? sweep->total_bytes : 0);
}

bool sweep_has_fitted(const struct sweep *sweep, const struct sweep_run *run)
{
    return run->status == SWEEP_OK && run->peak_bytes != SG_UNKNOWN &&
           (run->headroom_bytes == SG_UNKNOWN || run->headroom_bytes >= sweep_margin_bytes(sweep));
}

const struct sweep_run *sweep_recommend(const struct sweep *sweep)
{
    const struct sweep_run *best = NULL;
    for (size_t i = 0; i < sweep->run_count; i++) {
        const struct sweep_run *run = &sweep->run[i];
        if (sweep_has_fitted(sweep, run) && (best == NULL || is_better(sweep, run, best)))
            best = run;
    }
    return best;
}

bool sweep_is_false_start(const struct sweep *sweep, const struct sweep_run *run)
{
    bool is_large = run->peak_bytes != SG_UNKNOWN && run->peak_bytes >= SWEEP_SMALL_BYTES;
    if (run->status != SWEEP_FAILED || run->refused_count > 0 || is_large || run->duration_ns > START_NS)
        return false;
    for (size_t i = 0; i < sweep->run_count; i++)
        if (sweep->run[i].status == SWEEP_OK)
            return false;
    return true;
}
