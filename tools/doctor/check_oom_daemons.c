/*
 * check_oom_daemons.c - checks the daemons that end processes when memory runs low, and says why they would not act in
 * time: neither sees device memory, which is in no process's size and in no cgroup.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/doctor.h"
#include "common/text.h"

/* earlyoom's default: it acts when less than this percentage of swap and of memory is free. */
#define SWAP_PERCENT 10

enum { ARGUMENTS_MAX = 64 };

/* Returns the percentage in an option's argument such as "100,50", or -1. */
static long first_number(const char *argument)
{
    char *end;
    long value = strtol(argument, &end, 10);
    return end == argument || value < 0 ? -1 : value;
}

/* Returns the percentage of free swap below which the running earlyoom acts; -1: unknown, because it was given in KiB.
 * */
static long swap_percent(const struct doctor *doctor, uint32_t pid)
{
    char text[4096];
    long percent = SWAP_PERCENT;
    long length = doctor_read(doctor, text_format("/proc/%" PRIu32 "/cmdline", pid), text, sizeof text);
    if (length <= 0)
        return -1;
    for (const char *at = text; at < text + length; at += strlen(at) + 1) {
        const char *next = at + strlen(at) + 1;
        if (at[0] != '-' || (at[1] != 's' && at[1] != 'S'))
            continue;
        if (at[2] == '\0' && next >= text + length)
            continue;
        percent = at[1] == 'S' ? -1 : first_number(at[2] != '\0' ? at + 2 : next);
    }
    return percent;
}

static void check_earlyoom(struct doctor *doctor, struct finding *finding)
{
    uint64_t swap = doctor_meminfo(doctor, "SwapTotal");
    const struct doctor_process *process = doctor_daemon_named(doctor, "earlyoom");
    long percent = process != NULL ? swap_percent(doctor, process->pid) : -1;
    const char *swap_text = text_size(swap);
    if (!doctor->has_processes) {
        finding_say(finding, FINDING_UNKNOWN, "systemctl status earlyoom", "/proc cannot be listed.");
    } else if (process == NULL) {
        finding_say(finding, FINDING_FINE, NULL, "earlyoom does not run.");
        finding->absent = doctor->is_contained ? "the host's, and this is a container" : NULL;
    } else if (swap == SG_UNKNOWN || (swap > 0 && percent < 0)) {
        finding_say(finding, FINDING_UNKNOWN, text_format("tr '\\0' ' ' </proc/%" PRIu32 "/cmdline", process->pid),
                    "earlyoom runs; whether it waits for swap to run low is not known.");
    } else if (swap > 0 && percent < 100) {
        finding_say(finding, FINDING_WARNING, "sudo swapoff -a  # or earlyoom -s 100, which looks at memory alone",
                    "earlyoom runs and would not fire: it waits until less than %ld %% of %s of swap is free as "
                    "well.",
                    percent, swap_text);
    } else {
        finding_say(finding, FINDING_FINE, NULL,
                    "earlyoom runs and looks at memory alone, at most ten times a second.");
    }
    finding_figure_signed(finding, "swap_percent", percent < 0 ? INT64_MIN : percent);
}

DOCTOR_CHECK(110, check_earlyoom, "earlyoom",
             "It polls, and 30 GB can go in one second; then it ends the process with the largest "
             "resident size, which excludes device memory.");

static void check_oomd(struct doctor *doctor, struct finding *finding)
{
    const struct doctor_process *process = doctor_daemon_named(doctor, "systemd-oomd");
    if (!doctor->has_processes) {
        finding_say(finding, FINDING_UNKNOWN, "systemctl status systemd-oomd", "/proc cannot be listed.");
    } else if (process == NULL) {
        finding_say(finding, FINDING_FINE, NULL, "systemd-oomd does not run.");
        finding->absent = doctor->is_contained ? "the host's, and this is a container" : NULL;
    } else {
        bool is_at_risk = doctor_is_at_risk(doctor);
        finding_say(finding, is_at_risk ? FINDING_WARNING : FINDING_FINE, NULL,
                    "systemd-oomd runs (%" PRIu32 "): it acts on the pressure and swap of cgroups, and device "
                    "memory is in no cgroup.",
                    process->pid);
        if (is_at_risk) {
            finding->fix = "sudo systemctl disable --now systemd-oomd.service";
            finding->step = "systemd-oomd";
        }
    }
}

DOCTOR_CHECK(120, check_oomd, "systemd-oomd",
             "A cudaMalloc raises the pressure of others only when it is too late; systemd-oomd then ends the cgroup "
             "under pressure: often the login session, not the job.");
