/*
 * lock_all.h - the real call of mlockall, which leaves this library's tables unlocked.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_LOCK_ALL_H
#define SG_PRELOAD_HOOKS_MMAP_LOCK_ALL_H

/* As mlockall. RLIMIT_MEMLOCK is compared with what the program has mapped, and not with the registry and the unused
 * part of the segment, which need no lock. -1 with errno: nothing is locked that was not locked before. Any thread. */
int sg_lock_all(int flags);

#endif
