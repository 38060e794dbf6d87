/*
 * check_guard.c - checks the guard itself: whether the library is found, whether its settings are valid, and whether
 * the tenants share one ledger. Also checks the memory jail, and says what a jail does not bound.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/registry_file.h"
#include "doctor/doctor.h"
#include "doctor/library.h"
#include "common/bytes.h"
#include "model/defaults.h"
#include "common/text.h"
#include "common/env_check.h"

static void check_library(struct doctor *doctor, struct finding *finding)
{
    char *path = doctor_library_find(doctor);
    enum doctor_library verdict = path != NULL ? doctor_library_judge(doctor, path) : DOCTOR_LIBRARY_BAD;
    if (path == NULL) {
        finding_say(finding, FINDING_DANGER, "make && sudo make install",
                    "libsparkguard.so was not found: no program can be guarded.");
    } else if (verdict == DOCTOR_LIBRARY_GOOD) {
        finding_say(finding, FINDING_FINE, NULL, "%s can be preloaded.", path);
    } else if (verdict == DOCTOR_LIBRARY_UNKNOWN) {
        finding_say(finding, FINDING_UNKNOWN, "make && sudo make install", "%s cannot be read.", path);
    } else {
        finding_say(finding, FINDING_DANGER, "make && sudo make install",
                    "%s cannot be preloaded %s: programs would run unguarded.", path,
                    verdict == DOCTOR_LIBRARY_FOREIGN ? "here, it is for another architecture"
                                                      : "by the dynamic linker");
    }
}

DOCTOR_CHECK(10, check_library, "library",
             "If the dynamic linker cannot preload the library, it prints one line and starts the program "
             "unguarded.");

/* Invalid settings: their number, a sentence about the first as "NAME=value", and the fix. */
struct faults {
    uint64_t count;
    char *sentence;
    char *fix;
};

static void take_fault(struct faults *faults, const char *entry, enum env_check verdict, enum sg_option option)
{
    const struct sg_option_info *info = &sg_option_table[option];
    char *name = text_copy(entry, strcspn(entry, "="));
    if (faults->count++ == 0 && verdict == ENV_CHECK_BAD) {
        faults->sentence = text_format("%.120s: %s", entry, env_check_fault(option, strchr(entry, '=') + 1));
        char *good = text_copy(info->example, strcspn(info->example, "|"));
        faults->fix = text_format("export %s=%s", info->variable, good);
    } else if (faults->count == 1) {
        faults->sentence = text_format("%.120s is not a variable of sparkguard", name);
        faults->fix = text_format("export %s=...  # was this meant?", info->variable);
    }
}

static bool is_set_to(enum sg_option option, const char *value)
{
    const char *text = getenv(sg_option_table[option].variable);
    return text != NULL && strcmp(text, value) == 0;
}

static void check_settings(struct doctor *doctor, struct finding *finding)
{
    (void)doctor;
    struct faults faults = {0};
    uint64_t set = 0;
    for (char **entry = environ; *entry != NULL; entry++) {
        enum sg_option option;
        enum env_check verdict = env_check_judge(*entry, &option);
        set += verdict == ENV_CHECK_GOOD && !defaults_have_set(option);
        if (verdict == ENV_CHECK_BAD || verdict == ENV_CHECK_UNKNOWN)
            take_fault(&faults, *entry, verdict, option);
    }
    if (is_set_to(SG_OPTION_DISABLE, "1")) {
        finding_say(finding, FINDING_DANGER, "unset SPARKGUARD_DISABLE",
                    "SPARKGUARD_DISABLE=1: the guard refuses nothing.");
    } else if (faults.count > 0) {
        finding_say(finding, FINDING_WARNING, faults.fix, "%" PRIu64 " setting%s that the guard cannot use; %s.",
                    faults.count, faults.count == 1 ? "" : "s", faults.sentence);
    } else if (is_set_to(SG_OPTION_MODE, "observe")) {
        finding_say(finding, FINDING_WARNING, "unset SPARKGUARD_MODE",
                    "SPARKGUARD_MODE=observe: the guard refuses nothing.");
    } else if (is_set_to(SG_OPTION_WATCHDOG, "off")) {
        finding_say(finding, FINDING_WARNING, "unset SPARKGUARD_WATCHDOG",
                    "SPARKGUARD_WATCHDOG=off: nothing acts on memory that no call announces.");
    } else {
        finding_say(finding, FINDING_FINE, NULL, "%" PRIu64 " SPARKGUARD_ variable%s set, and can be used.", set,
                    set == 1 ? " is" : "s are");
    }
    finding_figure(finding, "set_count", set);
    finding_figure(finding, "fault_count", faults.count);
}

DOCTOR_CHECK(20, check_settings, "settings",
             "The default replaces a value that cannot be read, and a misspelt name has no effect.");

/* Returns why the directory's ledger cannot be used, by the library's rules, as far as files show; NULL if it can. */
static const char *ledger_fault(int directory, bool *is_there)
{
    struct stat status;
    struct sg_registry header;
    struct sg_registry_link link;
    *is_there = false;
    if (fstat(directory, &status) != 0)
        return "its directory cannot be read";
    if ((status.st_mode & S_IWOTH) != 0)
        return "its directory is world-writable";
    if (status.st_uid != geteuid() && status.st_uid != 0)
        return "its directory belongs to another user";
    if (fstatat(directory, SG_REGISTRY_NAME, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? NULL : "it cannot be read";
    *is_there = true;
    if (!S_ISREG(status.st_mode))
        return "it is not a regular file";
    int fd = openat(directory, SG_REGISTRY_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return "it cannot be opened";
    ssize_t length = pread(fd, &header, sizeof header, 0);
    bool is_link = sg_registry_link_read(fd, &link) == 0;
    close(fd);
    if (is_link)
        return NULL;
    if (length != (ssize_t)sizeof header || status.st_size < (off_t)SG_REGISTRY_BYTES(SG_ENTRY_FROZEN_BYTES))
        return "it is too short";
    if (!sg_registry_is_usable(&header, SG_REGISTRY_BYTES(SG_ENTRY_BYTES_MAX)))
        return "it belongs to another version, or is not a ledger";
    return status.st_size < (off_t)SG_REGISTRY_BYTES(header.entry_bytes) ? "it is too short" : NULL;
}

static uint64_t count_alone(const struct model *model)
{
    const struct model_job *job;
    const struct model_process *process;
    uint64_t count = 0;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            count += model_process_is_alone(process);
    return count;
}

static void check_ledger(struct doctor *doctor, struct finding *finding)
{
    static const char fix[] = "export SPARKGUARD_DIR=/dev/shm/sparkguard  # made by sparkguard-doctor --fix-script";
    const struct model *model = doctor->model;
    const char *path = model->directories[0].path;
    uint64_t alone = count_alone(model);
    bool is_there = false;
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int failure = directory < 0 ? errno : 0;
    const char *fault = directory < 0 ? NULL : ledger_fault(directory, &is_there);
    if (directory >= 0)
        close(directory);
    if (failure != 0 && failure != ENOENT) {
        finding_say(finding, FINDING_UNKNOWN, "ls -ld /dev/shm/sparkguard*", "%s cannot be read: %s.", path,
                    strerror(failure));
    } else if (fault != NULL) {
        finding_say(finding, FINDING_DANGER, "ls -la \"${SPARKGUARD_DIR:-/dev/shm/sparkguard-$(id -u)}\"",
                    "%s/" SG_REGISTRY_NAME " cannot be used: %s.", path, fault);
    } else if (model->live_other_directory_count > 0) {
        finding_say(finding, FINDING_WARNING, fix,
                    "%zu more director%s of guarded programs beside %s: %s%s; programs there are not counted.",
                    model->live_other_directory_count, model->live_other_directory_count == 1 ? "y" : "ies", path,
                    model->live_other_directory, model->live_other_directory_count > 1 ? ", ..." : "");
        finding->step = "directory";
    } else if (alone > 0) {
        finding_say(finding, FINDING_WARNING, "sparkguard-report  # says why each does",
                    "%" PRIu64 " guarded process%s without the others.", alone, alone == 1 ? " decides" : "es decide");
    } else {
        finding_say(finding, FINDING_FINE, NULL,
                    is_there ? "All guarded programs share %s/" SG_REGISTRY_NAME "."
                             : "No ledger yet; the first guarded program makes %s/" SG_REGISTRY_NAME ".",
                    path);
    }
    finding_figure(finding, "neighbour_count", model->other_directory_count);
    finding_figure(finding, "alone_count", alone);
}

DOCTOR_CHECK(200, check_ledger, "ledger",
             "Tenants that do not share a ledger do not see each other's promises, and may be granted the "
             "same memory twice.");

/* Returns whether systemd runs the machine, which sparkguard --jail needs for a scope. */
static bool has_systemd(const struct doctor *doctor)
{
    const struct doctor_process *process = doctor_process_named(doctor, "systemd");
    return doctor_exists(doctor, "/run/systemd/system") || (process != NULL && process->pid == 1);
}

static void check_jail(struct doctor *doctor, struct finding *finding)
{
    char group[4096];
    uint64_t total = doctor->model->machine.total_bytes, limit = doctor->model->machine.cgroup_limit_bytes;
    bool is_readable = doctor_read(doctor, "/proc/self/cgroup", group, sizeof group) > 0;
    const char *limit_text = text_size(limit);
    if (!is_readable) {
        finding_say(finding, FINDING_UNKNOWN, "cat /proc/self/cgroup", "/proc/self/cgroup cannot be read.");
    } else if (limit != SG_UNKNOWN && (total == SG_UNKNOWN || limit < total)) {
        finding_say(finding, FINDING_FINE, NULL,
                    "A cgroup holds what is started here to %s of malloc, mmap and managed memory; it does not "
                    "see cudaMalloc%s.",
                    limit_text, doctor->unified == 0 ? "" : ", whose pages are charged to no cgroup");
    } else {
        finding_say(finding, FINDING_WARNING, NULL,
                    "No cgroup limits programs started here. A cgroup would not bound cudaMalloc%s.",
                    doctor->unified == 0 ? "" : ", whose pages are charged to no cgroup");
        uint64_t gib = total == SG_UNKNOWN ? 100 : bytes_max(total / 100 * 84 >> 30, 1); /* 100 GiB of a Spark's 120 */
        if (has_systemd(doctor))
            finding->fix = text_format("sparkguard --jail=%" PRIu64 "G PROGRAM", gib);
        else /* in a container or under another init, the program's starter sets the limit */
            finding->fix = text_format("docker run --memory=%" PRIu64 "g IMAGE  # no systemd here for --jail", gib);
    }
    finding_figure(finding, "cgroup_limit_bytes", limit);
}

DOCTOR_CHECK(100, check_jail, "jail",
             "A jail lets a job run out of CPU memory alone. It does not bound GPU memory on unified memory; the guard "
             "does.");
