/*
 * guarding.c - what two probes show under the library: that requests are refused and counted, where statistics are kept
 * and with whom they are shared, and how the calls of the CUDA driver are found.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/directory.h"
#include "launch/check/check.h"
#include "model/model.h"
#include "common/text.h"

/* The directory of the limited probe: one that nobody can write, so that its refusals leave no record. */
#define NOWHERE "/proc/self/fdinfo"

/* A program of more than this is not searched for a static CUDA runtime. */
#define PROGRAM_MOST (INT64_C(1) << 30)

/* Returns what to do where `path` cannot be used for statistics. Names no directory that has just failed. */
static const char *directory_advice(const char *path)
{
    char own[SG_PATH_CAPACITY];
    (void)sg_directory_default(own, getenv("XDG_RUNTIME_DIR"));
    if (strncmp(path, "/dev/shm/", 9) == 0 && access("/dev/shm", W_OK) != 0)
        return "mount a tmpfs on /dev/shm, or take another directory: --dir=DIR";
    if (strcmp(path, own) == 0)
        return "take another directory, on a tmpfs that has space: --dir=DIR";
    return "take a directory of your own: --dir=/dev/shm/sparkguard-$(id -u)";
}

/* Returns the first line of a probe's words that is not about its directory; NULL if there is none. */
static char *said(const char *words)
{
    char *text = text_copy(words, SIZE_MAX), *rest = text, *advice = NULL;
    for (char *line; advice == NULL && (line = strsep(&rest, "\n")) != NULL;)
        if (line[0] != '\0' && strstr(line, NOWHERE) == NULL)
            advice = text_format("it said: %s", line);
    return advice;
}

/* Adds whether a probe's requests beyond its limit were refused, and what it held was counted. */
static void add_decisions(struct check *check, const struct check_answer *answer, const char *words)
{
    static const char id[] = "refusals";
    const char *fault = !answer->is_active           ? "the library did not become active"
                        : !answer->is_malloc_refused ? "a malloc beyond its limit was granted"
                        : !answer->is_mmap_refused   ? "an mmap beyond its limit was granted"
                        : !answer->is_counted        ? "what it held was not counted"
                                                     : NULL;
    if (fault == NULL)
        check_add(check, id, FINDING_FINE, NULL,
                  "tried: malloc and mmap beyond a limit are refused, and what is held is counted");
    else
        check_add(check, id, FINDING_DANGER, said(words), "tried, and %s", fault);
}

static void try_decisions(struct check *check)
{
    const struct check_variable variables[] = {
        {"SPARKGUARD_LIMIT", "32M"},        {"SPARKGUARD_LARGE", "1M"},     {"SPARKGUARD_MODE", "enforce"},
        {"SPARKGUARD_DISABLE", NULL},       {"SPARKGUARD_WAIT", NULL},      {"SPARKGUARD_HISTORY", "off"},
        {"SPARKGUARD_JOB", NULL},           {SG_VARIABLE_FIRST, NULL},      {"SPARKGUARD_DIR", NOWHERE},
        {"SPARKGUARD_OOM_SCORE_ADJ", NULL}, {"SPARKGUARD_RESERVE", "none"}, {NULL, NULL},
    };
    struct check_trial trial;
    struct check_answer answer = {0};
    int status;
    (void)check_trial_start_probe(&trial, check->library, CHECK_PROBE_LIMITED, variables);
    if (!check_trial_hear(&trial, &answer))
        answer = (struct check_answer){0};
    add_decisions(check, &answer, check_trial_end(&trial, &status));
}

/* Adds where statistics are kept. Returns false if they are not. */
static bool add_place(struct check *check, const char *words)
{
    static const char id[] = "statistics";
    const char *path = check->launch->directory, *fault = launch_directory_fault(path);
    struct stat status;
    bool is_there = stat(path, &status) == 0;
    if (fault != NULL) {
        check_add(check, id, FINDING_WARNING, directory_advice(path),
                  "%s cannot be used: %s; the program is guarded, but alone and without a record", path, fault);
        return false;
    }
    if (strstr(words, "cannot keep statistics") != NULL) {
        check_add(check, id, FINDING_WARNING, directory_advice(path), "%.*s", (int)strcspn(words, "\n"),
                  strncmp(words, "sparkguard: ", 12) == 0 ? words + 12 : words);
        return false;
    }
    bool is_group = is_there && (status.st_mode & S_IWGRP) != 0;
    check_add(check, id, FINDING_FINE, NULL, "%s%s", path,
              is_group ? ", which the users of a group share: they can end each other's programs" : "");
    return true;
}

/* Counts the guarded processes beside the probe, and beside this one, which may have been begun under the guard. */
static size_t count_others(const struct model *model, pid_t probe, size_t *alone)
{
    const struct model_job *job;
    const struct model_process *process;
    size_t count = 0;
    *alone = 0;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (process->state == SG_STATE_RUNNING && process->pid != (uint32_t)probe &&
                process->pid != (uint32_t)getpid()) {
                count++;
                *alone += model_process_is_alone(process);
            }
    return count;
}

const struct model_process *check_find_probe(const struct model *model, pid_t probe)
{
    const struct model_job *job;
    const struct model_process *process;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (process->state == SG_STATE_RUNNING && process->pid == (uint32_t)probe)
                return process;
    return NULL;
}

/* Adds who decides together with the program. The probe still runs, so its record shows what the library found. */
static void add_sharing(struct check *check, pid_t probe, bool is_recorded)
{
    static const char id[] = "shared";
    const struct model_scope scope = {.is_all = true};
    struct model *model = model_build(&scope);
    const struct model_process *record = check_find_probe(model, probe);
    size_t alone, others = count_others(model, probe, &alone);
    char with[64] = "nobody yet";
    if (others > 0)
        snprintf(with, sizeof with, "%zu other guarded process%s", others, others == 1 ? "" : "es");
    if (record != NULL)
        snprintf(check->version, sizeof check->version, "%s", record->library_version);
    if (!is_recorded)
        check_add(check, id, FINDING_NONE, NULL, "with nobody, as there is no place for statistics");
    else if (record != NULL && model_process_is_alone(record))
        check_add(check, id, FINDING_WARNING, "sparkguard-doctor says what is wrong with the ledger",
                  "a probe could not share the ledger in %s: the program would decide alone", check->launch->directory);
    else if (model->live_other_directory_count > 0)
        check_add(check, id, FINDING_WARNING,
                  "a directory for all: SPARKGUARD_DIR=/dev/shm/sparkguard; sparkguard-doctor says how to make it",
                  "with %s; guarded processes in %s%s are not counted", with, model->live_other_directory,
                  model->live_other_directory_count > 1 ? " and other directories" : "");
    else if (alone > 0)
        check_add(check, id, FINDING_WARNING, "sparkguard-report says why they do",
                  "%zu of %zu other guarded processes decide%s alone", alone, others, alone == 1 ? "s" : "");
    else if (others > 0)
        check_add(check, id, FINDING_FINE, NULL, "with %s, in one ledger", with);
    else
        check_add(check, id, FINDING_FINE, NULL, "no other guarded process runs; those to come share the ledger");
}

/* Returns whether the program has the CUDA runtime within itself. Only the runtime asks the driver for this
 * function. */
static bool has_static_runtime(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    void *bytes = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &status) == 0 && status.st_size > 0 && status.st_size <= PROGRAM_MOST)
        bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0)
        close(fd);
    if (bytes == MAP_FAILED)
        return false;
    bool has = memmem(bytes, (size_t)status.st_size, "libcuda.so.1", 12) != NULL &&
               memmem(bytes, (size_t)status.st_size, "cuGetProcAddress", 16) != NULL;
    munmap(bytes, (size_t)status.st_size);
    return has;
}

static const char *runtime_of(const struct check *check)
{
    const char *loaded = check->loaded != NULL ? check->loaded : "";
    if (!check->has_program || check->program.obstacle != LAUNCH_NO_OBSTACLE)
        return "";
    if (strstr(loaded, "libcudart.so") != NULL)
        return "; it links the CUDA runtime";
    if (check->program.script == NULL && has_static_runtime(check->program.path))
        return "; it has the CUDA runtime within itself";
    if (strstr(loaded, "libcuda.so") != NULL)
        return "; it links the driver";
    return "; it links no CUDA, but may load it later";
}

static void add_driver(struct check *check, const struct check_answer *answer)
{
    static const char id[] = "CUDA";
    static const char *const ways[CHECK_ENTRY_COUNT] = {"exports", "dlsym", "cuGetProcAddress"};
    const char *through = "", *beside = "";
    for (int i = 0; i < CHECK_ENTRY_COUNT; i++)
        text_append(answer->is_hooked[i] ? &through : &beside, ", ", ways[i]);
    if (answer->driver[0] == '\0' && answer->driver_fault[0] != '\0')
        check_add(check, id, FINDING_WARNING, "the program will meet the same: fix the driver's installation",
                  "libcuda.so.1 cannot be loaded: %s", answer->driver_fault);
    else if (answer->driver[0] == '\0')
        check_add(check, id, FINDING_NONE, NULL, "no driver here (libcuda.so.1): malloc and mmap are guarded%s",
                  runtime_of(check));
    else if (beside[0] != '\0')
        check_add(check, id, FINDING_DANGER, "report this with the driver's version: device memory is not guarded",
                  "calls of %s come through the guard by %s, not by %s", answer->driver,
                  through[0] != '\0' ? through : "no way", beside);
    else
        check_add(check, id, FINDING_FINE, NULL, "calls of %s come through the guard by %s%s", answer->driver, through,
                  runtime_of(check));
}

/* Appends the version to line 0, the library's. */
static void add_version(struct check *check)
{
    for (size_t i = 0; i < check->findings.count && check->version[0] != '\0'; i++) {
        if (strcmp(check->findings.at[i].id, "library") != 0)
            continue;
        check->findings.at[i].sentence = text_format("%s, version %s", check->findings.at[i].sentence, check->version);
        return;
    }
}

void check_guarding(struct check *check)
{
    const struct check_variable variables[] = {
        {"SPARKGUARD_JOB", "sparkguard-check"},
        {SG_VARIABLE_FIRST, NULL},
        {"SPARKGUARD_HISTORY", "off"},
        {"SPARKGUARD_OOM_SCORE_ADJ", NULL},
        {"SPARKGUARD_LIMIT", NULL},
        {"SPARKGUARD_DISABLE", NULL},
        {"SPARKGUARD_MODE", "observe"},
        {NULL, NULL},
    };
    struct check_trial trial;
    struct check_answer answer = {0};
    int status;
    if (check->library == NULL)
        return;
    try_decisions(check);
    (void)check_trial_start_probe(&trial, check->library, CHECK_PROBE_PLAIN, variables);
    bool has_answer = check_trial_hear(&trial, &answer);
    bool is_recorded = add_place(check, check_trial_words(&trial));
    add_sharing(check, trial.pid, is_recorded);
    (void)check_trial_end(&trial, &status);
    if (has_answer)
        add_driver(check, &answer);
    add_version(check);
}
