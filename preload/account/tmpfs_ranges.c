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
static uint64_t changes; /* how often `shown` has changed its ranges */

static struct {
    uint64_t changes;                         /* when it began */
    uint64_t missing_bytes[SG_FILE_CAPACITY]; /* of each shown range */
} scan;

static uint64_t bytes_of(const struct sg_memory_file *file)
{
    return (file->end - file->begin) * SG_SHARED_UNIT;
}

/* Takes a range into the list, or leaves out the smallest. */
static void take(struct sg_memory_file *list, uint32_t *count, const struct sg_memory_file *file)
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

/* The contiguous ranges that are mapped, however often each part is. */
static uint32_t collect(struct sg_memory_file list[SG_FILE_CAPACITY])
{
    struct sg_range range;
    struct sg_memory_file file = {0, 0, 0};
    uint32_t count = 0;
    for (uint64_t at = 0; sg_range_map_next(&sg_tmpfs_mapped, at, &range); at = range.end) {
        if (range.begin != file.end) {
            if (file.end != 0)
                take(list, &count, &file);
            file.begin = range.begin;
        }
        file.end = range.end;
    }
    if (file.end != 0)
        take(list, &count, &file);
    return count;
}

/* The missing bytes of a range, as far as the ranges that were shown before tell. Where one of them was cut, nobody
 * knows in which part its pages are missing, unless all of them are: then none are shown as missing, and the promise
 * counts as this process's own. */
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

/* Finds the ranges that are mapped now; sg_entry_end_files shows them. */
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
 * Between begin and end, others know that ranges and sums may not belong together, however long this thread is
 * interrupted there. They take file_bytes off what is granted, to know what is private: in between, that is too little
 * and never too much, and at the end it is added up anew. shared_bytes, by which inherited memory is bounded, is too
 * little in between.
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
        uint64_t most = bytes_of(&shown[i]) - shown[i].missing_bytes;
        if (shown[i].begin <= begin && end <= shown[i].end)
            shown[i].missing_bytes += bytes < most ? bytes : most;
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

/* Where the ranges have changed meanwhile, nothing is known to be missing of any: the promises then count as this
 * process's own. */
void sg_tmpfs_end_scan(uint64_t promised_bytes, uint64_t sparse_bytes)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    sg_entry_begin_files();
    sg_ledger_end_scan(promised_bytes, sparse_bytes);
    for (uint32_t i = 0; i < shown_count; i++)
        shown[i].missing_bytes = scan.changes == changes ? scan.missing_bytes[i] : 0;
    sg_entry_end_files(shown, shown_count);
    sg_lock_release(&sg_tracker_maps_lock, &lock);
}

/* The parent's promises of a file are read from its registry entry: the child's promises are found by its first
 * scan. */
void sg_tmpfs_refork(bool is_map_whole)
{
    for (uint32_t i = 0; i < shown_count; i++)
        shown[i].missing_bytes = 0;
    changes++;
    if (is_map_whole)
        return;
    sg_tmpfs_mapped = (struct sg_range_map){0};
    shown_count = 0;
}
