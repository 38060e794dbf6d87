/*
 * block_table.h - lock-free map from an address (or handle) to one 64-bit value.
 *
 * Contract: a key is in a table at most once. The thread that frees an address removes the key before the real free,
 * so that the next owner of the address inserts into a table without that key. Proof: block_table.c.
 *
 * Thread-safety: any thread, also in signal handlers, except for sg_block_table_destroy. Memory: anonymous mappings,
 * never malloc; 16 bytes per slot. A table never shrinks. The pages of a generation that growth has emptied return to
 * the kernel.
 */
#ifndef SG_PRELOAD_ACCOUNT_BLOCK_TABLE_H
#define SG_PRELOAD_ACCOUNT_BLOCK_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct sg_block_table_slot {
    uint64_t key;
    uint64_t value;
};

struct sg_block_table_array;

enum { SG_BLOCK_TABLE_GENERATIONS = 40, SG_BLOCK_TABLE_STRIPES = 16 };

/* All zero is a valid empty table. */
struct sg_block_table {
    struct sg_block_table_array *generation[SG_BLOCK_TABLE_GENERATIONS];
    uint32_t first;  /* oldest generation that may hold entries */
    uint32_t newest; /* number of generations ever made; the newest is at newest - 1 */
};

/* The caller defines the lower 61 bits of a value. All 61 bits zero is not allowed: 0 means "no entry". */
#define SG_BLOCK_TABLE_VALUE_BITS 61
#define SG_BLOCK_TABLE_VALUE_MASK ((UINT64_C(1) << SG_BLOCK_TABLE_VALUE_BITS) - 1)

/* Inserts an entry. The keys 0, UINT64_MAX - 1 and UINT64_MAX are not allowed. If an older entry of the same key is
 * found on the way, the new entry replaces it; *stale (may be NULL) receives the old value, else 0. Returns 0, -ENOMEM,
 * or -EINVAL for a key or value that is not allowed. */
int sg_block_table_insert(struct sg_block_table *table, uint64_t key, uint64_t value, uint64_t *stale);

/* Returns the value of an entry, or 0 if the table does not hold the key. */
uint64_t sg_block_table_find(const struct sg_block_table *table, uint64_t key);

/* Removes an entry. Returns its value, or 0 if the table does not hold the key. If several threads remove a key at
 * once, one of them receives the value. */
uint64_t sg_block_table_remove(struct sg_block_table *table, uint64_t key);

/* Removes an entry if its value is exactly `value`; returns whether it did. For callers that do not own the address:
 * the address may have been freed and allocated again, and that newer entry must stay. */
bool sg_block_table_remove_exact(struct sg_block_table *table, uint64_t key, uint64_t value);

/* Sets `bits` in the value of an entry if the value is still exactly `value`; returns whether it did. */
bool sg_block_table_mark(struct sg_block_table *table, uint64_t key, uint64_t value, uint64_t bits);

/* Calls `visit` for each entry. An entry that is in the table during the whole call is visited. An entry that growth
 * moves meanwhile may be visited twice. An entry inserted or removed meanwhile may be missed. */
void sg_block_table_visit(const struct sg_block_table *table,
                          void (*visit)(void *context, uint64_t key, uint64_t value), void *context);

/* Returns the largest number of slots that one operation probed or moved since the table was made. For the growth
 * test. */
uint64_t sg_block_table_longest_step(const struct sg_block_table *table);

/* Unmaps all memory of a table. No other thread may use the table meanwhile. */
void sg_block_table_destroy(struct sg_block_table *table);

#endif
