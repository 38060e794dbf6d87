/*
 * stack.c - see stack.h.
 */
#include "admit/reclaim/stack.h"

#include "base/compiler.h"

#include <stdint.h>
#include <sys/auxv.h>

#define STACK_BYTES (UINT64_C(8) << 20) /* below the stack's end the kernel leaves 128 MiB to it (mmap_base) */

/* A word that each signal frame has, and where the stack pointer of the interrupted code is, in words from there. */
#if defined(__x86_64__)
static bool is_mark(uint64_t word)
{
    const uint64_t linux_selectors = 0x002b000000000033, xen_selectors = 0xe02b00000000e033; /* cs, gs, fs, ss */
    return word == linux_selectors || word == xen_selectors;
}
enum { TO_STACK_POINTER = -3 }; /* rsp, rip, eflags, and the mark */
#else
static bool is_mark(uint64_t word)
{
    return word == 0x0000021046508001; /* the head of the first record behind the registers: FPSIMD_MAGIC, its size */
}
enum { TO_STACK_POINTER = -4 }; /* sp, pc, pstate, padding, and the mark */
#endif

/* Reads frames of other functions, which sanitizers do not expect. */
__attribute__((no_sanitize("address", "thread"))) bool sg_stack_is_interrupted(const void *frame)
{
    uintptr_t begin = ((uintptr_t)frame + 7) & ~(uintptr_t)7, end = getauxval(AT_RANDOM) & ~(uintptr_t)7;
    if (begin >= end || end - begin > STACK_BYTES)
        return true;
    const volatile uint64_t *last = (const volatile uint64_t *)end;
    for (const volatile uint64_t *word = (const volatile uint64_t *)begin + 4; word < last; word++) {
        if (SG_UNLIKELY(is_mark(*word)) && word[TO_STACK_POINTER] > (uintptr_t)word && word[TO_STACK_POINTER] <= end)
            return true;
    }
    return false;
}
