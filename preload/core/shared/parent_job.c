/*
 * parent_job.c - see parent_job.h.
 */
#include "shared/parent_job.h"

#include "base/compiler.h"
#include "base/directory.h"
#include "base/options.h"
#include "base/procfs.h"
#include "base/syscall.h"
#include "base/text.h"
#include "sparkguard_abi.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct search {
    uint32_t parent;
    char prefix[16]; /* "PID-", with which the names of the parent's records begin */
    char job[SG_JOB_BYTES];
    uint64_t run;
    bool is_found;
};

/* Whether the file is a segment of the parent, and not of an earlier process with its PID. */
static bool is_of_parent(int fd, const struct search *search)
{
    struct stat info = {0};
    struct sg_slot slot = {0};
    return sg_sys_fstat(fd, &info) == 0 &&
           (info.st_uid == 0 || info.st_uid == (uint32_t)sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0)) &&
           sg_sys_pread(fd, &slot, sizeof slot, 0) == sizeof slot && slot.magic == SG_ABI_MAGIC &&
           slot.abi_version == SG_ABI_VERSION && slot.state == SG_STATE_RUNNING && slot.pid == search->parent &&
           slot.start_ticks != 0 && slot.start_ticks == sg_procfs_start_ticks(search->parent);
}

static bool take_record(int directory, const char *name, void *context)
{
    struct search *search = context;
    const size_t prefix = strlen(search->prefix);
    if (strncmp(name, search->prefix, prefix) != 0 || strlen(name) != prefix + 16 + strlen(SG_SEGMENT_SUFFIX) ||
        strcmp(name + prefix + 16, SG_SEGMENT_SUFFIX) != 0)
        return true;
    long fd = sg_sys_openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0)
        return true;
    search->is_found = is_of_parent((int)fd, search) &&
                       sg_sys_pread((int)fd, search->job, sizeof search->job, offsetof(struct sg_segment, job)) ==
                           sizeof search->job &&
                       sg_sys_pread((int)fd, &search->run, sizeof search->run, offsetof(struct sg_segment, run)) ==
                           sizeof search->run &&
                       memchr(search->job, '\0', sizeof search->job) != NULL && search->job[0] != '\0' &&
                       sg_is_valid(SG_OPTION_JOB, search->job);
    (void)sg_sys_close((int)fd);
    return !search->is_found;
}

void (*sg_parent_job_tell)(void) SG_AT_START;

void sg_parent_job_adopt(void)
{
    const uint64_t pids = UINT64_C(1) << 22; /* SG_RUN */
    static char names[2048]; /* too large for the stack of a signal handler; segment.c's lock protects it */
    struct stat info = {0};
    struct search search = {.parent = (uint32_t)sg_syscall(SYS_getppid, 0, 0, 0, 0, 0, 0)};
    if (sg_options.named_by != sg_sys_getpid() || search.parent <= 1)
        return;
    int fd = sg_directory_open(sg_options.dir, &info);
    if (fd < 0)
        return;
    struct sg_text prefix = sg_text_begin(search.prefix, sizeof search.prefix);
    sg_text_add_number(&prefix, search.parent);
    sg_text_add(&prefix, "-");
    sg_directory_visit(fd, names, sizeof names, take_record, &search);
    (void)sg_sys_close(fd);
    if (!search.is_found)
        return;
    memcpy(sg_options.job, search.job, sizeof sg_options.job);
    sg_options.first_pid = search.run != 0 ? (uint32_t)(search.run % pids) : search.parent;
    if (sg_parent_job_tell != NULL)
        sg_parent_job_tell();
}
