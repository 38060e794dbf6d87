/*
 * look.h - has the guard look at everything that this process holds.
 */
#ifndef TESTS_PROGRAMS_LOOK_H
#define TESTS_PROGRAMS_LOOK_H

#include <stdlib.h>

/* Asks for more than any machine has. Before the guard refuses that, it scans all promises, unless it has just refused
 * as much or less: so each request is for less than the one before. Returns NULL. */
static inline void *ask_for_too_much(void)
{
    static size_t bytes = (size_t)1 << 45;
    return malloc(__atomic_sub_fetch(&bytes, 65536, __ATOMIC_RELAXED));
}

#endif
