/*
 * pool_memory.h - the memory pools of stream-ordered allocation: what each has reserved, as the ledger has it.
 *
 * A pool is entered when the program gets to know it, or first allocates from it, and stays until it is destroyed and its
 * last block is freed. It is asked for its reserve only from its first allocation on. A query that fails changes nothing
 * but that the pool is asked again at the next occasion. Any thread; under sg_vmm_lock inside, but for the questions.
 */
#ifndef SG_POOL_MEMORY_H
#define SG_POOL_MEMORY_H

#include "cuda_call.h"

/* What is known of a pool; all zero of one that is not known. */
struct sg_pool_view {
    enum sg_domain domain;
    uint32_t device;
    bool is_known;
    uint64_t unwanted_bytes; /* of its reserve: refused, but the driver did not take it back */
};

struct sg_pool_view sg_pool_memory_of(CUmemoryPool handle);

/* The program was given this pool. */
void sg_pool_learn(CUmemoryPool handle, uint32_t device, enum sg_domain domain);

/* What the pool says of itself. */
CUresult sg_pool_ask(CUmemoryPool handle, CUmemPool_attribute attribute, uint64_t *bytes);

/* An allocation from a pool is being counted. */
struct sg_pool_growth {
    CUmemoryPool handle;
    uint32_t device; /* of a pool that is not known yet */
    enum sg_domain domain;
    uint64_t admitted_bytes; /* so much it may have grown */
    uint64_t before_bytes;   /* answer: what was charged for it */
    uint64_t excess_bytes;   /* answer: so much more it has grown */
};

/* Books what the pool has reserved after an allocation from it. */
void sg_pool_book(struct sg_pool_growth *growth);

/* The same after what was too much has been given back: what stays of it is unwanted. */
void sg_pool_book_refused(const struct sg_pool_growth *growth);

/* One block more in that pool: the bits of its table value that name the pool, or 0: the block must count by itself, for
 * the driver cannot tell what this pool has reserved. */
uint64_t sg_pool_add_block(CUmemoryPool handle, uint64_t bytes);

/* A pool that is to be destroyed may not be asked any more, and who is asking has got the answer: 0 if it is not known, else what to tell when it has been. */
uint32_t sg_pool_begin_destroy(CUmemoryPool handle);
void sg_pool_end_destroy(uint32_t number, CUmemoryPool handle, CUresult result);

/* In a forked child: nobody is asking. */
void sg_pool_refork(void);

#endif
