/*
 * block_table.h - lock-free map from an address (or handle) to one 64-bit value.
 *
 * Contract: a key lives in a table at most once. Whoever frees an address takes it out before the real free, so that
 * the next owner of the address inserts into a table that does not hold it. See block_table.c for the proof.
 *
 * Any thread, also in signal handlers; no memory from malloc (anonymous mappings, 16 bytes a slot). A table never
 * shrinks; what a growth leaves behind is given back to the kernel.
 */
#ifndef SG_PRELOAD_ACCOUNT_BLOCK_TABLE_H
#define SG_PRELOAD_ACCOUNT_BLOCK_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sg_block_table_slot {
    uint64_t key;
    uint64_t value;
};

struct sg_block_table_array;

enum { SG_BLOCK_TABLE_GENERATIONS = 40, SG_BLOCK_TABLE_STRIPES = 4 };

/* All zero is a valid empty table. */
struct sg_block_table {
    struct sg_block_table_array *generation[SG_BLOCK_TABLE_GENERATIONS];
    uint32_t first;  /* oldest generation that may hold entries */
    uint32_t newest; /* number of generations ever made; the newest is at newest - 1 */
};

/* What the lower 61 bits of a value are is the caller's business, but never all zero. */
#define SG_BLOCK_TABLE_VALUE_BITS 61
#define SG_BLOCK_TABLE_VALUE_MASK ((UINT64_C(1) << SG_BLOCK_TABLE_VALUE_BITS) - 1)

/* Keys the table cannot hold: 0 and the two highest. Returns 0, -ENOMEM or -EINVAL.
 * *stale (may be NULL) gets the value of an older entry of the same key that was found in the way and replaced, else 0. */
int sg_block_table_insert(struct sg_block_table *table, uint64_t key, uint64_t value, uint64_t *stale);

/* The value, or 0 if the key is not there. */
uint64_t sg_block_table_find(const struct sg_block_table *table, uint64_t key);

/* Takes the entry out: its value, or 0 if it is not there. Of several callers one gets it. */
uint64_t sg_block_table_remove(struct sg_block_table *table, uint64_t key);

/* Takes the entry out if it has exactly `value`: true if it was done. For who knows of the entry without owning its
 * address, which may be free and allocated again by now. */
bool sg_block_table_remove_exact(struct sg_block_table *table, uint64_t key, uint64_t value);

/* Sets bits in the value of an entry, if it is there and still has exactly `value`: true if it was done. */
bool sg_block_table_mark(struct sg_block_table *table, uint64_t key, uint64_t value, uint64_t bits);

/* Calls `visit` for every entry that is there throughout; one that is moved meanwhile may be seen twice, one that comes
 * or goes may be missed. */
void sg_block_table_visit(const struct sg_block_table *table,
                          void (*visit)(void *context, uint64_t key, uint64_t value), void *context);

/* Slots an operation looked at or moved at most, since the table was made (a count for the growth test). */
uint64_t sg_block_table_longest_step(const struct sg_block_table *table);

/* Gives all memory back, for a table of one's own: nobody else may use it meanwhile. */
void sg_block_table_destroy(struct sg_block_table *table);

#endif
