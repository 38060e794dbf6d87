/*
 * foreign.h - the ledger of another version of this library beside ours. The head of the file and the 512 bytes of a
 * registry entry are frozen, whatever is behind them, so each counts the other's processes. The version that comes
 * second finds the first's ledger in the place of its own: its processes share one of another name, and say so in the
 * head of the first. Under the decision lock.
 */
#ifndef SG_PRELOAD_SHARED_FOREIGN_H
#define SG_PRELOAD_SHARED_FOREIGN_H

#include "sparkguard_abi.h"

#include <stdbool.h>

/* There is one in the place of ours; it is read whenever the others are summed up, from now on. */
void sg_foreign_meet(void);
bool sg_foreign_is_met(void);

/* Calls visit with a copy of each registry entry whose owner is alive. */
void sg_foreign_visit(void (*visit)(void *context, uint32_t number, struct sg_registry_entry *entry), void *context);

/* What a registry entry, and all of theirs now, ask for, have in flight and have promised: to be compared, for each can
 * be made up. */
uint64_t sg_foreign_bytes_of(const struct sg_registry_entry *entry);
uint64_t sg_foreign_bytes(void);

/* In a forked child: it finds out for itself. */
void sg_foreign_refork(void);

#endif
