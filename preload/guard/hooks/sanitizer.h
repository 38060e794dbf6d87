/*
 * sanitizer.h - a sanitizer's runtime (TSan, LSan, ASan and their like) behind this library.
 *
 * Such a runtime replaces the heap, mmap and the threads' functions, and calls them while it begins: nothing of this
 * library may run in between. So every call passes through, in a program that was linked with a shared runtime. Where
 * the runtime comes first (in the program itself, or earlier in LD_PRELOAD), the heap's calls do not come here, and the
 * library counts what it sees, as usual.
 */
#ifndef SG_PRELOAD_HOOKS_SANITIZER_H
#define SG_PRELOAD_HOOKS_SANITIZER_H

#include <stdbool.h>

/* Whether every call must pass through. Takes no lock and calls nothing of the C library. Any thread, any time. */
bool sg_sanitizer_is_behind(void);

#endif
