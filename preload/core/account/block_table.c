/*
 * block_table.c - the lock-free table: open addressing with linear probing, growing by generations.
 *
 * States of a slot (key, value); v is the caller's value. A mover is a thread that moves an entry to the newest
 * generation.
 *     (0, 0)               never used
 *     (GONE, 0)            used before, free again
 *     (k, 0)               being filled by the inserter of k, or just emptied by its remover
 *     (k, v)               holds k
 *     (k, v|FROZEN)        a mover has claimed the entry and is copying it to the newest generation
 *     (k, v|FROZEN|DEAD)   removed while it was being copied: the mover will take its copy out again
 *     (k, v|MOVED)         the entry has moved to a newer generation
 *     (k, r|COPY)          a mover's copy; r names the slot it came from, and it is valid if that one holds v|MOVED
 *     (k, r|COPY|DEAD)     a copy removed before its mover confirmed it: the mover frees the slot
 * Every transition is one compare-and-swap: on the key to claim a slot (0 or GONE -> k), on the value for the rest.
 * Only the thread that set the value to 0 sets the key to GONE.
 *
 * Why an entry is never lost and never doubled
 *   1. Only the inserter of k knows k until insert returns, because the allocator has just returned k. No other thread
 *      searches for a key that is being filled: (k, 0) reads as "not here".
 *   2. Remove wins by a single CAS (v -> 0, v|FROZEN -> v|FROZEN|DEAD or r|COPY -> r|COPY|DEAD): one caller gets v. A
 *      slot may be freed and filled with another key between the reads of its key and its value, so the key is read
 *      again. (Known gap: two threads that remove the same key at once, as a double free does, or a thread that does
 *      not own the key, may still remove a new entry of equal value.)
 *   3. A move belongs to the thread that froze the entry. The mover puts (k, r|COPY) into the newest generation, then
 *      v|FROZEN -> v|MOVED, then r|COPY -> v. If a remover came before the second step (DEAD), the mover clears its
 *      copy. No thread waits for a mover, which may be killed or stopped: until the second step a search finds the
 *      original, after it the copy. A search goes from old generations to new ones. A copy whose original was removed
 *      stays invalid, however long its mover is stopped and whatever happens to the key: r names one entry for ever,
 *      because the slot of a frozen entry is never used again. If the generation of r was retired (zeros), the copy has
 *      been confirmed, and the search reads it again.
 *   4. Inserters and growth: an inserter stores its value, then loads `newest` (both seq_cst). Growth publishes
 *      `newest`, then movers scan the slots (seq_cst). Either the scan sees the value, or the inserter sees the new
 *      generation and moves its own slot by rule 3 (a store-load pairing as in Dekker's algorithm). A mover does the
 *      same for its copy after confirming it.
 *   5. A generation that is not the newest is retired when its counts of entered and gone entries are equal. An entry
 *      counts as entered before its inserter checks that the generation is still the newest. An entry counts as gone
 *      when no thread will write to its slot any more: it was removed, moved with its copy confirmed, or never put.
 *      Both counts only grow, and gone is read first. They are equal only if at one instant between the two readings
 *      the generation had no entries, and none was being put. Retirement gives the pages back by MADV_DONTNEED and
 *      keeps the mapping. A late search reads zeros there ("not here") and goes on to the next generation, where the
 *      entry is. An inserter that notices the new generation late does the same.
 *
 * Progress: find and remove are wait-free but for generations made meanwhile; insert is lock-free. Growth makes no
 * thread wait: each insert and remove moves at most MOVE_BATCH slots. A search needs no terminating empty slot:
 * inserters reuse the first GONE slot they meet, and `reach` bounds how far an entry may lie from its hash place.
 *
 * Load: a generation is full at 3/4 (or when an insert finds no slot within PROBE_MAX); the next has twice the slots.
 * At the moment of growth a table has 16 * (1 + 2) / 0.75 = 64 bytes per entry; most of the new slots are not touched
 * yet.
 */
#include "account/block_table.h"

#include "base/atomics.h"
#include "base/pages.h"
#include "base/syscall.h"

#include <sys/mman.h>

#define KEY_GONE (UINT64_MAX - 1)
#define COPY (UINT64_C(1) << 61)
#define FROZEN (UINT64_C(1) << 62)
#define DEAD (UINT64_C(1) << 63)
#define MOVED (COPY | FROZEN | DEAD)
#define STATE_BITS (COPY | FROZEN | DEAD)
#define INDEX_BITS 55 /* of the name of a slot; the generation's number is above them */

enum {
    FIRST_SLOTS = 256,
    MOVE_BATCH = 16,
    PROBE_MAX = 512,
    EXACT_SLOTS = 4096,     /* a larger generation is not checked for fullness at each insert, */
    INSERTS_PER_CHECK = 16, /* but at one insert of so many per stripe */
};

/* The counts of some threads, so that threads seldom write to the same cache line. Both counts only grow. */
struct stripe {
    uint64_t entered; /* entries put into this generation, counted before they are put */
    uint64_t gone;    /* the part of them that has left the generation, or found no slot */
    uint64_t reserved[6];
};

struct sg_block_table_array {
    uint64_t slots; /* a power of two */
    uint64_t bytes;
    uint32_t shift;  /* 64 - log2(slots) */
    uint32_t reach;  /* longest distance of any entry from its hash place */
    uint64_t cursor; /* next slot to be scanned by a mover */
    uint64_t number; /* of the generation */
    uint64_t reserved[3];
    struct stripe stripe[SG_BLOCK_TABLE_STRIPES];
    struct sg_block_table_slot slot[];
};
_Static_assert(sizeof(struct stripe) == 64, "a stripe has a cache line of its own");
_Static_assert(FIRST_SLOTS % MOVE_BATCH == 0, "scans end on a batch");

/* The slot that an entry was put into. */
struct spot {
    struct sg_block_table_array *array;
    uint64_t index;
    uint32_t count; /* `newest` when the entry was put */
};

static void move_slot(struct sg_block_table *table, struct sg_block_table_array *from, uint64_t index);

static uint64_t place_of(const struct sg_block_table_array *array, uint64_t key)
{
    /* Fibonacci hashing; the fold brings high bits of the address into the product's top. */
    return ((key ^ (key >> 29)) * UINT64_C(0x9e3779b97f4a7c15)) >> array->shift;
}

/* The stripe of this thread, always the same one. */
static struct stripe *stripe_of(struct sg_block_table_array *array)
{
    static SG_THREAD_LOCAL char here;
    return &array->stripe[((uintptr_t)&here >> 12) % SG_BLOCK_TABLE_STRIPES];
}

/* Entries in the generation or being put. 0: at some instant of this call there were none (rule 5). */
static uint64_t used_of(const struct sg_block_table_array *array)
{
    uint64_t gone = 0, entered = 0;
    for (int i = 0; i < SG_BLOCK_TABLE_STRIPES; i++)
        gone += sg_load(&array->stripe[i].gone);
    for (int i = 0; i < SG_BLOCK_TABLE_STRIPES; i++)
        entered += sg_load(&array->stripe[i].entered);
    return entered - gone;
}

/* While each stripe counts only a few entries, the sum need not be looked at: other threads change the counts. */
static bool is_full(struct sg_block_table_array *array)
{
    const struct stripe *own = stripe_of(array);
    int64_t entries = (int64_t)(sg_load_relaxed(&own->entered) - sg_load_relaxed(&own->gone));
    if (entries < (int64_t)(array->slots / (2 * SG_BLOCK_TABLE_STRIPES)))
        return false;
    if (array->slots > EXACT_SLOTS && sg_load_relaxed(&stripe_of(array)->entered) % INSERTS_PER_CHECK != 0)
        return false;
    return used_of(array) >= array->slots / 4 * 3;
}

/* Counts an entry as gone. The caller has written to its slot for the last time. */
static void count_gone(struct sg_block_table_array *array)
{
    sg_fetch_add(&stripe_of(array)->gone, UINT64_C(1));
}

static struct sg_block_table_array *array_make(uint64_t slots, uint32_t number)
{
    size_t bytes = sizeof(struct sg_block_table_array) + slots * sizeof(struct sg_block_table_slot);
    struct sg_block_table_array *array =
        sg_sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sg_is_error(array))
        return NULL;
    array->slots = slots;
    array->number = number;
    array->bytes = bytes;
    array->shift = (uint32_t)(64 - __builtin_ctzll(slots));
    return array;
}

/* Ensures that a generation exists after the `count` generations that the caller saw. Several threads may try; one
 * array wins. Returns 0 or -ENOMEM. */
static int grow(struct sg_block_table *table, uint32_t count)
{
    if (count >= SG_BLOCK_TABLE_GENERATIONS)
        return -ENOMEM;
    if (sg_load_acquire(&table->generation[count]) == NULL) {
        uint64_t slots = count == 0 ? FIRST_SLOTS : sg_load_acquire(&table->generation[count - 1])->slots * 2;
        struct sg_block_table_array *array = array_make(slots, count);
        if (array == NULL)
            return -ENOMEM;
        uint64_t none = 0;
        if (!sg_cas_u64((uint64_t *)&table->generation[count], &none, (uint64_t)(uintptr_t)array))
            (void)sg_sys_munmap(array, array->bytes);
    }
    uint32_t seen = count;
    (void)sg_cas_u32(&table->newest, &seen, count + 1); /* pairs with the loads of newest in rule 4 */
    return 0;
}

/* Claims a slot for `key` and fills it. Returns its index, or UINT64_MAX if no slot is free within PROBE_MAX. An older
 * entry of the same key that is replaced counts as gone: it was counted as entered itself. */
static uint64_t claim(struct sg_block_table_array *array, uint64_t key, uint64_t value, uint64_t *stale)
{
    uint64_t mask = array->slots - 1;
    uint64_t place = place_of(array, key);
    uint32_t limit = array->slots < PROBE_MAX ? (uint32_t)array->slots : PROBE_MAX;
    for (uint32_t step = 0; step < limit; step++) {
        uint64_t index = (place + step) & mask;
        struct sg_block_table_slot *slot = &array->slot[index];
        uint64_t held = sg_load_acquire(&slot->key);
        if (SG_UNLIKELY(held == key) &&
            (value & STATE_BITS) == 0) { /* the old block was freed through an entry point that is not hooked */
            uint64_t old = sg_load(&slot->value);
            bool is_entry = old != 0 && (old & STATE_BITS) == 0;
            /* read the key again: since its first read the slot may have been reused for another key */
            if (is_entry && sg_load(&slot->key) == key && sg_cas_u64(&slot->value, &old, value)) {
                *stale = old;
                count_gone(array);
                return index;
            }
        }
        while (held == 0 || held == KEY_GONE) {
            if (!sg_cas_u64(&slot->key, &held, key))
                continue;
            uint32_t reach = sg_load_relaxed(&array->reach);
            while (reach < step && !sg_cas_u32(&array->reach, &reach, step))
                ;
            sg_store(&slot->value, value);
            return index;
        }
    }
    return UINT64_MAX;
}

/* Frees a slot whose value the caller has just set to 0. */
static void free_slot(struct sg_block_table_array *array, struct sg_block_table_slot *slot)
{
    sg_store_release(&slot->key, KEY_GONE);
    count_gone(array);
}

/* Puts an entry into the newest generation, and makes a new generation if that one is full. Returns 0 or -ENOMEM. */
static int put(struct sg_block_table *table, uint64_t key, uint64_t value, uint64_t *stale, struct spot *spot)
{
    for (;;) {
        uint32_t count = sg_load(&table->newest);
        struct sg_block_table_array *array = count != 0 ? sg_load_acquire(&table->generation[count - 1]) : NULL;
        if (array == NULL || SG_UNLIKELY(is_full(array))) {
            int grown = grow(table, count);
            if (grown == 0)
                continue;
            if (array == NULL)
                return grown; /* without memory for growth, a full generation is used as long as it has a slot */
        }
        sg_fetch_add(&stripe_of(array)->entered, UINT64_C(1)); /* pairs with used_of in retire (rule 5) */
        uint64_t index = UINT64_MAX;
        bool is_newest = sg_load(&table->newest) == count;
        if (is_newest)
            index = claim(array, key, value, stale);
        if (index != UINT64_MAX) {
            *spot = (struct spot){array, index, count};
            return 0;
        }
        count_gone(array);
        if (is_newest && grow(table, count) != 0)
            return -ENOMEM;
    }
}

/* Moves the entry in slot `index` by rule 3, if there is one. Without memory the entry stays. */
static void move_slot(struct sg_block_table *table, struct sg_block_table_array *from, uint64_t index)
{
    struct sg_block_table_slot *slot = &from->slot[index];
    uint64_t value = sg_load(&slot->value);
    do {
        if (value == 0 || (value & STATE_BITS) != 0)
            return; /* empty, moved, or being put by a thread that will see the growth and move it by rule 4 */
    } while (!sg_cas_u64(&slot->value, &value, value | FROZEN));
    uint64_t key = sg_load_acquire(&slot->key);
    uint64_t original = value | FROZEN;
    uint64_t reference = COPY | from->number << INDEX_BITS | index;
    uint64_t none = 0; /* a copy replaces nothing */
    struct spot spot;
    if (put(table, key, reference, &none, &spot) != 0) {
        if (!sg_cas_u64(&slot->value, &original, value)) { /* removed meanwhile */
            sg_store(&slot->value, 0);
            free_slot(from, slot);
        }
        return;
    }
    struct sg_block_table_slot *copy = &spot.array->slot[spot.index];
    bool is_alive = sg_cas_u64(&slot->value, &original, value | MOVED);
    bool is_confirmed = is_alive && sg_cas_u64(&copy->value, &reference, value);
    if (!is_confirmed) { /* removed from the original or from the copy */
        sg_store(&copy->value, 0);
        free_slot(spot.array, copy);
    }
    count_gone(from); /* not earlier: until the copy is confirmed, searches read the original */
    if (is_confirmed && sg_load(&table->newest) != spot.count)
        move_slot(table, spot.array, spot.index);
}

/* Gives the pages of the oldest generation back when rule 5 allows it. */
static void retire(struct sg_block_table *table, uint32_t first, struct sg_block_table_array *array)
{
    if (used_of(array) != 0 || !sg_cas_u32(&table->first, &first, first + 1))
        return;
    uintptr_t begin = ((uintptr_t)&array->slot[0] + SG_PAGE_MAX - 1) & ~(uintptr_t)(SG_PAGE_MAX - 1);
    uintptr_t end = ((uintptr_t)array + array->bytes) & ~(uintptr_t)(SG_PAGE_MAX - 1);
    if (end > begin)
        (void)sg_sys_madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* Moves one batch of slots out of generation `first`: the part that one operation contributes to a growth. */
static SG_APART void move_some(struct sg_block_table *table, uint32_t first)
{
    struct sg_block_table_array *array = sg_load_acquire(&table->generation[first]);
    if (sg_load(&array->cursor) >= array->slots) {
        retire(table, first, array);
        return;
    }
    uint64_t begin = sg_fetch_add(&array->cursor, (uint64_t)MOVE_BATCH);
    for (uint64_t i = begin; begin < array->slots && i < begin + MOVE_BATCH; i++)
        move_slot(table, array, i);
}

static inline void help_growth(struct sg_block_table *table)
{
    uint32_t first = sg_load_acquire(&table->first);
    if (SG_UNLIKELY(first + 1 < sg_load_acquire(&table->newest)))
        move_some(table, first);
}

/* Prefetches the cache line of an entry: it is seldom cached, and the work before the write hides a part of the
 * latency. */
static inline void fetch_place(const struct sg_block_table *table, uint64_t key)
{
    uint32_t count = sg_load_acquire(&table->newest);
    if (SG_UNLIKELY(count == 0))
        return;
    const struct sg_block_table_array *array = sg_load_acquire(&table->generation[count - 1]);
    SG_WILL_WRITE(&array->slot[place_of(array, key)]);
}

int sg_block_table_insert(struct sg_block_table *table, uint64_t key, uint64_t value, uint64_t *stale)
{
    uint64_t ignored;
    if (stale == NULL)
        stale = &ignored;
    *stale = 0;
    if (SG_UNLIKELY(key == 0 || key >= KEY_GONE || value == 0 || (value & STATE_BITS) != 0))
        return -EINVAL;
    fetch_place(table, key);
    help_growth(table);
    struct spot spot;
    int result = put(table, key, value, stale, &spot);
    if (result != 0)
        return result;
    if (SG_UNLIKELY(sg_load(&table->newest) != spot.count)) /* pairs with grow (rule 4) */
        move_slot(table, spot.array, spot.index);
    return 0;
}

/* The next slot in `array` that holds `key`, from *step on; NULL: no further slot may hold it. */
static SG_INLINE struct sg_block_table_slot *next_slot(struct sg_block_table_array *array, uint64_t key, uint32_t *step)
{
    uint64_t mask = array->slots - 1;
    uint64_t place = place_of(array, key);
    uint32_t reach = sg_load_acquire(&array->reach);
    while (*step <= reach) {
        struct sg_block_table_slot *slot = &array->slot[(place + (*step)++) & mask];
        uint64_t held = sg_load_acquire(&slot->key);
        if (held == key)
            return slot;
        if (held == 0)
            return NULL;
    }
    return NULL;
}

/* The caller's value in a slot with value word `state`, or 0. */
static SG_INLINE uint64_t value_in(const struct sg_block_table *table, uint64_t state)
{
    uint64_t bits = state & SG_BLOCK_TABLE_VALUE_MASK;
    if ((state & STATE_BITS) == 0 || (state & STATE_BITS) == FROZEN)
        return bits;
    if ((state & STATE_BITS) != COPY)
        return 0;
    const struct sg_block_table_array *from = sg_load_acquire(&table->generation[bits >> INDEX_BITS]);
    uint64_t original = sg_load(&from->slot[bits & ((UINT64_C(1) << INDEX_BITS) - 1)].value);
    return (original & STATE_BITS) == MOVED ? original & SG_BLOCK_TABLE_VALUE_MASK : 0;
}

/* The caller's value of `key` in a slot, or 0. *state: the value word it was derived from. */
static SG_INLINE uint64_t read_slot(const struct sg_block_table *table, const struct sg_block_table_slot *slot,
                                    uint64_t key, uint64_t *state)
{
    for (;;) {
        *state = sg_load(&slot->value);
        uint64_t value = value_in(table, *state);
        if (sg_load(&slot->key) != key)
            return 0;
        if (value != 0 || (*state & STATE_BITS) != COPY || sg_load(&slot->value) == *state)
            return value;
    }
}

enum wish { WISH_FIND, WISH_REMOVE };

/* Finds or removes an entry in one slot. Returns its value, or 0 if the search must go on. A remove ignores an entry
 * whose value is not `only` (0: any value). */
static SG_INLINE uint64_t serve(const struct sg_block_table *table, struct sg_block_table_array *array,
                                struct sg_block_table_slot *slot, uint64_t key, enum wish wish, uint64_t only)
{
    for (;;) {
        uint64_t state;
        uint64_t value = read_slot(table, slot, key, &state);
        if (value == 0 || wish == WISH_FIND)
            return value;
        if (only != 0 && value != only)
            return 0;
        bool is_plain = (state & STATE_BITS) == 0;
        if (sg_cas_u64(&slot->value, &state, is_plain ? 0 : state | DEAD)) {
            if (is_plain)
                free_slot(array, slot);
            return value;
        }
    }
}

static SG_INLINE uint64_t search(struct sg_block_table *table, uint64_t key, enum wish wish, uint64_t only)
{
    if (key == 0 || key >= KEY_GONE)
        return 0;
    for (uint32_t g = sg_load_acquire(&table->first); g < sg_load(&table->newest); g++) {
        struct sg_block_table_array *array = sg_load_acquire(&table->generation[g]);
        struct sg_block_table_slot *slot;
        uint32_t step = 0;
        while ((slot = next_slot(array, key, &step)) != NULL) {
            uint64_t value = serve(table, array, slot, key, wish, only);
            if (value != 0)
                return value;
        }
    }
    return 0;
}

uint64_t sg_block_table_find(const struct sg_block_table *table, uint64_t key)
{
    return search((struct sg_block_table *)(uintptr_t)table, key, WISH_FIND, 0);
}

uint64_t sg_block_table_remove(struct sg_block_table *table, uint64_t key)
{
    help_growth(table);
    return search(table, key, WISH_REMOVE, 0);
}

bool sg_block_table_remove_exact(struct sg_block_table *table, uint64_t key, uint64_t value)
{
    help_growth(table);
    return search(table, key, WISH_REMOVE, value) != 0;
}

bool sg_block_table_mark(struct sg_block_table *table, uint64_t key, uint64_t value, uint64_t bits)
{
    for (uint32_t g = sg_load_acquire(&table->first); g < sg_load(&table->newest); g++) {
        struct sg_block_table_slot *slot;
        uint32_t step = 0;
        while ((slot = next_slot(sg_load_acquire(&table->generation[g]), key, &step)) != NULL) {
            uint64_t expected = value;
            if (sg_cas_u64(&slot->value, &expected, value | (bits & SG_BLOCK_TABLE_VALUE_MASK)))
                return true;
        }
    }
    return false;
}

void sg_block_table_visit(const struct sg_block_table *table,
                          void (*visit)(void *context, uint64_t key, uint64_t value), void *context)
{
    for (uint32_t g = sg_load_acquire(&table->first); g < sg_load(&table->newest); g++) {
        const struct sg_block_table_array *array = sg_load_acquire(&table->generation[g]);
        for (uint64_t i = 0; i < array->slots; i++) {
            uint64_t key = sg_load_acquire(&array->slot[i].key);
            uint64_t state;
            uint64_t value = key != 0 && key < KEY_GONE ? read_slot(table, &array->slot[i], key, &state) : 0;
            if (value != 0)
                visit(context, key, value);
        }
    }
}

uint64_t sg_block_table_longest_step(const struct sg_block_table *table)
{
    uint64_t longest = sg_load(&table->newest) > 1 ? MOVE_BATCH : 0;
    for (uint32_t g = 0; g < sg_load(&table->newest); g++)
        longest = sg_larger(longest, sg_load_relaxed(&table->generation[g]->reach));
    return longest;
}

void sg_block_table_destroy(struct sg_block_table *table)
{
    for (uint32_t g = 0; g < table->newest; g++)
        (void)sg_sys_munmap(table->generation[g], table->generation[g]->bytes);
    *table = (struct sg_block_table){0};
}
