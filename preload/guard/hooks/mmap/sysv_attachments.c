/*
 * sysv_attachments.c - see sysv_attachments.h.
 */
#include "hooks/mmap/sysv_attachments.h"

#include "account/ledger.h"
#include "base/syscall.h"

#include <string.h>
#include <sys/mman.h>

static struct sg_sysv_attached *pieces; /* in no order */
static uint32_t piece_count, piece_capacity;

static bool grow(void)
{
    uint32_t capacity = piece_capacity != 0 ? 2 * piece_capacity : 128;
    struct sg_sysv_attached *list =
        sg_sys_mmap(NULL, capacity * sizeof *list, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sg_is_error(list))
        return false;
    struct sg_sysv_attached *old = pieces;
    if (old != NULL)
        memcpy(list, old, piece_capacity * sizeof *list);
    pieces = list;
    if (old != NULL)
        (void)sg_sys_munmap(old, piece_capacity * sizeof *list);
    piece_capacity = capacity;
    return true;
}

static bool add(const struct sg_sysv_attached *piece)
{
    struct sg_sysv_attached copy = *piece; /* `piece` may point into the list, which grow() replaces */
    if (copy.begin >= copy.end)
        return true;
    if (piece_count == piece_capacity && !grow())
        return false;
    pieces[piece_count++] = copy;
    return true;
}

/* Returns the part of a piece that lies in [begin, end). */
static struct sg_sysv_attached part_of(const struct sg_sysv_attached *piece, uintptr_t begin, uintptr_t end)
{
    struct sg_sysv_attached part = *piece;
    part.begin = part.begin > begin ? part.begin : begin;
    part.end = part.end < end ? part.end : end;
    return part;
}

bool sg_sysv_attached_add(uintptr_t begin, uintptr_t end)
{
    static uint64_t last_number;
    return add(&(struct sg_sysv_attached){begin, end, begin, ++last_number});
}

void sg_sysv_attached_cut(uintptr_t begin, uintptr_t end)
{
    for (uint32_t i = piece_count; i-- > 0;) {
        struct sg_sysv_attached piece = pieces[i];
        if (piece.begin >= end || piece.end <= begin)
            continue;
        struct sg_sysv_attached below = part_of(&piece, 0, begin), above = part_of(&piece, end, UINTPTR_MAX);
        pieces[i] = pieces[--piece_count];
        if (!add(&below) || !add(&above)) /* stays counted until unmapped in another way */
            sg_ledger_count_fault();
    }
}

void sg_sysv_attached_move(uintptr_t from, uintptr_t to, uint64_t bytes, bool is_copy)
{
    uintptr_t by = to - from;
    if (piece_count == 0 || by == 0)
        return;
    sg_sysv_attached_cut(to, to + bytes);
    for (uint32_t i = 0, count = piece_count; i < count; i++) {
        struct sg_sysv_attached moved = part_of(&pieces[i], from, from + bytes);
        if (moved.begin >= moved.end)
            continue;
        moved.begin += by;
        moved.end += by;
        moved.base += by;
        if (!add(&moved))
            sg_ledger_count_fault();
    }
    if (!is_copy)
        sg_sysv_attached_cut(from, from + bytes);
}

void sg_sysv_attached_grow(uintptr_t begin, uintptr_t end)
{
    if (begin >= end)
        return;
    sg_sysv_attached_cut(begin, end);
    for (uint32_t i = 0; i < piece_count; i++)
        if (pieces[i].end == begin)
            pieces[i].end = end;
}

bool sg_sysv_attached_take(uintptr_t base, uint64_t *number, struct sg_sysv_attached *out)
{
    uint32_t lowest = piece_count;
    for (uint32_t i = 0; i < piece_count; i++)
        if (pieces[i].base == base && (*number == 0 || pieces[i].number == *number) &&
            (lowest == piece_count || pieces[i].begin < pieces[lowest].begin))
            lowest = i;
    if (lowest == piece_count)
        return false;
    *out = pieces[lowest];
    *number = out->number;
    pieces[lowest] = pieces[--piece_count];
    return true;
}

void sg_sysv_attached_forget(void)
{
    pieces = NULL;
    piece_count = piece_capacity = 0;
}
