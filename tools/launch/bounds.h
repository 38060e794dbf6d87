/*
 * bounds.h - the administrator's bounds (/etc/sparkguard.conf) for sparkguard --set. The library applies them in any
 * case; the launcher says so instead of setting what would have no effect.
 */
#ifndef SG_TOOLS_LAUNCH_BOUNDS_H
#define SG_TOOLS_LAUNCH_BOUNDS_H

#include <stdbool.h>
#include <stdint.h>

/* Returns whether this user may set this limit (0: it is not set, SG_UNKNOWN: none) and this reserve (0: it is not
 * set); if not, after a message on stderr. Root may set anything. *_base: the memory that a percentage refers to. */
bool launch_bounds_allow(uint64_t limit_bytes, uint64_t limit_base, uint64_t reserve_bytes, uint64_t reserve_base);

#endif
