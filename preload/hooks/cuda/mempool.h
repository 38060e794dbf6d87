/*
 * mempool.h - the memory pools of stream-ordered allocation: what each has reserved, as the ledger has it.
 *
 * A pool is entered when the program gets to know it, or first allocates from it, and stays until it is destroyed and
 * its last block is freed. It is asked for its reserve only from its first allocation on. A query that fails changes
 * nothing but that the pool is asked again at the next occasion. Any thread; under sg_vmm_lock inside, but for the
 * questions.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_MEMPOOL_H
#define SG_PRELOAD_HOOKS_CUDA_MEMPOOL_H

#include "admit/admission.h"
#include "hooks/cuda/driver.h"

/* What is known of a pool; all zero of one that is not known. */
struct sg_mempool_view {
    enum sg_domain domain;
    uint32_t device;
    bool is_known;
    uint64_t unwanted_bytes; /* of its reserve: refused, but the driver did not take it back */
};

struct sg_mempool_view sg_mempool_memory_of(CUmemoryPool handle);

/* The program was given this pool. */
void sg_mempool_learn(CUmemoryPool handle, uint32_t device, enum sg_domain domain);

/*
 * One allocation from a pool, from before it is judged until its memory is counted. Its growth is judged before it
 * happens:
 *   - Every request is in flight by the most that it can make its pool grow.
 *   - It is not judged if it is alone in its pool, and a piece of the pool is known to be free for it (pool_pieces.h).
 *   - Every other request is judged as if nothing in the pool were free.
 *   - What does not fit so waits for its turn to be alone. If there is no piece for it then, what nobody uses is
 *     given back, and it is judged once more.
 * So the driver may serve those under way in any order, and no growth comes unjudged but the rest of a pool's step.
 */
struct sg_mempool_flight {
    CUmemoryPool handle;
    uint32_t device; /* of a pool that is not known yet */
    enum sg_domain domain;
    uint64_t size_bytes;
    uint64_t key;          /* of the stream: what tells it from all others */
    uint32_t stream;       /* its number */
    uint32_t number;       /* of the pool; 0: it is not known */
    uint64_t growth_bytes; /* the most the pool grows for it */
    uint64_t taken_bytes;  /* answer: of that, what it has grown */
    uint64_t excess_bytes; /* answer: growth that nobody has judged */
    uint64_t before_bytes; /* answer: what the pool has reserved without all that */
    uint64_t grown_bytes;  /* what the pool has grown, where this one alone made it */
    uint64_t flights;      /* of the pool when this one began, */
    uint64_t syncs_ended;  /* and synchronisations */
    bool is_alone;         /* none was under way then */
    bool has_headroom;     /* there is a piece for it, though another may take that */
};

/* Begins it. True: its room is there, and nothing is to be judged. The growth is in flight then, or else it may be. */
bool sg_mempool_begin(struct sg_mempool_flight *flight, struct sg_request *request);

/* Its growth has been judged, and is in flight. */
void sg_mempool_judged(struct sg_mempool_flight *flight);

/* Waits for its turn, at most three seconds, with nothing in flight. It stays alone until the turn ends, at most for as
 * long as others wait. True: as above. */
bool sg_mempool_begin_turn(struct sg_mempool_flight *flight, struct sg_request *request);

/* Whether it is alone, less than a step of its pool, and as much as that is free: then it passes what may be had by
 * less than a step. */
bool sg_mempool_may_pass(const struct sg_mempool_flight *flight);

/* Whether the pool holds what no block uses. True: it is told to give back all it can, before the turn ends. */
bool sg_mempool_begin_trim(const struct sg_mempool_flight *flight);

void sg_mempool_end_turn(void);

/* The driver has granted it: counts what the pool has reserved. */
void sg_mempool_book(struct sg_mempool_flight *flight);

/* The same after the block at that address, which was too much, has been given back: what stays of it is unwanted. */
void sg_mempool_book_refused(const struct sg_mempool_flight *flight, uint64_t address);

/* The open call is over, granted or not: it counts in no pool, has no turn, asks no pool and synchronises nothing
 * any more. */
void sg_mempool_end(void);

/* A block that is about to be freed goes in the order of that stream, and not at once. */
void sg_mempool_free_in(uint64_t block, uint64_t address, uint64_t key);

/* A call of the program by which pools give memory back. Blocks freed before in that stream, or on that device
 * (SG_SYNC_CONTEXT), is free for all streams behind it. */
#define SG_SYNC_CONTEXT UINT64_C(0)
#define SG_SYNC_NOTHING UINT64_MAX

struct sg_mempool_sync {
    uint64_t key; /* of the stream */
    uint64_t frees;
};
struct sg_mempool_sync sg_mempool_begin_sync(uint64_t key);

/* It has returned. Where it succeeded, brings the ledger in step as sg_mempool_memory_refresh does. */
void sg_mempool_end_sync(const struct sg_mempool_sync *sync, uint32_t device, bool is_done);

/* One block more in that pool, at that address: the bits of its table value that name the pool, or 0: the block must
 * count by itself, for the driver cannot tell what this pool has reserved. */
uint64_t sg_mempool_add_block(const struct sg_mempool_flight *flight, uint64_t address);

/* A pool that is to be destroyed may not be asked any more, and who is asking has got the answer: 0 if it is not known,
 * else what to tell when it has been. */
uint32_t sg_mempool_begin_destroy(CUmemoryPool handle);
void sg_mempool_end_destroy(uint32_t number, CUmemoryPool handle, CUresult result);

/* Brings the ledger in step with what every such pool has reserved; asks the driver once for each. */
void sg_mempool_memory_refresh(void);

/* The same where a query failed before; else one load. */
void sg_mempool_memory_catch_up(void);

/* A block of a pool has been freed; a destroyed pool goes with its last one. */
void sg_mempool_block_gone(uint64_t block);

/* A block at that address is about to be freed, and it has been, or that failed. */
void sg_mempool_begin_free(uint64_t block, uint64_t address);
void sg_mempool_end_free(uint64_t block, uint64_t address, bool is_freed);

/* How many pools have lost their blocks with the primary context of a device, which has ended, or was not known to be
 * there (not `has_ended`); and whether the pool of a block is one of those. */
uint32_t sg_mempool_emptied(uint32_t device, bool has_ended);
bool sg_mempool_is_emptied(uint64_t block);

/* In a forked child: nobody is asking, and nothing is under way. */
void sg_mempool_refork(void);

#endif
