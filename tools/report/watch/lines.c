/*
 * lines.c - the watch without a screen: prints a line of fixed width for each sample.
 */
#include <inttypes.h>

#include "report/watch/watch.h"
#include "common/bytes.h"
#include "common/tool.h"

/* Sums over the scope. */
struct sum {
    uint64_t live_bytes;
    uint64_t refused_count;
    size_t running_count;
    int64_t rate;
    int64_t wall_ns; /* time to the nearest wall */
};

static void add_job(struct sum *sum, uint64_t live_bytes, int64_t rate, int64_t wall_ns)
{
    sum->live_bytes = bytes_add(sum->live_bytes, live_bytes);
    if (rate != WATCH_NO_RATE)
        sum->rate = sum->rate == WATCH_NO_RATE ? rate : sum->rate + rate;
    if (wall_ns != WATCH_NEVER && (sum->wall_ns == WATCH_NEVER || wall_ns < sum->wall_ns))
        sum->wall_ns = wall_ns;
}

static struct sum add_up(const struct watch *watch)
{
    struct sum sum = {.rate = WATCH_NO_RATE, .wall_ns = WATCH_NEVER};
    const struct model_job *job;
    const struct model_process *process;
    DL_FOREACH (watch->model->jobs, job) {
        int64_t rate = watch_job_rate(watch, job);
        if (watch->scope->pid == 0 && job->running_count > 0)
            add_job(&sum, job->live_bytes, rate, watch_wall_ns(watch, job, rate));
        DL_FOREACH (job->processes, process) {
            if (process->state != SG_STATE_RUNNING)
                continue;
            rate = watch_process_rate(watch, process);
            if (watch->scope->pid != 0)
                add_job(&sum, process->live_bytes, rate, watch_wall_ns(watch, job, rate));
            sum.running_count++;
            sum.refused_count = bytes_add(sum.refused_count, process->refused_count);
        }
    }
    return sum;
}

void watch_put_line(const struct watch *watch, bool is_first)
{
    struct sum sum = add_up(watch);
    if (is_first)
        printf("%8s %10s %12s %10s %12s %10s %4s %7s\n", "TIME", "USABLE", "RATE", "LIVE", "RATE", "WALL IN", "RUN",
               "REFUSED");
    printf("%8s %10s %12s %10s %12s %10s %4zu %7" PRIu64 "\n", text_clock_local(tool_now_ns()),
           text_size(watch->model->machine.usable_bytes), watch_rate_text(watch_trend_rate(&watch->usable)),
           text_size(sum.live_bytes), watch_rate_text(sum.rate), watch_wall_text(sum.wall_ns), sum.running_count,
           sum.refused_count);
}
