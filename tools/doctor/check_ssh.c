/*
 * check_ssh.c - checks whether SSH survives memory exhaustion. The kernel must neither end sshd nor reclaim its memory,
 * and programs started from a protected shell must not inherit the protection.
 */
#include <inttypes.h>
#include <string.h>

#include "doctor/doctor.h"
#include "sparkguard_options.h"
#include "common/bytes.h"
#include "common/text.h"

/* sshd's listener sets -1000 for itself. Down to this score the kernel prefers nearly every other process. */
#define SCORE_SAFE (-900)
/* sshd needs more than this to fork a session; the fix gives it 512 MiB. */
#define MEMORY_LEAST (INT64_C(64) << 20)

/* Debian and Ubuntu call the unit ssh, others sshd. */
static const char *ssh_unit(const struct doctor *doctor)
{
    char value[64];
    bool is_other = doctor_unit_value(doctor, "ssh.service", "ExecStart", value) == DOCTOR_UNIT_ABSENT &&
                    doctor_unit_value(doctor, "sshd.service", "ExecStart", value) != DOCTOR_UNIT_ABSENT;
    return is_other ? "sshd.service" : "ssh.service";
}

static bool has_server(const struct doctor *doctor)
{
    return doctor_daemon_named(doctor, "sshd") != NULL;
}

/* Reads the score of the listener: the lowest of all processes called sshd, which include sessions. */
static bool listener_score(const struct doctor *doctor, int64_t *score)
{
    bool is_known = false;
    for (size_t i = 0; i < doctor->process_count; i++) {
        int64_t value;
        char *path = text_format("/proc/%" PRIu32 "/oom_score_adj", doctor->processes[i].pid);
        if (strcmp(doctor->processes[i].name, "sshd") != 0 || !doctor_read_number(doctor, path, &value))
            continue;
        *score = is_known && *score < value ? *score : value;
        is_known = true;
    }
    return is_known;
}

/* The same step fixes both findings. Its file names sort after those of other packages, so they take precedence. */
static void mend_ssh(struct finding *finding, const char *unit)
{
    finding->step = "ssh";
    finding->step_word = unit;
}

static void check_ssh_oom(struct doctor *doctor, struct finding *finding)
{
    char value[64] = "";
    const char *unit = ssh_unit(doctor);
    bool is_running = has_server(doctor);
    enum doctor_unit state = doctor_unit_value(doctor, unit, "OOMScoreAdjust", value);
    int64_t score = 0, setting = 0;
    bool has_score = listener_score(doctor, &score);
    bool has_setting = state == DOCTOR_UNIT_SET && sg_parse_number(value, &setting) == 0;
    if (!is_running && state == DOCTOR_UNIT_ABSENT) {
        finding_say(finding, FINDING_FINE, NULL, "No SSH server is set up here.");
        finding->absent = "no SSH server";
    } else if (has_score && score <= SCORE_SAFE) {
        finding_say(finding, FINDING_FINE, NULL, "sshd runs with an oom_score_adj of %" PRId64 ".", score);
    } else if (!has_score && has_setting && setting <= SCORE_SAFE) {
        finding_say(finding, FINDING_FINE, NULL, "%s sets OOMScoreAdjust to %" PRId64 ".", unit, setting);
    } else if (state == DOCTOR_UNIT_UNREADABLE || (is_running && !has_score)) {
        finding_say(finding, FINDING_UNKNOWN, text_format("systemctl show -p OOMScoreAdjust %s", unit),
                    "The files of %s, or sshd's oom_score_adj, cannot be read.", unit);
    } else if (has_score) {
        finding_say(finding, FINDING_WARNING, NULL, "sshd runs with an oom_score_adj of %" PRId64 ".", score);
    } else {
        finding_say(finding, FINDING_WARNING, NULL, "%s does not set OOMScoreAdjust to -1000.", unit);
    }
    if (finding->state == FINDING_WARNING) {
        finding->fix = text_format(
            "d=/etc/systemd/system/%s.d && sudo mkdir -p $d && printf '[Service]\\nOOMScoreAdjust=-1000\\n' | "
            "sudo tee $d/sparkguard.conf && sudo systemctl daemon-reload && sudo systemctl restart %s",
            unit, unit);
        mend_ssh(finding, unit);
    }
    finding_figure_signed(finding, "oom_score_adj", has_score ? score : INT64_MIN);
}

DOCTOR_CHECK(70, check_ssh_oom, "ssh-oom",
             "If the kernel's OOM killer ends sshd, nobody can log in to help. Programs started in a session may "
             "inherit the score: start jobs with sparkguard --oom-score-adj=500.");

/* Reads MemoryMin of a unit: from the kernel if the cgroup exists, else from the unit's files. */
static enum doctor_unit protected_bytes(const struct doctor *doctor, const char *group, const char *unit,
                                        int64_t *bytes)
{
    char value[64] = "", *path = text_format("/sys/fs/cgroup/%s/memory.min", group);
    bool is_from_kernel = doctor_read_number(doctor, path, bytes);
    bool is_there = doctor_exists(doctor, path);
    struct sg_size size;
    if (is_from_kernel)
        return DOCTOR_UNIT_SET;
    *bytes = 0;
    enum doctor_unit state = doctor_unit_value(doctor, unit, "MemoryMin", value);
    if (is_there && state != DOCTOR_UNIT_SET)
        return DOCTOR_UNIT_UNREADABLE;
    if (state == DOCTOR_UNIT_SET && strcmp(value, "infinity") == 0)
        *bytes = INT64_MAX;
    else if (state == DOCTOR_UNIT_SET && sg_parse_size(value, &size) == 0)
        *bytes = (int64_t)bytes_min(sg_size_of(size, doctor->model->machine.total_bytes), INT64_MAX);
    return state;
}

static void check_ssh_memory(struct doctor *doctor, struct finding *finding)
{
    const char *unit = ssh_unit(doctor);
    char *group = text_format("system.slice/%s", unit);
    int64_t own, slice;
    enum doctor_unit state = protected_bytes(doctor, group, unit, &own);
    enum doctor_unit slice_state = protected_bytes(doctor, "system.slice", "system.slice", &slice);
    const char *own_text = text_size((uint64_t)own), *slice_text = text_size((uint64_t)slice);
    if (state == DOCTOR_UNIT_ABSENT && !has_server(doctor)) {
        finding_say(finding, FINDING_FINE, NULL, "No SSH server is set up here.");
        finding->absent = "no SSH server";
    } else if (state == DOCTOR_UNIT_UNREADABLE || slice_state == DOCTOR_UNIT_UNREADABLE) {
        finding_say(finding, FINDING_UNKNOWN, text_format("systemctl show -p MemoryMin %s system.slice", unit),
                    "MemoryMin of %s or of its slice cannot be read.", unit);
        own = slice = -1;
    } else if (own < MEMORY_LEAST) {
        finding_say(finding, FINDING_WARNING, NULL, "%s keeps %s of memory for itself (MemoryMin).", unit, own_text);
    } else if (slice < MEMORY_LEAST) {
        finding_say(finding, FINDING_WARNING, NULL,
                    "%s has a MemoryMin of %s, which has no effect: system.slice above it has %s.", unit, own_text,
                    slice_text);
    } else {
        finding_say(finding, FINDING_FINE, NULL, "%s keeps %s of memory, its slice %s (MemoryMin).", unit, own_text,
                    slice_text);
    }
    if (finding->state == FINDING_WARNING) {
        finding->fix = text_format("sudo systemctl set-property system.slice MemoryMin=512M && "
                                   "sudo systemctl set-property %s MemoryMin=512M",
                                   unit);
        mend_ssh(finding, unit);
    }
    finding_figure(finding, "memory_min_bytes", own < 0 ? SG_UNKNOWN : (uint64_t)own);
    finding_figure(finding, "slice_memory_min_bytes", slice < 0 ? SG_UNKNOWN : (uint64_t)slice);
}

DOCTOR_CHECK(80, check_ssh_memory, "ssh-memory",
             "If sshd is swapped out or reclaimed, it answers too late; the kernel heeds MemoryMin only as far as "
             "every cgroup above has as much.");

static void check_oom_score(struct doctor *doctor, struct finding *finding)
{
    int64_t score;
    if (!doctor_read_number(doctor, "/proc/self/oom_score_adj", &score)) {
        finding_say(finding, FINDING_UNKNOWN, "cat /proc/self/oom_score_adj",
                    "/proc/self/oom_score_adj cannot be read.");
        score = INT64_MIN;
    } else if (score < 0) {
        finding_say(finding, FINDING_WARNING, "sparkguard --oom-score-adj=500 PROGRAM",
                    "Programs started here inherit an oom_score_adj of %" PRId64 ".", score);
    } else {
        finding_say(finding, FINDING_FINE, NULL, "Programs started here have an oom_score_adj of %" PRId64 ".", score);
    }
    finding_figure_signed(finding, "oom_score_adj", score);
}

DOCTOR_CHECK(90, check_oom_score, "oom-score",
             "The kernel's OOM killer would then end all other programs before the job that took the memory.");
