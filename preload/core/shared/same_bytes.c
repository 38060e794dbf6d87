/*
 * same_bytes.c - see same_bytes.h.
 *
 * Held bytes: the union of all ranges, exactly. Missing bytes (promised and not resident): an upper bound. Ranges are
 * taken in descending order of their missing bytes. Each adds its missing bytes, but at most the bytes that no earlier
 * range covers. Equal ranges therefore count once.
 */
#include "shared/same_bytes.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/lock.h"
#include "base/pages.h"
#include "base/range_map.h"
#include "shared/own_entry.h"
#include "shared/registry_file.h"
#include "shared/segment.h"
#include "base/syscall.h"

#include <string.h>
#include <sys/mman.h>

struct row {
    uint64_t begin, end; /* units of shared memory */
    uint64_t missing_bytes;
    uint64_t job;      /* of the owner */
    uint32_t groups;   /* bit n: the owner belongs to group n (SG_SAME_...) */
    uint32_t is_other; /* 1: the range is another process's */
};

/* Ranges beyond the most count for each process. A member of a group may write as many as there is room for, and change
 * them all the time: 32,768 new ones take 20 ms to add up. */
enum { ROWS_MAX = SG_ENTRY_CAPACITY * SG_FILE_CAPACITY / 2, ROWS_FIRST = 8 * SG_FILE_CAPACITY };

/* The state of a registry entry when it was gathered. Its ranges have not changed while claim, version, groups and
 * has_rows are the same. */
struct note {
    uint64_t claim, version;
    uint64_t missing_bytes, held_bytes;
    uint32_t groups;
    uint32_t has_rows;
};

/* The bytes that children of one process have from it by fork. */
struct origin {
    uint64_t claim, bytes, job;
    uint32_t entry;
};

enum { ORIGINS_MAX = 256 };

/* `refresh` belongs to refreshes of the snapshot, under the decision lock. `peak` belongs to the job's peak, which any
 * thread may raise, under peak_lock. */
static struct gathering {
    struct note notes[SG_ENTRY_CAPACITY], own_note;
    uint64_t changes; /* how often the rows were gathered */
    uint32_t noted;   /* notes that were written, from the first on */
    struct row *rows; /* in descending order of missing_bytes */
    uint32_t row_count, row_capacity;
    uint64_t promised[SG_SAME_COUNT], held_by_job;
    struct sg_range_map covered;        /* scratch */
    struct origin origins[ORIGINS_MAX]; /* scratch */
    uint32_t origin_count;              /* of sg_same_bytes_note_heir */
} refresh, peak;
static uint32_t has_gathered SG_AT_FORK; /* (atomic) one of the two has been used since the last fork */
static struct sg_lock peak_lock SG_AT_FORK;

static bool counts_every_job; /* for the observer */

static bool is_of_own_job(const struct sg_registry_entry *entry)
{
    return entry->slot.job_hash == sg_own->slot.job_hash || counts_every_job;
}

static uint64_t bytes_of(uint64_t begin, uint64_t end)
{
    return (end - begin) * SG_SHARED_UNIT;
}

static uint32_t groups_of(const struct gathering *g, const struct sg_registry_entry *entry)
{
    const struct sg_registry_entry *own = sg_entry_own();
    bool is_of_job = entry == own || is_of_own_job(entry);
    if (g == &peak) /* not a process that has called exec: the new program has an entry of its own, or will have none */
        return is_of_job && sg_load(&entry->slot.state) != SG_STATE_REPLACED ? 1u << SG_SAME_IN_JOB : 0;
    uint32_t groups = 1u << SG_SAME_ON_MACHINE;
    for (unsigned i = 0; i < SG_ENTRY_LEVELS && own->level[i] != 0; i++)
        if (entry == own || sg_entry_is_member(entry, own->level[i]))
            groups |= 1u << (SG_SAME_IN_LEVEL + i);
    return groups | (is_of_job ? 1u << SG_SAME_IN_JOB : 0);
}

/* Updates the note. True if the entry's ranges, or the groups that count them, may have changed. */
static bool renew(const struct gathering *g, struct note *note, const struct sg_registry_entry *entry, uint64_t claim)
{
    bool has_rows = sg_load(&sg_entry_names(entry)->file[0].begin) != 0;
    struct note now = {.claim = claim, .version = sg_load(&entry->files_version), .has_rows = has_rows};
    now.groups = has_rows ? groups_of(g, entry) : 0;
    bool had_rows = note->has_rows != 0, is_same = note->claim == now.claim && note->version == now.version &&
                                                   note->groups == now.groups && had_rows == has_rows;
    if (!is_same)
        *note = now;
    return !is_same && (has_rows || had_rows);
}

/* ---- gathering --------------------------------------------------------------------------------------------------- */

/* Ensures room for the rows of one more entry. The memory doubles, because a program may lock all its mappings. */
static bool has_row_capacity(struct gathering *g)
{
    if (g->row_count + SG_FILE_CAPACITY <= g->row_capacity)
        return true;
    uint32_t capacity = g->row_capacity != 0 ? g->row_capacity * 2 : ROWS_FIRST;
    void *memory = capacity > ROWS_MAX ? NULL
                                       : sg_sys_mmap(NULL, capacity * sizeof *g->rows, PROT_READ | PROT_WRITE,
                                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == NULL || sg_is_error(memory))
        return false;
    struct row *before = g->rows;
    uint32_t had = g->row_capacity;
    if (before != NULL)
        memcpy(memory, before, g->row_count * sizeof *before);
    g->rows = memory;
    sg_store_release(&g->row_capacity, capacity); /* a child that is forked in between finds rows for each capacity */
    if (before != NULL)
        (void)sg_sys_munmap(before, had * sizeof *before);
    return true;
}

static void add_row(struct gathering *g, struct note *note, const struct sg_registry_entry *entry,
                    const struct sg_memory_file *file)
{
    struct row row = {file->begin,          file->end,    file->missing_bytes,
                      entry->slot.job_hash, note->groups, entry != sg_entry_own()};
    if (row.begin >= row.end || row.begin >> SG_SHARED_SHIFT != (row.end - 1) >> SG_SHARED_SHIFT ||
        row.missing_bytes > bytes_of(row.begin, row.end))
        return; /* torn, or a hostile entry */
    note->missing_bytes += row.missing_bytes;
    note->held_bytes += bytes_of(row.begin, row.end);
    g->rows[g->row_count++] = row;
}

/* Adds the ranges that have no room in the entry. Those that cannot be read count as private memory. They are read into
 * the end of the room for their rows: a row, which is larger, is never written over a range that is still to be
 * added. */
static void gather_more(struct gathering *g, struct note *note, const struct sg_registry_entry *entry, uint64_t count)
{
    _Static_assert(sizeof(struct row) >= sizeof(struct sg_memory_file), "no row ends behind the next range");
    uint32_t got = 1;
    count = count < SG_MORE_FILES_CAPACITY ? count : SG_MORE_FILES_CAPACITY;
    for (uint32_t at = 0; at < count && got != 0 && has_row_capacity(g); at += got) {
        void *end = &g->rows[g->row_count + SG_FILE_CAPACITY];
        struct sg_memory_file *more = (struct sg_memory_file *)end - SG_FILE_CAPACITY;
        uint32_t most = (uint32_t)count - at < SG_FILE_CAPACITY ? (uint32_t)count - at : SG_FILE_CAPACITY;
        got = sg_registry_file_read_more(sg_entry_number(entry), at, more, most);
        for (uint32_t i = 0; i < got; i++) {
            const struct sg_memory_file file = more[i];
            add_row(g, note, entry, &file);
        }
    }
}

/* Adds the rows of a registry entry. Adds none while its owner changes them; sg_same_bytes_read then reports the bytes
 * in doubt. */
static void gather_entry(struct gathering *g, struct note *note, const struct sg_registry_entry *entry)
{
    const struct sg_registry_entry *names = sg_entry_names(entry);
    uint32_t first = g->row_count;
    note->missing_bytes = note->held_bytes = 0;
    if (!note->has_rows || note->version % 2 != 0 || !has_row_capacity(g))
        return;
    for (uint32_t i = 0; i < SG_FILE_CAPACITY; i++) {
        const struct sg_memory_file *at = &names->file[i];
        const struct sg_memory_file file = {sg_load(&at->begin), sg_load(&at->end), sg_load(&at->missing_bytes)};
        if (file.begin == 0)
            break;
        add_row(g, note, entry, &file);
    }
    uint64_t more = sg_load(&names->more_files);
    if (SG_UNLIKELY(more != 0) && sg_entry_has_names())
        gather_more(g, note, entry, more);
    if (sg_load(&entry->files_version) == note->version)
        return;
    g->row_count = first;
    note->missing_bytes = note->held_bytes = 0;
    note->version = UINT64_MAX; /* never equal: the next gathering reads the entry again */
}

static void sift_down(struct gathering *g, uint32_t at, uint32_t count)
{
    const struct row row = g->rows[at];
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && g->rows[child + 1].missing_bytes < g->rows[child].missing_bytes)
            child++;
        if (row.missing_bytes <= g->rows[child].missing_bytes)
            break;
        g->rows[at] = g->rows[child];
    }
    g->rows[at] = row;
}

/* Heap sort, because it needs no memory and no deep stack. */
static void sort_rows(struct gathering *g)
{
    for (uint32_t at = g->row_count / 2; at-- > 0;)
        sift_down(g, at, g->row_count);
    for (uint32_t count = g->row_count; count-- > 1;) {
        const struct row least = g->rows[0];
        g->rows[0] = g->rows[count];
        g->rows[count] = least;
        sift_down(g, 0, count);
    }
}

/* Adds a range to the covered ones. Returns its missing bytes, at most the bytes that were not covered before. */
static uint64_t count_row(struct gathering *g, uint64_t begin, uint64_t end, uint64_t missing_bytes)
{
    uint64_t fresh =
        bytes_of(begin, end) - sg_range_map_bytes(&g->covered, begin, end, SG_RANGE_COUNTED) * SG_SHARED_UNIT;
    if (fresh != 0) /* if memory runs out, overlapping ranges count twice */
        (void)sg_range_map_set(&g->covered, begin, end, SG_RANGE_COUNTED, 0);
    return sg_smaller(missing_bytes, fresh);
}

static void count_all(struct gathering *g)
{
    uint32_t groups = 0;
    for (uint32_t i = 0; i < g->row_count; i++)
        groups |= g->rows[i].groups;
    for (uint32_t group = 0; group < SG_SAME_COUNT; group++) {
        g->promised[group] = 0;
        sg_range_map_clear(&g->covered);
        for (uint32_t i = 0; (groups >> group & 1) != 0 && i < g->row_count; i++)
            if ((g->rows[i].groups >> group & 1) != 0)
                g->promised[group] += count_row(g, g->rows[i].begin, g->rows[i].end, g->rows[i].missing_bytes);
    }
    g->held_by_job = g->covered.counted_bytes * SG_SHARED_UNIT; /* the job comes last */
}

static void gather(struct gathering *g)
{
    _Static_assert(SG_SAME_IN_JOB == SG_SAME_COUNT - 1, "the job comes last");
    struct sg_registry *registry = sg_entry_registry();
    const struct sg_registry_entry *own = sg_entry_own();
    uint32_t used = sg_entry_count(registry);
    if (sg_load_relaxed(&has_gathered) == 0)
        sg_store(&has_gathered, 1u); /* before the first note */
    bool has_changed = renew(g, &g->own_note, own, 0);
    g->noted = used > g->noted ? used : g->noted;
    for (uint32_t i = 0; i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        uint64_t claim = sg_load(&entry->claim);
        if (entry != own && SG_CLAIM_STATE(claim) == SG_CLAIM_LIVE)
            has_changed |= renew(g, &g->notes[i], entry, claim);
        else {
            has_changed |= g->notes[i].has_rows != 0;
            g->notes[i] = (struct note){0};
        }
    }
    if (!has_changed)
        return;
    g->changes++;
    g->row_count = 0;
    gather_entry(g, &g->own_note, own);
    for (uint32_t i = 0; i < used; i++)
        if (g->notes[i].has_rows != 0)
            gather_entry(g, &g->notes[i], sg_entry_at(registry, i));
    sort_rows(g);
    count_all(g);
}

const struct sg_same_bytes *sg_same_bytes_gather(void)
{
    static struct sg_same_bytes others; /* under the decision lock */
    gather(&refresh);
    for (uint32_t group = 0; group < SG_SAME_COUNT; group++)
        others.promised[group] = sg_above(refresh.promised[group], refresh.own_note.missing_bytes);
    others.held_by_job = sg_above(refresh.held_by_job, refresh.own_note.held_bytes);
    return &others;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* The note of a registry entry; an empty note if the entry was not gathered or has a new owner. */
static const struct note *note_of(uint32_t number, const struct sg_registry_entry *entry)
{
    static const struct note none;
    if (entry == sg_entry_own())
        return &refresh.own_note;
    return number < SG_ENTRY_CAPACITY && refresh.notes[number].claim == sg_load(&entry->claim) ? &refresh.notes[number]
                                                                                               : &none;
}

uint64_t sg_same_bytes_read(uint32_t number, const struct sg_registry_entry *entry, struct sg_named *promised,
                            struct sg_named *granted)
{
    const struct note *note = note_of(number, entry);
    uint64_t version = sg_load(&entry->files_version);
    *promised = (struct sg_named){.bytes = sg_load(&entry->slot.promised_bytes)};
    *granted = (struct sg_named){.bytes = sg_load(&entry->slot.granted_bytes)};
    uint64_t now = sg_load(&entry->files_version), named = sg_load(&sg_entry_names(entry)->file_bytes);
    granted->by_name_bytes = sg_smaller(note->held_bytes, granted->bytes);
    if (now == version && note->version == version && version % 2 == 0) {
        promised->by_name_bytes = sg_smaller(note->missing_bytes, promised->bytes);
        return 0;
    }
    promised->in_doubt_bytes = sg_smaller(named, promised->bytes);
    named = sg_smaller(named, granted->bytes);
    granted->in_doubt_bytes = sg_above(named, granted->by_name_bytes);
    return now;
}

uint64_t sg_same_bytes_known(uint32_t group, uint64_t begin, uint64_t end, uint64_t bytes)
{
    struct gathering *g = &refresh;
    uint64_t before = 0, after = 0;
    sg_range_map_clear(&g->covered);
    for (uint32_t i = 0; i < g->row_count; i++)
        if ((g->rows[i].groups >> group & 1) != 0 && g->rows[i].begin < end && begin < g->rows[i].end)
            before += count_row(g, g->rows[i].begin, g->rows[i].end, g->rows[i].missing_bytes);
    sg_range_map_clear(&g->covered);
    bool is_counted = false;
    for (uint32_t i = 0; i < g->row_count; i++) {
        if ((g->rows[i].groups >> group & 1) == 0 || g->rows[i].begin >= end || begin >= g->rows[i].end)
            continue;
        if (!is_counted && g->rows[i].missing_bytes <= bytes) {
            after += count_row(g, begin, end, bytes);
            is_counted = true;
        }
        after += count_row(g, g->rows[i].begin, g->rows[i].end, g->rows[i].missing_bytes);
    }
    if (!is_counted)
        after += count_row(g, begin, end, bytes);
    return sg_above(bytes, sg_above(after, before));
}

uint64_t sg_same_bytes_of_job(uint64_t begin, uint64_t end)
{
    struct gathering *g = &refresh;
    uint64_t own = 0;
    sg_range_map_clear(&g->covered);
    for (int is_other = 0; is_other < 2; is_other++) {
        for (uint32_t i = 0; i < g->row_count; i++)
            if ((g->rows[i].groups >> SG_SAME_IN_JOB & 1) != 0 && (int)g->rows[i].is_other == is_other)
                (void)count_row(g, g->rows[i].begin, g->rows[i].end, 0);
        own = is_other == 0 ? sg_range_map_bytes(&g->covered, begin, end, SG_RANGE_COUNTED) : own;
    }
    return (sg_range_map_bytes(&g->covered, begin, end, SG_RANGE_COUNTED) - own) * SG_SHARED_UNIT;
}

bool sg_same_bytes_has_changed(uint32_t number, const struct sg_registry_entry *entry, uint64_t *gathered_bytes)
{
    const struct note *note = note_of(number, entry);
    uint64_t version = sg_load(&entry->files_version);
    bool has_changed = version != note->version || version % 2 != 0;
    *gathered_bytes = has_changed ? note->held_bytes : 0;
    return has_changed;
}

uint64_t sg_same_bytes_held_by(uint64_t job)
{
    enum { KEPT = 64 };
    static struct {
        uint64_t job, changes, bytes;
    } kept[KEPT]; /* under the decision lock */
    struct gathering *g = &refresh;
    __typeof__(&kept[0]) found = &kept[job % KEPT];
    if (g->row_count == 0)
        return 0;
    if (found->job == job && found->changes == g->changes)
        return found->bytes;
    sg_range_map_clear(&g->covered);
    for (uint32_t i = 0; i < g->row_count; i++)
        if (g->rows[i].job == job)
            (void)count_row(g, g->rows[i].begin, g->rows[i].end, 0);
    found->job = job;
    found->changes = g->changes;
    found->bytes = g->covered.counted_bytes * SG_SHARED_UNIT;
    return found->bytes;
}

/* ---- memory of parents ------------------------------------------------------------------------------------------- */

/* Notes the bytes that a child has from one ancestor; the largest of its children counts. If the list is full, further
 * ancestors are not noted: their bytes do not count, as if the ancestor still held them. */
static void note_origin(struct origin *list, uint32_t *count, const struct sg_origin *origin, uint64_t bytes,
                        uint64_t job)
{
    uint32_t at = 0;
    while (at < *count && (list[at].claim != origin->claim || list[at].entry != origin->entry))
        at++;
    if (at == ORIGINS_MAX)
        return;
    if (at == *count)
        list[(*count)++] = (struct origin){origin->claim, 0, job, origin->entry};
    list[at].bytes = list[at].bytes > bytes ? list[at].bytes : bytes;
}

/* Distributes the bytes that a child still has among its ancestors, the nearest first. This is a guess: when the child
 * frees inherited memory, the ancestor that it came from is not known. */
static void note_origins(struct origin *list, uint32_t *count, const struct sg_registry_entry *entry)
{
    uint64_t left = sg_load(&entry->slot.inherited_bytes);
    const struct sg_origin *origin = sg_entry_names(entry)->origin;
    for (uint32_t i = 0; i < SG_ORIGIN_CAPACITY && left != 0 && origin[i].claim != 0; i++) {
        uint64_t bytes = origin[i].bytes < left ? origin[i].bytes : left;
        bytes = sg_entry_cut(bytes);
        left -= bytes;
        note_origin(list, count, &origin[i], bytes, entry->slot.job_hash);
    }
}

/* The part of an ancestor's bytes that it does not hold itself any more. */
static uint64_t left_by(const struct origin *origin)
{
    struct sg_registry *registry = sg_entry_registry();
    uint32_t number = origin->entry - 1;
    const struct sg_registry_entry *entry = number < SG_ENTRY_CAPACITY ? sg_entry_at(registry, number) : NULL;
    bool is_alive =
        entry != NULL && SG_CLAIM_STATE(origin->claim) == SG_CLAIM_LIVE && sg_load(&entry->claim) == origin->claim;
    uint64_t named;
    return sg_above(origin->bytes, is_alive ? sg_entry_private_bytes(&entry->slot, entry, &named) : 0);
}

static uint64_t inherited_by_job(struct gathering *g)
{
    struct origin *list = g->origins;
    struct sg_registry *registry = sg_entry_registry();
    uint32_t used = sg_entry_count(registry), count = 0;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (sg_entry_is_live(entry) && is_of_own_job(entry))
            note_origins(list, &count, entry);
    }
    for (uint32_t i = 0; i < count; i++)
        sum += left_by(&list[i]);
    return sum;
}

uint64_t sg_same_bytes_inherited_by_job(void)
{
    return inherited_by_job(&refresh);
}

void sg_same_bytes_begin_heirs(void)
{
    refresh.origin_count = 0;
}

void sg_same_bytes_note_heir(const struct sg_registry_entry *entry)
{
    note_origins(refresh.origins, &refresh.origin_count, entry);
}

bool sg_same_bytes_heirs(uint32_t number, uint64_t *job, uint64_t *bytes)
{
    if (number >= refresh.origin_count)
        return false;
    *job = refresh.origins[number].job;
    *bytes = left_by(&refresh.origins[number]);
    return true;
}

uint64_t sg_same_bytes_of_job_now(void)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&peak_lock, &lock);
    gather(&peak);
    uint64_t bytes = peak.held_by_job + inherited_by_job(&peak);
    sg_lock_release(&peak_lock, &lock);
    return bytes;
}

void sg_same_bytes_count_every_job(bool counts)
{
    counts_every_job = counts;
}

static void forget(struct gathering *g)
{
    g->changes++;
    memset(g->notes, 0, g->noted * sizeof g->notes[0]); /* not all: that would give each child 21 pages */
    g->noted = 0;
    g->own_note = (struct note){0};
    g->row_count = 0;
    memset(g->promised, 0, sizeof g->promised);
    g->held_by_job = 0;
}

void sg_same_bytes_atfork_child(void)
{
    sg_lock_reset(&peak_lock);
    if (sg_load(&has_gathered) == 0)
        return;
    forget(&refresh);
    forget(&peak);
    sg_store(&has_gathered, 0u);
}
