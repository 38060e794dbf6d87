/*
 * sim_chunk.c - chunks of linear device memory (SGSIM_CHUNK): what the driver takes where it is asked for less.
 *
 * A block of up to half a chunk shares a chunk with others, in steps of 512 bytes; a larger one takes whole chunks
 * of its own. A chunk goes back when its last block does. Blocks have no addresses within a chunk: free room that is
 * in pieces costs nothing here.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#define STEP ((size_t)512)

static struct sgsim_object *chunks;

static bool is_linear(const struct sgsim_object *block)
{
    return sgsim.chunk != 0 && block->role == SGSIM_LINEAR && block->kind == SGSIM_DEVICE;
}

static struct sgsim_object *find_chunk(int device, size_t room)
{
    struct sgsim_object *chunk = chunks;
    while (chunk && (chunk->device != device || chunk->size - chunk->charged < room))
        chunk = chunk->next;
    return chunk;
}

static struct sgsim_object *new_chunk(int device)
{
    struct sgsim_object *chunk = sgsim_object_new(SGSIM_CHUNK);
    if (chunk) {
        chunk->device = device;
        chunk->size = sgsim.chunk;
        chunk->next = chunks;
        chunks = chunk;
    }
    return chunk;
}

/* Out of its chunk, which goes if it was the last one: the pages that go with it. */
static size_t leave_chunk(const struct sgsim_object *block)
{
    struct sgsim_object *chunk = block->u.place.chunk, **link = &chunks;
    chunk->charged -= block->u.place.pages;
    if (--chunk->references != 0)
        return 0;
    while (*link != chunk)
        link = &(*link)->next;
    *link = chunk->next;
    sgsim_object_recycle(chunk);
    return sgsim.chunk;
}

static enum sgsim_kind kind_of(const struct sgsim_object *block)
{
    return block->role == SGSIM_HOST && sgsim.is_pinned_shared ? SGSIM_SHARED_PINNED : block->kind;
}

CUresult sgsim_chunk_charge(struct sgsim_object *block)
{
    if (!is_linear(block))
        return sgsim_charge(kind_of(block), block->device, block->size);
    size_t taken = block->u.place.pages = sgsim_round_up(block->size, sgsim.chunk);
    if (block->size <= sgsim.chunk / 2) {
        block->u.place.pages = sgsim_round_up(block->size, STEP);
        struct sgsim_object *chunk = find_chunk(block->device, block->u.place.pages);
        taken = chunk ? 0 : sgsim.chunk;
        chunk = chunk ? chunk : new_chunk(block->device);
        if (!chunk)
            return CUDA_ERROR_OUT_OF_MEMORY;
        block->u.place.chunk = chunk;
        chunk->charged += block->u.place.pages;
        chunk->references++;
    }
    CUresult error = sgsim_charge_pages(block->kind, block->device, block->size, taken);
    if (error != CUDA_SUCCESS && block->u.place.chunk)
        leave_chunk(block);
    return error;
}

void sgsim_chunk_release(struct sgsim_object *block)
{
    if (!is_linear(block)) {
        sgsim_release(kind_of(block), block->device, block->charged);
        return;
    }
    size_t given = block->u.place.chunk ? leave_chunk(block) : block->u.place.pages;
    sgsim_release_pages(block->kind, block->device, block->charged, given);
}
