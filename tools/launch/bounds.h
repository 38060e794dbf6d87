/*
 * bounds.h - the administrator's bounds (/etc/sparkguard.conf) for sparkguard --set. The library applies them in any
 * case; the launcher says so instead of setting what would have no effect.
 */
#ifndef SG_TOOLS_LAUNCH_BOUNDS_H
#define SG_TOOLS_LAUNCH_BOUNDS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sparkguard_bounds.h"

/* Returns the bounds of a user; a bound that no line sets is not set. Not thread-safe. */
struct sg_bounds launch_bounds_of(uid_t user);

/* Returns whether a job of this user may have this limit (0: it is not set, SG_UNKNOWN: none) and this reserve (0: it is
 * not set); if not, after a message on stderr. Root's --set is bounded as well. Not thread-safe. */
bool launch_bounds_allow(uid_t user, uint64_t limit_bytes, uint64_t reserve_bytes, uint64_t machine_bytes);

#endif
