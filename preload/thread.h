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
    struct sg_record
        *purse;         /* what the fastest ways of the heap pay from: the record, or one that is never good for it */
    uint32_t layers;    /* enum sg_layer */
    uint32_t is_late;   /* its record has been given back */
    uint32_t device;    /* that CUDA last said was current */
    const char *call;   /* the word the program used, while a forwarding export runs; else NULL */
    const void *caller; /* and where that call returns to */
};

extern SG_INTERNAL SG_THREAD_LOCAL struct sg_thread sg_self;

/* What the fast ways of the heap take. All 0: nothing. */
struct sg_fast_limits {
    uint64_t request_bytes; /* requests below this */
    uint64_t address;       /* blocks below this address */
};

/* One is for glibc's heap, known block by block, the other for any other allocator. */
enum sg_fast_way { SG_FAST_GLIBC, SG_FAST_OTHER, SG_FAST_WAYS };

/* A page of its own that reads zero in a forked child (MADV_WIPEONFORK), even one made by a raw clone(2): there the
 * thread's record is still the parent's. A child that shares the address space (vfork, threads) sees it armed. */
union sg_wipe_page {
    struct {
        uint32_t is_armed;
        struct sg_fast_limits fast[SG_FAST_WAYS];
    };
    char bytes[SG_PAGE_MOST];
};
extern SG_INTERNAL union sg_wipe_page sg_wipe;

/* Arms the page, which no process needs before its first slow path. False: it was armed and has been wiped, so this is an
 * unannounced child. */
bool sg_thread_arm(void);

/* Set-up: the key whose destructor gives a thread's record back. Without it records are
 * not reused. */
void sg_thread_begin(void);

/* Gives this thread a record, if there is one. */
void sg_thread_enter(void);

/* From here on a fast way of the heap is open, to the threads that have a record. */
void sg_thread_open_fast(enum sg_fast_way way, const struct sg_fast_limits *limits);

/* What this thread does with the heap until sg_thread_resume is not the program's: every call takes the slow path. */
struct sg_thread_pause {
    struct sg_record *purse;
    uint32_t layers;
};
struct sg_thread_pause sg_thread_pause(void);
void sg_thread_resume(const struct sg_thread_pause *pause);

/* What a thread without a record pays from: whoever finds it short or beyond takes the slow path, which mends it. */
extern SG_INTERNAL struct sg_record sg_thread_no_purse;
#define SG_NO_CREDIT (INT64_MIN / 2) /* no thread ever gets it up to 0, nor down to where it turns */

/* In a forked child: only this thread is left. */
void sg_thread_refork(void);

#endif
