/*
 * check_ray.c - checks the memory monitor of Ray, which kills a worker (SIGKILL, the newest task first) when the
 * machine is nearly full. The defaults here are those of Ray 2.60. Settings count if the raylet's environment has them;
 * a _system_config of ray.init() is not seen.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/doctor.h"
#include "common/text.h"
#include "common/tool.h"

#define THRESHOLD_DEFAULT 95 /* percent in use */

enum { ENVIRONMENT_CAPACITY = 65536 };

struct monitor {
    bool is_known; /* the raylet's environment could be read */
    bool is_off;
    double percent; /* Ray kills when more than this is in use */
};

/* Returns the value of a variable in `length` bytes of "NAME=value" with a NUL after each; NULL: not there. */
static const char *value_of(const char *block, long length, const char *name)
{
    size_t name_length = strlen(name);
    for (const char *at = block; at < block + length; at += strlen(at) + 1)
        if (strncmp(at, name, name_length) == 0 && at[name_length] == '=')
            return at + name_length + 1;
    return NULL;
}

static struct monitor read_monitor(const struct doctor *doctor, uint32_t pid)
{
    struct monitor monitor = {.percent = THRESHOLD_DEFAULT};
    char *end = NULL, *block = tool_allocate(ENVIRONMENT_CAPACITY, 1);
    long length = doctor_read(doctor, text_format("/proc/%" PRIu32 "/environ", pid), block, ENVIRONMENT_CAPACITY);
    const char *refresh = value_of(block, length, "RAY_memory_monitor_refresh_ms");
    const char *threshold = value_of(block, length, "RAY_memory_usage_threshold");
    double share = threshold != NULL ? strtod(threshold, &end) : -1;
    monitor.is_known = length >= 0;
    if (share >= 0 && share <= 1 && end != threshold)
        monitor.percent = share * 100;
    monitor.is_off = refresh != NULL && strtoul(refresh, &end, 10) == 0 && end != refresh;
    return monitor;
}

/* Returns the lowest threshold, in percent, at which the guard's floor comes first; at most 99. */
static int threshold_below_floor(uint64_t total, uint64_t floor)
{
    int percent = 99;
    while (percent > 50 && total / 100 * (uint64_t)(101 - percent) <= floor)
        percent--;
    return percent;
}

static void check_ray(struct doctor *doctor, struct finding *finding)
{
    const struct doctor_process *raylet = doctor_process_named(doctor, "raylet");
    uint64_t total = doctor->model->machine.total_bytes, floor = doctor->model->machine.floor_bytes, left = SG_UNKNOWN;
    struct monitor monitor;
    if (raylet == NULL) /* a machine without Ray hears nothing about it */
        return;
    monitor = read_monitor(doctor, raylet->pid);
    if (total != SG_UNKNOWN && monitor.is_known)
        left = (uint64_t)((double)total * (100 - monitor.percent) / 100);
    const char *left_text = text_size(left), *floor_text = text_size(floor);
    if (!monitor.is_known || total == SG_UNKNOWN || floor == SG_UNKNOWN) {
        finding_say(finding, FINDING_UNKNOWN,
                    text_format("sudo tr '\\0' '\\n' </proc/%" PRIu32 "/environ | grep ^RAY_memory_", raylet->pid),
                    "Ray runs (raylet %" PRIu32 "); when its memory monitor kills workers is not known.", raylet->pid);
    } else if (monitor.is_off) {
        finding_say(finding, FINDING_FINE, NULL, "Ray runs, and its memory monitor is off: the guard decides.");
    } else if (left > floor) {
        finding_say(
            finding, FINDING_WARNING,
            text_format(
                "RAY_memory_usage_threshold=0.%02d ray start ...  # or RAY_memory_monitor_refresh_ms=0, no monitor",
                threshold_below_floor(total, floor)),
            "Ray (raylet %" PRIu32 ") kills a worker when %s are left, before the guard's floor of %s.", raylet->pid,
            left_text, floor_text);
    } else {
        finding_say(finding, FINDING_FINE, NULL,
                    "Ray's memory monitor acts when %s are left, behind the guard's floor of %s.", left_text,
                    floor_text);
    }
    finding_figure(finding, "ray_kills_below_bytes", monitor.is_off ? 0 : left);
}

DOCTOR_CHECK(270, check_ray, "ray",
             "Ray's monitor ends the worker with the newest task by SIGKILL, whoever holds the memory; the guard "
             "refuses the request that does not fit, and the worker can catch that.");
