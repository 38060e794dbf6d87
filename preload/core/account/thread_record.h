/*
 * thread_record.h - the thread-local state: the thread's record in the segment, and the layers that the thread is
 * inside of.
 *
 * A thread gets its record on its first slow path and keeps it until the thread ends. The record outlives the thread,
 * with its sums and its credit. The next new thread takes the record over, or a slow path releases the credit
 * (sg_thread_reap). If no record is free, the thread has none and uses the slow path for every call.
 */
#ifndef SG_PRELOAD_ACCOUNT_THREAD_RECORD_H
#define SG_PRELOAD_ACCOUNT_THREAD_RECORD_H

#include "base/compiler.h"
#include "sparkguard_abi.h"

#include <stdbool.h>

/* The layers that a thread is inside of. A call from inside a hook of the same layer passes through uncounted, so that
 * memory is counted in one layer only. Heap calls of the driver inside a CUDA hook count. Mappings made inside either
 * layer do not count: they back memory that is counted there. SG_LAYER_CALL: a CUDA call is open (struct sg_open_call).
 * SG_LAYER_CUDA: the driver is running in that call. */
enum sg_layer { SG_LAYER_HEAP = 1u << 0, SG_LAYER_CUDA = 1u << 1, SG_LAYER_CALL = 1u << 2 };

/* A stack frame and its return address: a thread is inside a call as long as the frame exists. A program may leave a
 * call by siglongjmp, as interactive languages do on Ctrl-C. No code of ours runs then; only the missing frame shows
 * it. */
struct sg_mark {
    uintptr_t frame; /* address of the frame record: the caller's frame pointer, then the return address; 0: no mark */
    uintptr_t returns_to;
};

/* The mark of the function that uses this macro, or that it is inlined into. The frame pointer is the address of the
 * frame record on both architectures. */
#define SG_MARK_HERE() \
    ((struct sg_mark){(uintptr_t)__builtin_frame_address(0), ((const uintptr_t *)__builtin_frame_address(0))[1]})

/* The upper end of that function's frame. On x86-64 the frame record is at this end. On aarch64 gcc puts the record at
 * the lower end, below the rest of the frame. */
#if defined(__aarch64__) && !defined(__clang__)
#define SG_FRAME_END() ((uintptr_t)__builtin_dwarf_cfa())
#else
#define SG_FRAME_END() ((uintptr_t)__builtin_frame_address(0) + 2 * sizeof(uintptr_t))
#endif

/* What is noted before a call for device memory, to measure what it took (admit/reclaim/pool_room.h). Unexplained: by
 * no counter of the kernel. */
struct sg_pool_figures {
    uint64_t unexplained_bytes;
    uint64_t own_bytes, others_bytes; /* device memory of guarded processes */
    uint64_t most_pooled_bytes, proven_bytes;
    bool is_quiet;  /* no other request for device memory was in flight */
    bool is_listed; /* NVML had listed the living processes */
};

/* The CUDA call of the program that this thread is in, and everything that other threads or processes would wait for if
 * the program left the call by a jump. open_call.h undoes all of it. Known gap: a request in flight is noted here a few
 * instructions after it is added to the sum of all threads. A handler that jumps out between the two leaves the request
 * in flight. */
struct sg_open_call {
    struct sg_mark mark;                  /* the frame of the hook */
    uint64_t flight_bytes, flight_source; /* the request in flight and its constraint */
    uint64_t judged_bytes;                /* growth of a memory pool that was granted to the call (mempool.c) */
    uint64_t headroom_bytes;              /* free bytes of a graph pool that the call relies on (graph.c) */
    uint32_t headroom_device;             /* the device of that graph pool */
    uint32_t pool;                        /* number of the memory pool that counts the call as in flight; 0: none */
    uint32_t asked_pool;                  /* number of the pool that the call is querying the driver about; 0: none */
    uint32_t free_begun;                  /* result of sg_pieces_begin_free for a block that is being freed */
    bool has_turn;                        /* the call holds the turn of calls that wait to be alone in a pool */
    bool is_syncing;                      /* between sg_mempool_begin_sync and _end_sync */
    uint32_t cancel_holds;                /* nesting depth of sg_thread_hold_cancel */
    struct sg_pool_figures before;        /* the figures before the call, if the request is_measured */
    int cancel_state;                     /* the thread's own cancel state to restore, or SG_CANCEL_AS_IT_IS */
};
#define SG_CANCEL_AS_IT_IS (-1)

struct sg_thread {
    struct sg_record *record; /* NULL: take the slow path */
    struct sg_record *credit; /* pays on the heap's fast path: the record, or sg_thread_no_credit */
    uint32_t layers;          /* enum sg_layer */
    uint32_t is_forking;      /* the thread is between the handlers of a fork */
    uint32_t device;          /* the current device, as CUDA last reported it */
    const char *call;         /* the function name that the program used, while a forwarding export runs; else NULL */
    const void *caller;       /* the return address of that call */
    struct sg_mark named;     /* the frame that set `call` */
    bool is_giving;           /* runs the callback of sparkguard_on_pressure(): its requests ask nobody in turn */
    uint64_t refused_count;   /* requests of this thread that were refused; those only observed excluded */
    struct sg_open_call open;
};

extern SG_INTERNAL SG_THREAD_LOCAL struct sg_thread sg_self;

/* The limits of a heap fast path. All 0: the fast path is closed. */
struct sg_fast_limits {
    uint64_t request_bytes; /* the fast path serves requests below this size */
    uint64_t address;       /* the fast path frees blocks below this address */
};

/* The two heap fast paths: for glibc's heap, whose block headers are known, and for any other allocator. */
enum sg_fast_way { SG_FAST_GLIBC, SG_FAST_OTHER, SG_FAST_WAYS };

/* The fork-detection page: reads zero in a forked child (MADV_WIPEONFORK), also in one made by a raw clone(2), where
 * sg_self.record is still the parent's. A child that shares the address space (vfork, threads) sees the page armed. */
union sg_fork_page {
    struct {
        uint32_t is_armed;
        struct sg_fast_limits fast[SG_FAST_WAYS];
    };
    char bytes[SG_PAGE_MAX];
};
extern SG_INTERNAL union sg_fork_page sg_wipe;

/* Whether this process or its parent has armed the fork-detection page. Nothing is counted before that. */
bool sg_thread_has_been_armed(void);

/* Arms the fork-detection page, on the first slow path of the process. Returns false if the page was armed and has been
 * wiped: this process is a child whose fork handlers did not run. */
bool sg_thread_arm(void);

/* Frees the records of ended threads and releases their credit. Checks at most `max_records` records, other ones at
 * each call, with one system call each. Makes no system call in a process with one thread. */
void sg_thread_reap(uint32_t max_records);

/* Gives this thread a record, if one is free. */
void sg_thread_enter(void);

/* Opens a heap fast path, for threads that have a record. */
void sg_thread_open_fast(enum sg_fast_way way, const struct sg_fast_limits *limits);

/* Ends all holds of sg_thread_hold_cancel, and restores the thread's own cancel state. */
void sg_thread_let_all_cancels(void);

/* The part of sg_thread_hold_cancel for a process with several threads. No other thread exists to cancel the only
 * one. */
void sg_thread_disable_cancel(void);

/* Points to the C library's __libc_single_threaded (glibc 2.32), or to 0 where the C library has none. Set by
 * sg_thread_find_single, which set-up calls. */
extern SG_INTERNAL const char *sg_thread_is_single;
void sg_thread_find_single(void);

/* Between hold and let this thread is not cancelled: its bytes in flight and the headroom it relies on would stay
 * counted for ever. The pairs nest. */
static inline void sg_thread_hold_cancel(void)
{
    struct sg_open_call *open = &sg_self.open;
    if (SG_UNLIKELY(open->cancel_holds != 0)) {
        open->cancel_holds++;
        return;
    }
    open->cancel_state = SG_CANCEL_AS_IT_IS;
    open->cancel_holds = 1;
    if (*sg_thread_is_single == 0)
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

/* From now on the heap calls of this thread are not counted as the program's: each takes the slow path, which passes it
 * through. For threads of the library. */
void sg_thread_count_nothing(void);

/* The record that threads without a record pay from. Its credit is always too low for a malloc and always too high for
 * a free, so that the fast path takes the slow path, which resets this credit. */
extern SG_INTERNAL struct sg_record sg_thread_no_credit;
#define SG_NO_CREDIT (INT64_MIN / 2) /* so far from 0 and from overflow that no sum of thread updates reaches either */

/* In a forked child: takes the parent's record from this thread, the only one left, and arms the page again. */
void sg_thread_atfork_child(void);

#endif
