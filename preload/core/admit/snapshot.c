/*
 * snapshot.c - see snapshot.h: /proc/meminfo, or sysinfo(2) where it cannot be read (chroot). A program
 * without a free descriptor has it read by a thread with a table of its own: sysinfo does not know the page cache.
 */
#include "admit/snapshot.h"

#include "admit/bounds.h"
#include "admit/reclaim/raw_thread.h"
#include "base/atomics.h"
#include "base/compiler.h"
#include "base/options.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/text.h"
#include "base/procfs.h"
#include "shared/own_entry.h"
#include "shared/settings.h"

#include <errno.h>
#include <string.h>
#include <sys/sysinfo.h>

#define MIB (UINT64_C(1) << 20)

static char scratch[SG_SNAPSHOT_FILE_BYTES];

static char full[SG_PATH_CAPACITY + SG_PATH_MAX + 64]; /* of the file that is read: too large for a small stack */

static long read_scratch(const char *path)
{
    struct sg_text text = sg_text_begin(full, sizeof full);
    sg_text_add(&text, sg_options.system_root);
    sg_text_add(&text, path);
    return sg_text_read_file(full, scratch, sizeof scratch);
}

const char *sg_snapshot_read(const char *path)
{
    return read_scratch(path) > 0 ? scratch : NULL;
}

/* A thread with a table of descriptors of its own. */
static struct sg_raw_thread reader;
static uint32_t reader_pid; /* whose thread it is: a forked child has none */
static long read_apart_result;

static void read_apart(void *unused)
{
    (void)unused;
    long result = sg_syscall(SYS_close_range, 0, UINT32_MAX, 2 /* CLOSE_RANGE_UNSHARE, Linux 5.9 */, 0, 0, 0);
    sg_store(&read_apart_result, result == 0 ? sg_text_read_file(full, scratch, sizeof scratch) : result);
}

/* Reads a file in a program that has no free descriptor. NULL also where no thread can be made, or it takes a second.
 * Such a thread may still write to the buffer, which is then not read again until it has ended. */
static const char *read_without_descriptor(const char *path)
{
    if (reader_pid != sg_sys_getpid())
        sg_raw_thread_atfork_child(&reader);
    reader_pid = sg_sys_getpid();
    if (sg_load(&reader.is_running) != 0 || read_scratch(path) != -EMFILE)
        return NULL;
    sg_store(&read_apart_result, 0);
    if (!sg_raw_thread_begin(&reader, read_apart, NULL))
        return NULL;
    (void)sg_raw_thread_wait(&reader, 1000);
    return sg_load(&reader.is_running) == 0 && sg_load(&read_apart_result) > 0 ? scratch : NULL;
}

/* Sets reserve and floor by these sizes; one that is not set is the default. */
static void set_lines(struct sg_constraint *constraint, bool is_machine, struct sg_size reserve, struct sg_size floor)
{
    uint64_t limit = constraint->limit_bytes, bytes;
    if (!reserve.is_set) {
        bytes = sg_size_of((struct sg_size){.percent_milli = 8000}, limit);
        if (is_machine && bytes < 512 * MIB)
            bytes = limit / 4 < 512 * MIB ? limit / 4 : 512 * MIB;
    } else {
        bytes = sg_size_of(reserve, limit);
        if (!is_machine && reserve.percent_milli == 0 && bytes > limit / 4)
            bytes = limit / 4;
    }
    constraint->reserve_bytes = bytes;
    constraint->floor_bytes = floor.is_set ? sg_size_of(floor, limit) : bytes / 4;
}

void sg_snapshot_set_reserve(struct sg_constraint *constraint, bool is_machine)
{
    uint64_t set = sg_load(&sg_settings.reserve_bytes);
    struct sg_size reserve = set != 0 ? (struct sg_size){.bytes = set, .is_set = true} : sg_options.reserve;
    set_lines(constraint, is_machine, reserve, sg_options.floor);
    if (is_machine)
        constraint->reserve_bytes =
            sg_bounds_reserve(constraint->reserve_bytes, &constraint->floor_bytes, constraint->limit_bytes);
    if (constraint->floor_bytes > constraint->reserve_bytes)
        constraint->floor_bytes = constraint->reserve_bytes;
}

/* The size, or none if it leaves nothing of the constraint. */
static struct sg_size possible(struct sg_size size, uint64_t limit_bytes)
{
    return sg_size_of(size, limit_bytes) < limit_bytes ? size : (struct sg_size){.is_set = false};
}

void sg_snapshot_set_danger_lines(struct sg_constraint *constraint, bool is_machine)
{
    uint64_t limit = constraint->limit_bytes;
    set_lines(constraint, is_machine, possible(sg_options.reserve, limit), possible(sg_options.floor, limit));
    if (constraint->floor_bytes > constraint->reserve_bytes)
        constraint->floor_bytes = constraint->reserve_bytes;
}

uint64_t sg_snapshot_unexplained(const char *text, const char *total, const char *const *explained, size_t count)
{
    uint64_t left = sg_text_read_field(text, total, 0);
    for (size_t i = 0; i < count; i++) {
        uint64_t part = sg_text_read_field(text, explained[i], 0);
        left -= part < left ? part : left;
    }
    return left;
}

/* Pages that drivers allocate are in no counter; CUDA memory on unified memory is such pages. */
uint64_t sg_snapshot_unexplained_kib(const char *meminfo)
{
    static const char *const explained[] = {
        "MemFree:",    "Buffers:",       "Cached:", "AnonPages:", "Slab:",   "KernelStack:",
        "PageTables:", "SecPageTables:", "Percpu:", "Zswap:",     "Hugetlb:"};
    return sg_snapshot_unexplained(meminfo, "MemTotal:", explained, SG_ARRAY_LENGTH(explained));
}

static bool read_meminfo(struct sg_snapshot *snapshot)
{
    const char *text = sg_snapshot_read("/proc/meminfo");
    if (text == NULL)
        text = read_without_descriptor("/proc/meminfo");
    if (text == NULL)
        return false;
    uint64_t ordinary = sg_procfs_ordinary_kib(text);
    uint64_t available = sg_text_read_field(text, "MemAvailable:", SG_UNKNOWN);
    if (ordinary == 0 || available == SG_UNKNOWN)
        return false;
    available = available < ordinary ? available : ordinary;
    uint64_t cma_free = sg_text_read_field(text, "CmaFree:", 0);
    snapshot->total_bytes = sg_text_read_field(text, "MemTotal:", 0) * 1024;
    snapshot->at[0].limit_bytes = ordinary * 1024;
    snapshot->at[0].headroom_bytes = available * 1024;
    snapshot->cma_free_bytes = (cma_free < available ? cma_free : available) * 1024;
    snapshot->free_bytes = sg_text_read_field(text, "MemFree:", 0) * 1024;
    snapshot->swap_free_bytes = sg_text_read_field(text, "SwapFree:", 0) * 1024;
    sg_procfs_note_swap(sg_text_read_field(text, "SwapTotal:", SG_UNKNOWN) != sg_text_read_field(text, "SwapFree:", 0));
    snapshot->unexplained_bytes = snapshot->has_cuda ? sg_snapshot_unexplained_kib(text) * 1024 : 0;
    snapshot->shared_bytes = sg_text_read_field(text, "Shmem:", 0) * 1024;
    return true;
}

static bool read_sysinfo(struct sg_snapshot *snapshot)
{
    struct sysinfo info = {0};
    if (sg_syscall(SYS_sysinfo, (long)&info, 0, 0, 0, 0, 0) != 0)
        return false;
    snapshot->at[0].limit_bytes = snapshot->total_bytes = (uint64_t)info.totalram * info.mem_unit;
    snapshot->at[0].headroom_bytes = ((uint64_t)info.freeram + info.bufferram) * info.mem_unit;
    snapshot->cma_free_bytes = 0;
    snapshot->free_bytes = (uint64_t)info.freeram * info.mem_unit;
    snapshot->swap_free_bytes = (uint64_t)info.freeswap * info.mem_unit;
    snapshot->unexplained_bytes = snapshot->shared_bytes = 0;
    return true;
}

void sg_snapshot_refresh(struct sg_snapshot *snapshot)
{
    snapshot->is_whole = read_meminfo(snapshot);
    snapshot->is_valid = snapshot->is_whole || read_sysinfo(snapshot);
    snapshot->count = 1;
    snapshot->at[0].touched_bytes = 0;
    snapshot->time_ns = sg_clock_ns(CLOCK_MONOTONIC);
    if (!snapshot->is_valid)
        return;
    sg_snapshot_set_reserve(&snapshot->at[0], true);
}
