/*
 * files.c - see files.h. Numbers are given under sg_index_maps_lock; those that no range carries any more are found when
 * there is none left to give.
 */
#include "files.h"

#include "index.h"

#include <string.h>

enum { NUMBER_SHIFT = 8, WINDOWS = 255 }; /* eight bits of a range's flags */

/* Number n is window[n]; 0 is nobody's. */
static struct {
    uint64_t identity; /* of the file and the part, 0: free */
    uint64_t bytes;
    uint32_t entering; /* mappings under way that no range shows yet */
    bool is_carried;   /* while unused numbers are looked for */
    uint64_t missing_bytes;
} window[WINDOWS + 1];

static bool has_any; /* numbers were given */

bool sg_files_has_any(void)
{
    return has_any;
}

uint32_t sg_files_flags(uint32_t number)
{
    return number << NUMBER_SHIFT;
}

uint32_t sg_files_number(uint32_t flags)
{
    return flags >> NUMBER_SHIFT & WINDOWS;
}

/* Under the maps' lock. */
static uint32_t find(uint64_t identity)
{
    for (uint32_t number = 1; number <= WINDOWS; number++)
        if (window[number].identity == identity)
            return number;
    return 0;
}

/* Under the maps' lock. */
static void let_go_of_unused(void)
{
    struct sg_range range;
    for (uint32_t number = 1; number <= WINDOWS; number++)
        window[number].is_carried = window[number].entering != 0;
    for (uintptr_t at = 0; sg_ranges_next(&sg_index_maps, at, &range); at = range.end)
        window[sg_files_number(range.flags)].is_carried = true;
    for (uint32_t number = 1; number <= WINDOWS; number++)
        if (!window[number].is_carried)
            window[number].identity = 0;
}

uint32_t sg_files_enter(const struct sg_map_shape *shape)
{
    struct sg_lock_state lock;
    if (shape->window_identity == 0)
        return 0;
    sg_lock_acquire(&sg_index_maps_lock, &lock);
    uint32_t number = find(shape->window_identity);
    if (number == 0 && (number = find(0)) == 0) {
        let_go_of_unused();
        number = find(0);
    }
    if (number != 0) {
        has_any = true;
        window[number].identity = shape->window_identity;
        window[number].bytes = shape->bytes;
        window[number].entering++;
    }
    sg_lock_release(&sg_index_maps_lock, &lock);
    return number;
}

void sg_files_entered(uint32_t number)
{
    struct sg_lock_state lock;
    if (number == 0)
        return;
    sg_lock_acquire(&sg_index_maps_lock, &lock);
    window[number].entering--;
    sg_lock_release(&sg_index_maps_lock, &lock);
}

void sg_files_begin_scan(void)
{
    for (uint32_t number = 1; number <= WINDOWS; number++)
        window[number].missing_bytes = 0;
}

void sg_files_add_missing(uint32_t number, uint64_t bytes)
{
    window[number].missing_bytes += bytes;
}

/* A window that is mapped twice lacks each page once. */
static uint64_t promise_of(uint32_t number)
{
    uint64_t missing = window[number].missing_bytes, most = window[number].bytes;
    return missing < most ? missing : most;
}

uint64_t sg_files_promised_bytes(void)
{
    uint64_t sum = 0;
    for (uint32_t number = 1; number <= WINDOWS; number++)
        sum += promise_of(number);
    return sum;
}

uint32_t sg_files_list(struct sg_memory_file file[SG_FILE_ROOM])
{
    uint32_t count = 0;
    for (uint32_t number = 1; number <= WINDOWS; number++) {
        const struct sg_memory_file next = {window[number].identity, promise_of(number)};
        if (next.bytes < SG_PROMISE_BYTES)
            continue;
        uint32_t at = count < SG_FILE_ROOM ? count++ : SG_FILE_ROOM;
        for (; at > 0 && file[at - 1].bytes < next.bytes; at--)
            if (at < SG_FILE_ROOM)
                file[at] = file[at - 1];
        if (at < SG_FILE_ROOM)
            file[at] = next;
    }
    return count;
}
