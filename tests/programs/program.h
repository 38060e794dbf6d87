/*
 * program.h - what the test programs share: sizes, and a condition without which a program ends.
 */
#ifndef TESTS_PRELOAD_PROGRAMS_PROGRAM_H
#define TESTS_PRELOAD_PROGRAMS_PROGRAM_H

#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* Writes the condition to stderr and ends the process with 1. Asks for no memory. */
#define NEED(condition) \
    do \
        if (!(condition)) { \
            (void)!write(2, #condition "\n", sizeof #condition); \
            _exit(1); \
        } \
    while (0)

#endif
