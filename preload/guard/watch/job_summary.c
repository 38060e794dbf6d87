/*
 * job_summary.c - see job_summary.h.
 *
 * Other processes of the run have left their segments in SPARKGUARD_DIR. Those files are read, never mapped, and only
 * numbers are taken from them. So a hostile segment can make the summary wrong, but do no other harm.
 */
#include "watch/job_summary.h"

#include "base/pages.h"
#include "base/atomics.h"
#include "base/directory.h"
#include "base/log.h"
#include "base/options.h"
#include "base/procfs.h"
#include "shared/segment.h"
#include "base/syscall.h"
#include "base/text.h"

#include <fcntl.h>
#include <string.h>

/* The sums over the records of a run. */
struct sums {
    uint64_t run;
    uint64_t peak_bytes;       /* the largest sum over all processes at one time that one of them saw */
    uint64_t limit_peak_bytes; /* the same, with resident MAP_NORESERVE memory */
    uint64_t limit_bytes;
    uint64_t refused_count;
    uint64_t process_count;
    uint64_t largest_bytes; /* the highest peak of one process */
    uint32_t largest_pid;
};

static void add_limit(struct sums *sums, uint64_t limit_bytes)
{
    if (limit_bytes != 0 && (sums->limit_bytes == 0 || limit_bytes < sums->limit_bytes))
        sums->limit_bytes = limit_bytes;
}

static void add_own(struct sums *sums)
{
    uint64_t peak_bytes = sg_own->peak[sg_load(&sg_own->peak_index) % 2].total_bytes;
    *sums = (struct sums){.run = SG_RUN(sg_sys_getpid(), sg_procfs_start_ticks(0)),
                          .peak_bytes = sg_larger(peak_bytes, sg_load(&sg_own->job_peak_bytes)),
                          .limit_peak_bytes = sg_load(&sg_own->limit_peak_bytes),
                          .process_count = 1,
                          .largest_bytes = peak_bytes,
                          .largest_pid = sg_sys_getpid()};
    add_limit(sums, sg_own->slot.limit_bytes);
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++)
        sums->refused_count += sg_load(&sg_own->domain[i].refused_count);
}

static bool read_at(long fd, void *value, size_t bytes, size_t offset)
{
    return sg_sys_pread((int)fd, value, bytes, offset) == (long)bytes;
}

static void add_record(struct sums *sums, long fd)
{
    struct sg_slot slot = {0};
    struct sg_domain_counters domain[SG_DOMAIN_CAPACITY];
    uint64_t run = 0, peak_bytes = 0, job_peak_bytes = 0, limit_peak_bytes = 0;
    if (!read_at(fd, &slot, sizeof slot, 0) || slot.magic != SG_ABI_MAGIC || slot.abi_version != SG_ABI_VERSION ||
        !read_at(fd, &run, sizeof run, offsetof(struct sg_segment, run)) || run != sums->run ||
        !read_at(fd, &peak_bytes, sizeof peak_bytes, offsetof(struct sg_segment, peak_seen_bytes)) ||
        !read_at(fd, &job_peak_bytes, sizeof job_peak_bytes, offsetof(struct sg_segment, job_peak_bytes)) ||
        !read_at(fd, &limit_peak_bytes, sizeof limit_peak_bytes, offsetof(struct sg_segment, limit_peak_bytes)) ||
        !read_at(fd, domain, sizeof domain, offsetof(struct sg_segment, domain)))
        return;
    sums->process_count++;
    sums->peak_bytes = sg_larger(sums->peak_bytes, sg_larger(peak_bytes, job_peak_bytes));
    sums->limit_peak_bytes = sg_larger(sums->limit_peak_bytes, limit_peak_bytes);
    add_limit(sums, slot.limit_bytes);
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++)
        sums->refused_count += domain[i].refused_count;
    if (peak_bytes > sums->largest_bytes) {
        sums->largest_bytes = peak_bytes;
        sums->largest_pid = slot.pid;
    }
}

static bool add_file(int directory, const char *name, void *context)
{
    struct sums *sums = context;
    const size_t length = strlen(name), suffix = sizeof SG_SEGMENT_SUFFIX - 1;
    bool is_own = sg_segment_is_shared() && strcmp(name, sg_segment_file_name()) == 0;
    if (is_own || length <= suffix || strcmp(name + length - suffix, SG_SEGMENT_SUFFIX) != 0)
        return true;
    struct stat info = {0};
    long fd = sg_sys_openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return true;
    if (sg_sys_fstat((int)fd, &info) == 0 && S_ISREG(info.st_mode))
        add_record(sums, fd);
    (void)sg_sys_close((int)fd);
    return true;
}

static void add_others(struct sums *sums)
{
    char buffer[2048] = "";
    struct stat info = {0};
    int directory = sg_directory_open(sg_options.dir, &info);
    if (directory < 0)
        return;
    sg_directory_visit(directory, buffer, sizeof buffer, add_file, sums);
    (void)sg_sys_close(directory);
}

/* Adds this process's peak by domain: " (heap 1.0 GiB, device 2.0 GiB)". */
static void add_parts(struct sg_text *text)
{
    static const char *const names[] = {
#define SG_DOMAIN(ID, name, help) #name,
#include "domains.def"
#undef SG_DOMAIN
    };
    const struct sg_peak *peak = &sg_own->peak[sg_load(&sg_own->peak_index) % 2];
    const char *before = " (";
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++) {
        if (peak->domain_bytes[i] == 0)
            continue;
        sg_text_add(text, before);
        sg_text_add(text, names[i]);
        sg_text_add(text, " ");
        sg_text_add_size(text, peak->domain_bytes[i]);
        before = ", ";
    }
    sg_text_add(text, before[0] == ',' ? ")" : "");
}

/* Adds "3.0 GiB of the 4.0 GiB limit". */
static void add_peak(struct sg_text *text, const struct sums *sums)
{
    bool has_more = sums->limit_bytes != 0 && sums->limit_peak_bytes > sums->peak_bytes;
    sg_text_add_size(text, has_more ? sums->limit_peak_bytes : sums->peak_bytes);
    if (sums->limit_bytes == 0)
        return;
    sg_text_add(text, " of the ");
    sg_text_add_size(text, sums->limit_bytes);
    sg_text_add(text, " limit");
    if (has_more) {
        sg_text_add(text, ", MAP_NORESERVE mappings included; without them ");
        sg_text_add_size(text, sums->peak_bytes);
    }
}

void sg_job_summary_print(void)
{
    char line[512];
    struct sums sums;
    struct sg_text text = sg_text_begin(line, sizeof line);
    add_own(&sums);
    add_others(&sums);
    bool is_alone = sums.process_count == 1;
    sg_text_add(&text, "sparkguard: job ");
    sg_text_add(&text, sg_options.job);
    sg_text_add(&text, is_alone ? ", process " : ", ");
    sg_text_add_number(&text, is_alone ? sums.largest_pid : sums.process_count);
    sg_text_add(&text, is_alone ? ": peak " : " processes: peak ");
    add_peak(&text, &sums);
    if (is_alone) {
        add_parts(&text);
    } else {
        sg_text_add(&text, "; the largest, process ");
        sg_text_add_number(&text, sums.largest_pid);
        sg_text_add(&text, ": ");
        sg_text_add_size(&text, sums.largest_bytes);
    }
    sg_text_add(&text, ", ");
    sg_text_add_number(&text, sums.refused_count);
    sg_text_add(&text, sums.refused_count == 1 ? " request refused" : " requests refused");
    sg_log_line(line);
}
