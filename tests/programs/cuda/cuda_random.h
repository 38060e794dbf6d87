/*
 * cuda_random.h - what random CUDA programs share: numbers that follow from a seed, and calls that must succeed.
 */
#ifndef TESTS_PRELOAD_PROGRAMS_CUDA_RANDOM_H
#define TESTS_PRELOAD_PROGRAMS_CUDA_RANDOM_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const char *seed; /* of this run, for messages */

/* The next number (xorshift64); *state is not 0. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: seed %s: %s: %d\n", program_invocation_short_name, seed, what, result);
        exit(1);
    }
}

#endif
