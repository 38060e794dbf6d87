/*
 * thread_record.h - what each thread carries: the address of its record in the segment, and which layers it is inside
 * of.
 *
 * A thread gets its record on its first slow path and keeps it until it ends. The record stays, with its sums and
 * its credit; the next new thread takes it over, or a slow path gives the credit back (sg_thread_reap). Threads that
 * found no record have none: they use the slow path for everything.
 */
#ifndef SG_PRELOAD_ACCOUNT_THREAD_RECORD_H
#define SG_PRELOAD_ACCOUNT_THREAD_RECORD_H

#include "base/compiler.h"
#include "sparkguard_abi.h"

#include <stdbool.h>
#include <sys/single_threaded.h>

/* Account in one layer only: a call made from inside a hook of the same layer passes through uncounted. Heap calls of
 * the driver inside a CUDA hook still count; mappings made inside either do not, they back what is counted there.
 * SG_LAYER_CALL: a CUDA call is open (struct sg_open_call). SG_LAYER_CUDA: the driver is running in it. */
enum sg_layer { SG_LAYER_HEAP = 1u << 0, SG_LAYER_CUDA = 1u << 1, SG_LAYER_CALL = 1u << 2 };

/* A stack frame, and what it returns to: where somebody is inside a call, as long as the frame is there. A program
 * may leave by siglongjmp, as interactive languages do on Ctrl-C; then nobody tells us, and the frame is gone. */
struct sg_mark {
    uintptr_t frame; /* the address of its record: the caller's frame pointer, and the return address; 0: nobody's */
    uintptr_t returns_to;
};

/* Of the function that this is written in, or inlined in. The frame pointer is the record's address on both
 * architectures. */
#define SG_MARK_HERE() \
    ((struct sg_mark){(uintptr_t)__builtin_frame_address(0), ((const uintptr_t *)__builtin_frame_address(0))[1]})

/* The upper end of that function's frame. On x86-64 the record is next to it. On aarch64 gcc puts the record at the
 * lower end, below what else the frame holds. */
#if defined(__aarch64__) && !defined(__clang__)
#define SG_FRAME_END() ((uintptr_t)__builtin_dwarf_cfa())
#else
#define SG_FRAME_END() ((uintptr_t)__builtin_frame_address(0) + 2 * sizeof(uintptr_t))
#endif

/* The CUDA call of the program that this thread is in, and what others would wait for if it were left. open_call.h
 * undoes all of it. A request in flight is noted here right after the sum that all threads share: a handler that
 * jumps out just between the two, by a few instructions, leaves it in flight. */
struct sg_open_call {
    struct sg_mark mark; /* the hook */
    uint64_t flight_bytes, flight_pool;
    uint64_t judged_bytes;     /* growth of a memory pool that it was granted (mempool.c) */
    uint64_t headroom_bytes;   /* of a store for graphs, that it counts on (graph.c), */
    uint32_t room_device;      /* and whose */
    uint32_t pool, asked_pool; /* by number: that it is counted in; that it asks the driver about. 0: none */
    uint32_t free_begun;       /* of a block of a pool (pool_pieces.h) */
    bool has_turn, is_syncing; /* among those that wait to be alone in a pool; struct sg_mempool_sync */
    uint32_t cancel_holds;     /* while the thread is not cancelled; they nest */
    int cancel_state;          /* the thread's own, or SG_CANCEL_AS_IT_IS */
};
#define SG_CANCEL_AS_IT_IS (-1)

struct sg_thread {
    struct sg_record *record; /* NULL: take the slow path */
    struct sg_record
        *purse;           /* what the fastest ways of the heap pay from: the record, or one that is never good for it */
    uint32_t layers;      /* enum sg_layer */
    uint32_t is_forking;  /* it is between the handlers of a fork */
    uint32_t device;      /* that CUDA last said was current */
    const char *call;     /* the word the program used, while a forwarding export runs; else NULL */
    const void *caller;   /* and where that call returns to */
    struct sg_mark named; /* who has set `call` */
    struct sg_open_call open;
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
union sg_fork_page {
    struct {
        uint32_t is_armed;
        struct sg_fast_limits fast[SG_FAST_WAYS];
    };
    char bytes[SG_PAGE_MAX];
};
extern SG_INTERNAL union sg_fork_page sg_wipe;

/* Whether the page was armed: before that nothing is counted. */
bool sg_thread_has_been_armed(void);

/* Arms the page, which no process needs before its first slow path. False: it was armed and has been wiped, so this is
 * an unannounced child. */
bool sg_thread_arm(void);

/* Frees the records of threads that have ended, and gives their credit back. Looks at `most` of them, each time at
 * others: a system call for each. None in a process of one thread. */
void sg_thread_reap(uint32_t most);

/* Gives this thread a record, if there is one. */
void sg_thread_enter(void);

/* From here on a fast way of the heap is open, to the threads that have a record. */
void sg_thread_open_fast(enum sg_fast_way way, const struct sg_fast_limits *limits);

/* Whether the frame of a mark is gone, seen from a frame of the same thread that ends at `frame_end` (SG_FRAME_END).
 * Costs a system call where that lies below it. */
bool sg_mark_is_gone(const struct sg_mark *mark, uintptr_t frame_end);

/* Ends all that sg_thread_hold_cancel began. */
void sg_thread_let_all_cancels(void);

/* The part of sg_thread_hold_cancel for a process with threads. Alone, no other thread could cancel this one. */
void sg_thread_disable_cancel(void);

/* Between the two this thread is not cancelled: what it has in flight, or counts on, would stay so. Pairs, which
 * nest. */
static inline void sg_thread_hold_cancel(void)
{
    struct sg_open_call *open = &sg_self.open;
    if (SG_UNLIKELY(open->cancel_holds != 0)) {
        open->cancel_holds++;
        return;
    }
    open->cancel_state = SG_CANCEL_AS_IT_IS;
    open->cancel_holds = 1;
    if (__libc_single_threaded == 0)
        sg_thread_disable_cancel();
}

static inline void sg_thread_let_cancel(void)
{
    struct sg_open_call *open = &sg_self.open;
    if (SG_LIKELY(open->cancel_holds == 1 && open->cancel_state == SG_CANCEL_AS_IT_IS))
        open->cancel_holds = 0;
    else if (open->cancel_holds == 1)
        sg_thread_let_all_cancels();
    else if (open->cancel_holds != 0)
        open->cancel_holds--;
}

/* What this thread does with the heap until sg_thread_resume is not the program's: every call takes the slow path. */
struct sg_thread_pause {
    struct sg_record *purse;
    struct sg_mark mark;
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
