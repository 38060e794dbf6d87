/*
 * thread.h - what each thread carries: the address of its record in the segment, and which layers it is inside of.
 *
 * A thread gets its record on its first slow path and keeps it until it ends; the record stays, with its sums, and the
 * next new thread adopts it. Threads that found no record, and threads whose destructors still run after they gave
 * theirs back, have none: they use the slow path for everything.
 */
#ifndef SG_THREAD_H
#define SG_THREAD_H

#include "compiler.h"
#include "sparkguard_abi.h"

#include <stdbool.h>

/* Account in one layer only: a call made from inside a hook of the same layer passes through uncounted. Heap calls of
 * the driver inside a CUDA hook still count; mappings made inside either do not, they back what is counted there. */
enum sg_layer { SG_LAYER_HEAP = 1u << 0, SG_LAYER_CUDA = 1u << 1 };

struct sg_thread {
    struct sg_record *record; /* NULL: take the slow path */
    uint32_t layers;          /* enum sg_layer */
    uint32_t is_late;         /* its record has been given back */
    const char *call;         /* the word the program used, while a forwarding export runs; else NULL */
};

extern SG_THREAD_LOCAL struct sg_thread sg_self;

/* A page of its own that reads zero in a forked child (MADV_WIPEONFORK), even one made by a raw clone(2): there the
 * thread's record is still the parent's. A child that shares the address space (vfork, threads) sees it armed. */
union sg_wipe_page {
    uint32_t is_armed;
    char bytes[SG_PAGE_MOST];
};
extern union sg_wipe_page sg_wipe;

/* What sg_wipe.is_armed must be in the process that armed it: where they differ, this is an unannounced child. */
extern uint32_t sg_wipe_expected;

/* Set-up: the page that tells a raw clone, and the key whose destructor gives a thread's record back. Without it records are
 * not reused. */
void sg_thread_begin(void);

/* Gives this thread a record, if there is one. */
void sg_thread_enter(void);

/* In a forked child: only this thread is left. */
void sg_thread_refork(void);

#endif
