/*
 * tmpfs_ranges.c - see tmpfs_ranges.h. Everything here is under sg_tracker_maps_lock.
 */
#include "account/tmpfs_ranges.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/syscall.h"
#include "shared/job.h"
#include "account/ledger.h"
#include "shared/own_entry.h"
#include "shared/registry_file.h"
#include "shared/segment.h"

#include <string.h>
#include <sys/mman.h>

struct sg_lock sg_tracker_maps_lock;
struct sg_range_map sg_tmpfs_mapped;

enum { SHOWN_MAX = SG_FILE_CAPACITY + SG_MORE_FILES_CAPACITY };

/* Room for the ranges that are shown, in ascending order, for the missing bytes of each that a scan has found so far,
 * and for a new list of both. Few programs need more than `few`; then the memory is mapped. */
static struct {
    struct sg_memory_file shown[SG_FILE_CAPACITY], list[SG_FILE_CAPACITY];
    uint64_t found[SG_FILE_CAPACITY], list_found[SG_FILE_CAPACITY];
} few;
static struct many {
    struct sg_memory_file shown[SHOWN_MAX], list[SHOWN_MAX];
    uint64_t found[SHOWN_MAX], list_found[SHOWN_MAX];
} * many; /* NULL: not mapped */
static uint32_t shown_count;

static struct sg_memory_file *shown_ranges(void)
{
    return many != NULL ? many->shown : few.shown;
}

static uint64_t *found_by_scan(void)
{
    return many != NULL ? many->found : few.found;
}

/* Makes room for more ranges than SG_FILE_CAPACITY. False: there is no memory. */
static bool map_many(void)
{
    void *memory =
        sg_sys_mmap(NULL, sizeof *many, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sg_is_error(memory))
        return false;
    struct many *mapped = memory;
    memcpy(mapped->shown, few.shown, sizeof few.shown);
    memcpy(mapped->list, few.list, sizeof few.list);
    memcpy(mapped->found, few.found, sizeof few.found);
    many = mapped;
    return true;
}

static uint64_t bytes_of(const struct sg_memory_file *file)
{
    return (file->end - file->begin) * SG_SHARED_UNIT;
}

/* Adds a range at the end of the new list; if there is no more room, the smallest range is dropped. */
static void add_to_list(uint32_t *count, const struct sg_memory_file *file)
{
    if (many == NULL && *count == SG_FILE_CAPACITY)
        (void)map_many();
    struct sg_memory_file *list = many != NULL ? many->list : few.list;
    uint32_t capacity = many != NULL ? SHOWN_MAX : SG_FILE_CAPACITY, smallest = 0;
    if (*count == capacity) {
        for (uint32_t i = 1; i < capacity; i++)
            smallest = bytes_of(&list[i]) < bytes_of(&list[smallest]) ? i : smallest;
        if (bytes_of(&list[smallest]) >= bytes_of(file))
            return;
        --*count;
        memmove(&list[smallest], &list[smallest + 1], (*count - smallest) * sizeof *list);
    }
    list[(*count)++] = *file;
}

/* Lists the contiguous ranges that are mapped, however often each part is mapped. Returns their number. */
static uint32_t collect(void)
{
    struct sg_range range;
    struct sg_memory_file file = {0, 0, 0};
    uint32_t count = 0;
    for (uint64_t at = 0; sg_range_map_next(&sg_tmpfs_mapped, at, &range); at = range.end) {
        if (range.begin != file.end) {
            if (file.end != 0)
                add_to_list(&count, &file);
            file.begin = range.begin;
        }
        file.end = range.end;
    }
    if (file.end != 0)
        add_to_list(&count, &file);
    return count;
}

/* The part of the missing bytes of a range shown before that is in `file`. If only a part of that range is left, it is
 * unknown in which part its pages are missing, unless all of them are. Unknown bytes are not shown as missing, and
 * their promise counts as this process's own. */
static uint64_t known_missing(const struct sg_memory_file *file, const struct sg_memory_file *before, uint64_t missing)
{
    uint64_t begin = before->begin > file->begin ? before->begin : file->begin;
    uint64_t end = before->end < file->end ? before->end : file->end;
    if (begin >= end)
        return 0;
    if (missing == bytes_of(before))
        return (end - begin) * SG_SHARED_UNIT;
    return begin == before->begin && end == before->end ? missing : 0;
}

static uint64_t shown_bytes(void)
{
    const struct sg_memory_file *shown = shown_ranges();
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

/* The missing bytes shown before that are surely mapped no more. `list`: the ranges that are shown next. */
static uint64_t missing_of_gone(const struct sg_memory_file *list, uint32_t count)
{
    uint64_t gone = 0;
    for (uint32_t i = 0, at = 0; i < shown_count; i++) {
        const struct sg_memory_file *before = &shown_ranges()[i];
        while (at < count && list[at].end <= before->begin)
            at++;
        bool stays = at < count && list[at].begin == before->begin && list[at].end == before->end;
        if (!stays && before->missing_bytes != 0)
            gone += sg_above(before->missing_bytes,
                             sg_range_map_bytes(&sg_tmpfs_mapped, before->begin, before->end, SG_RANGE_COUNTED) *
                                 SG_SHARED_UNIT);
    }
    return gone;
}

/* Updates `shown` to the ranges that are mapped now; sg_entry_end_files publishes them. A scan that is going on keeps
 * what it has found. */
static void renew_ranges(void)
{
    uint32_t count = collect(), from = 0; /* the first range shown before that may reach into the next one */
    struct sg_memory_file *list = many != NULL ? many->list : few.list, *shown = shown_ranges();
    uint64_t *list_found = many != NULL ? many->list_found : few.list_found, *found = found_by_scan();
    for (uint32_t i = 0; i < count; i++) {
        while (from < shown_count && shown[from].end <= list[i].begin)
            from++;
        list[i].missing_bytes = list_found[i] = 0;
        for (uint32_t j = from; j < shown_count && shown[j].begin < list[i].end; j++) {
            list[i].missing_bytes += known_missing(&list[i], &shown[j], shown[j].missing_bytes);
            list_found[i] += known_missing(&list[i], &shown[j], found[j]);
        }
    }
    sg_ledger_withdraw_shared(missing_of_gone(list, count));
    memcpy(shown, list, count * sizeof list[0]);
    memcpy(found, list_found, count * sizeof list_found[0]);
    shown_count = count;
}

/* Publishes the ranges, with those beyond SG_FILE_CAPACITY behind all entries of the registry. Ranges that cannot be
 * written there count as private memory. */
static void end_change(void)
{
    const struct sg_memory_file *shown = shown_ranges();
    uint32_t more = shown_count > SG_FILE_CAPACITY ? shown_count - SG_FILE_CAPACITY : 0;
    if (SG_UNLIKELY(more != 0))
        more = sg_entry_has_names()
                   ? sg_registry_file_write_more(sg_entry_number(sg_entry_own()), &shown[SG_FILE_CAPACITY], more)
                   : 0;
    sg_entry_end_files(shown, shown_count < SG_FILE_CAPACITY ? shown_count : SG_FILE_CAPACITY, more);
}

static void charge(int64_t bytes)
{
    if (bytes > 0)
        sg_ledger_charge(SG_DOMAIN_MAPPED, (uint64_t)bytes);
    else if (bytes < 0)
        sg_ledger_release_own(SG_DOMAIN_MAPPED,
                              (uint64_t)-bytes); /* the change of the map has noted what is inherited */
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
    end_change();
    sg_entry_note_file_change();
    sg_job_note_peak(sg_load(&sg_own->slot.granted_bytes));
}

void sg_tmpfs_show(void)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    sg_entry_begin_files();
    sg_entry_set_file_bytes(shown_bytes());
    end_change();
    if (shown_count != 0)
        sg_entry_note_file_change();
    sg_lock_release(&sg_tracker_maps_lock, &lock);
}

void sg_tmpfs_promise(uint64_t begin, uint64_t end, uint64_t bytes)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    struct sg_memory_file *shown = shown_ranges();
    sg_entry_begin_files();
    for (uint32_t i = 0; i < shown_count; i++) {
        if (shown[i].begin > begin || end > shown[i].end)
            continue;
        uint64_t resident = bytes_of(&shown[i]) - shown[i].missing_bytes; /* a scan may have met the new pages */
        bytes = bytes < resident ? bytes : resident;
        shown[i].missing_bytes += bytes;
    }
    sg_ledger_promise(bytes, false);
    end_change();
    sg_lock_release(&sg_tracker_maps_lock, &lock);
}

void sg_tmpfs_begin_scan(void)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    memset(found_by_scan(), 0, shown_count * sizeof *found_by_scan());
    sg_lock_release(&sg_tracker_maps_lock, &lock);
}

void sg_tmpfs_add_missing(uint64_t begin, uint64_t end, uint64_t bytes)
{
    const struct sg_memory_file *shown = shown_ranges();
    for (uint32_t i = 0; i < shown_count; i++)
        if (shown[i].begin <= begin && end <= shown[i].end)
            found_by_scan()[i] += bytes;
}

/* Of a range that has come since the scan began, only missing bytes that the scan has met are shown: its promise is
 * made after the scan. Without ranges, other processes need not be told of a change. */
void sg_tmpfs_end_scan(const struct sg_ledger_scan *found)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    if (shown_count != 0)
        sg_entry_begin_files();
    sg_ledger_end_scan(found);
    for (uint32_t i = 0; i < shown_count; i++)
        shown_ranges()[i].missing_bytes = found_by_scan()[i];
    if (shown_count != 0)
        end_change();
    sg_lock_release(&sg_tracker_maps_lock, &lock);
}

/* The missing bytes are reset: the parent's promises of a file are in the parent's registry entry, and the child's
 * first scan finds the child's. */
void sg_tmpfs_atfork_child(bool is_map_whole)
{
    for (uint32_t i = 0; i < shown_count; i++)
        shown_ranges()[i].missing_bytes = 0;
    if (is_map_whole)
        return;
    sg_tmpfs_mapped = (struct sg_range_map){0};
    shown_count = 0;
}
