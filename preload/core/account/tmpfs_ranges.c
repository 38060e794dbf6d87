/*
 * tmpfs_ranges.c - see tmpfs_ranges.h. Everything here is under sg_tracker_maps_lock.
 */
#include "account/tmpfs_ranges.h"

#include "base/atomics.h"
#include "shared/job.h"
#include "account/ledger.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

#include <string.h>

struct sg_lock sg_tracker_maps_lock;
struct sg_range_map sg_tmpfs_mapped;

static struct sg_memory_file shown[SG_FILE_CAPACITY];
static uint32_t shown_count;
static uint64_t changes SG_AT_FORK; /* how often the ranges in `shown` have changed */

static struct {
    uint64_t changes;                         /* `changes` when the scan began */
    uint64_t missing_bytes[SG_FILE_CAPACITY]; /* found so far, of each shown range */
} scan;

static uint64_t bytes_of(const struct sg_memory_file *file)
{
    return (file->end - file->begin) * SG_SHARED_UNIT;
}

/* Adds a range to the list; if the list is full, the smallest range is dropped. */
static void add_to_list(struct sg_memory_file *list, uint32_t *count, const struct sg_memory_file *file)
{
    uint32_t at = *count, smallest = 0;
    if (*count == SG_FILE_CAPACITY) {
        for (uint32_t i = 1; i < SG_FILE_CAPACITY; i++)
            smallest = bytes_of(&list[i]) < bytes_of(&list[smallest]) ? i : smallest;
        if (bytes_of(&list[smallest]) >= bytes_of(file))
            return;
        at = smallest;
    } else {
        ++*count;
    }
    list[at] = *file;
}

/* Lists the contiguous ranges that are mapped, however often each part is mapped. Returns their number. */
static uint32_t collect(struct sg_memory_file list[SG_FILE_CAPACITY])
{
    struct sg_range range;
    struct sg_memory_file file = {0, 0, 0};
    uint32_t count = 0;
    for (uint64_t at = 0; sg_range_map_next(&sg_tmpfs_mapped, at, &range); at = range.end) {
        if (range.begin != file.end) {
            if (file.end != 0)
                add_to_list(list, &count, &file);
            file.begin = range.begin;
        }
        file.end = range.end;
    }
    if (file.end != 0)
        add_to_list(list, &count, &file);
    return count;
}

/* The missing bytes of a range, as far as the ranges shown before tell. If only a part of such a range is left, it is
 * unknown in which part its pages are missing, unless all of them are. Unknown bytes are not shown as missing, and
 * their promise counts as this process's own. */
static uint64_t known_missing(const struct sg_memory_file *file)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < shown_count; i++) {
        const struct sg_memory_file *before = &shown[i];
        uint64_t begin = before->begin > file->begin ? before->begin : file->begin;
        uint64_t end = before->end < file->end ? before->end : file->end;
        if (begin >= end)
            continue;
        if (before->missing_bytes == bytes_of(before))
            bytes += (end - begin) * SG_SHARED_UNIT;
        else if (begin == before->begin && end == before->end)
            bytes += before->missing_bytes;
    }
    return bytes;
}

static uint64_t shown_bytes(void)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < shown_count; i++)
        bytes += bytes_of(&shown[i]);
    return bytes;
}

static void set_own(uint64_t bytes)
{
    sg_store(&sg_own->shared_bytes, bytes);
    if (sg_own->inherited_shared_bytes > bytes)
        sg_store(&sg_own->inherited_shared_bytes, bytes);
}

/* Updates `shown` to the ranges that are mapped now; sg_entry_end_files publishes them. */
static void renew_ranges(void)
{
    static struct sg_memory_file list[SG_FILE_CAPACITY];
    uint32_t count = collect(list);
    for (uint32_t i = 0; i < count; i++)
        list[i].missing_bytes = known_missing(&list[i]);
    memcpy(shown, list, count * sizeof list[0]);
    shown_count = count;
    changes++;
}

static void charge(int64_t bytes)
{
    if (bytes > 0)
        sg_ledger_charge(SG_DOMAIN_MAPPED, (uint64_t)bytes);
    else if (bytes < 0)
        sg_ledger_release(SG_DOMAIN_MAPPED, (uint64_t)-bytes);
}

/*
 * Between sg_entry_begin_files and sg_entry_end_files, other processes know that ranges and sums may not match, however
 * long this thread is interrupted there. They subtract file_bytes from the granted bytes to get the private bytes. In
 * between, that result is too low and never too high; at the end file_bytes is summed up anew. shared_bytes, which
 * bounds the inherited bytes, is too low in between.
 */
void sg_tmpfs_show_changes(int64_t charge_bytes)
{
    sg_tmpfs_mapped.is_changed = false;
    uint64_t before = shown_bytes();
    sg_entry_begin_files();
    renew_ranges();
    uint64_t after = shown_bytes();
    if (after < before)
        set_own(after);
    else
        sg_entry_set_file_bytes(after);
    charge(charge_bytes);
    if (after >= before)
        set_own(after);
    else
        sg_entry_set_file_bytes(after);
    sg_entry_end_files(shown, shown_count);
    sg_entry_note_file_change();
    sg_job_note_peak(sg_load(&sg_own->slot.granted_bytes));
}

void sg_tmpfs_show(void)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    sg_entry_begin_files();
    sg_entry_set_file_bytes(shown_bytes());
    sg_entry_end_files(shown, shown_count);
    if (shown_count != 0)
        sg_entry_note_file_change();
    sg_lock_release(&sg_tracker_maps_lock, &lock);
}

void sg_tmpfs_promise(uint64_t begin, uint64_t end, uint64_t bytes)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    sg_entry_begin_files();
    sg_ledger_promise(bytes);
    for (uint32_t i = 0; i < shown_count; i++) {
        uint64_t resident = bytes_of(&shown[i]) - shown[i].missing_bytes;
        if (shown[i].begin <= begin && end <= shown[i].end)
            shown[i].missing_bytes += bytes < resident ? bytes : resident;
    }
    sg_entry_end_files(shown, shown_count);
    sg_lock_release(&sg_tracker_maps_lock, &lock);
}

void sg_tmpfs_begin_scan(void)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    scan.changes = changes;
    memset(scan.missing_bytes, 0, sizeof scan.missing_bytes);
    sg_lock_release(&sg_tracker_maps_lock, &lock);
}

void sg_tmpfs_add_missing(uint64_t begin, uint64_t end, uint64_t bytes)
{
    for (uint32_t i = 0; i < shown_count && scan.changes == changes; i++)
        if (shown[i].begin <= begin && end <= shown[i].end)
            scan.missing_bytes[i] += bytes;
}

/* If the ranges have changed since the scan began, no missing bytes are shown: the promises count as this process's own
 * until the next scan. Without ranges, other processes need not be told of a change. */
void sg_tmpfs_end_scan(uint64_t promised_bytes, uint64_t sparse_bytes)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    if (shown_count != 0)
        sg_entry_begin_files();
    sg_ledger_end_scan(promised_bytes, sparse_bytes);
    for (uint32_t i = 0; i < shown_count; i++)
        shown[i].missing_bytes = scan.changes == changes ? scan.missing_bytes[i] : 0;
    if (shown_count != 0)
        sg_entry_end_files(shown, shown_count);
    sg_lock_release(&sg_tracker_maps_lock, &lock);
}

/* The missing bytes are reset: the parent's promises of a file are in the parent's registry entry, and the child's
 * first scan finds the child's. */
void sg_tmpfs_atfork_child(bool is_map_whole)
{
    for (uint32_t i = 0; i < shown_count; i++)
        shown[i].missing_bytes = 0;
    changes++;
    if (is_map_whole)
        return;
    sg_tmpfs_mapped = (struct sg_range_map){0};
    shown_count = 0;
}
