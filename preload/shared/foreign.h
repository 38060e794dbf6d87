/*
 * foreign.h - the registry of another version of this library, beside ours. Under the decision lock.
 *
 * The file's header and the first 512 bytes of a registry entry are frozen for all versions, so each version can count
 * the other's processes. The version that starts second finds the first version's registry under its own name. Its
 * processes then share a second file, and set has_second in the header of the first.
 */
#ifndef SG_PRELOAD_SHARED_FOREIGN_H
#define SG_PRELOAD_SHARED_FOREIGN_H

#include "sparkguard_abi.h"

#include <stdbool.h>

/* Call when the registry under our name is another version's: selects the second file and tells the other version.
 * From then on every sum over the peers reads the other registry. */
void sg_foreign_meet(void);

/* Whether sg_foreign_meet was called. */
bool sg_foreign_is_met(void);

/* Calls visit with a copy of each entry of the other registry whose owner is alive. */
void sg_foreign_visit(void (*visit)(void *context, uint32_t number, struct sg_registry_entry *entry), void *context);

/* Bytes that one entry of the other registry asks for, has in flight and has promised. Use them for comparisons only:
 * such an entry can contain any number. */
uint64_t sg_foreign_bytes_of(const struct sg_registry_entry *entry);

/* The same for all live entries of the other registry. */
uint64_t sg_foreign_bytes(void);

/* In a forked child: forgets the other registry; the child finds it again when it joins. */
void sg_foreign_refork(void);

#endif
