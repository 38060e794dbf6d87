/*
 * sim_core.h - what the files of the simulated driver share: objects, indexes, ledger, entry.
 *
 * Rule of the house: an exported function does SGSIM_ENTER, calls one inner function and returns
 * through sgsim_leave(). Between the two it holds the one lock, so inner functions never lock.
 * Nothing here calls malloc or libc's mmap: a library that interposes those must see nothing of
 * the simulator, as it sees nothing of a kernel driver.
 */
#ifndef SGSIM_SIM_CORE_H
#define SGSIM_SIM_CORE_H

#define __CUDA_API_VERSION_INTERNAL /* declares every variant under its exported name */
#include <cuda.h>

#include "graphics.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SGSIM_KIB ((size_t)1 << 10)
#define SGSIM_MIB ((size_t)1 << 20)
#define SGSIM_GIB ((size_t)1 << 30)
#define SGSIM_MAX_DEVICES 16
#define SGSIM_DEPENDENCIES 4              /* of a graph's node, at most */
#define SGSIM_GRANULARITY (2 * SGSIM_MIB) /* of VMM handles and of pool growth */

enum sgsim_function {
#define SGSIM_FUNCTION(symbol, base, version, stream) SGSIM_FN_##symbol,
#include "functions.def"
#undef SGSIM_FUNCTION
    SGSIM_FN_COUNT
};

/* Where bytes are booked. */
enum sgsim_kind {
    SGSIM_DEVICE,
    SGSIM_PINNED,
    SGSIM_MANAGED,
    SGSIM_ARRAY,
    SGSIM_CONTEXT,
    SGSIM_REGISTERED,
    SGSIM_KINDS,
    SGSIM_SHARED_PINNED = SGSIM_KINDS /* pinned memory that is the process's own: booked as pinned */
};

/* What an object is. Up to SGSIM_MAPPING its key is an address of the program's, after that a handle. */
enum sgsim_role {
    SGSIM_FREE_SLOT,
    SGSIM_LINEAR, /* cuMemAlloc*, cuMemAllocManaged */
    SGSIM_HOST,   /* cuMemHostAlloc, cuMemAllocHost */
    SGSIM_REGISTRATION,
    SGSIM_POOL_BLOCK,  /* owner: the segment it was cut from */
    SGSIM_FREED_BLOCK, /* of a pool, in a busy stream */
    SGSIM_GRAPH_BLOCK,
    SGSIM_IMPORT, /* of an allocation of another process, not booked; references: of cuIpcOpenMemHandle, which made it */
    SGSIM_MAPPING, /* owner: the handle behind it */
    SGSIM_RESERVATION,
    SGSIM_SEGMENT, /* what a pool reserved; owner: the pool, references: live blocks */
    SGSIM_HANDLE,  /* cuMemCreate */
    SGSIM_PLAIN_ARRAY,
    SGSIM_MIPMAPPED_ARRAY,
    SGSIM_POOL,
    SGSIM_CONTEXT_HANDLE,
    SGSIM_STREAM, /* next: its context; owner: the graph it captures */
    SGSIM_EVENT,
    SGSIM_GREEN_CONTEXT,
    SGSIM_GRAPH,
    SGSIM_GRAPH_NODE,
    SGSIM_GRAPH_EXEC,
    SGSIM_CHUNK /* pages that small blocks share; references: its blocks, charged: their bytes */
};

struct sgsim_pool {
    CUmemPoolProps props;
    struct sgsim_object *segments;
    uint64_t release_threshold, reserved, reserved_high, used, used_high;
    int reuse[3];
    bool is_default, is_doomed; /* doomed: destroyed by the program while blocks live */
    bool is_imported;           /* nothing can be allocated from it */
};

/* One thing the driver knows. Slots are reused, never unmapped: a stale handle is found out, not followed. */
struct sgsim_object {
    uintptr_t key;
    size_t size;       /* as the program asked */
    uintptr_t backing; /* host memory behind it, 0 if none of its own */
    size_t backing_size;
    size_t charged;  /* bytes in the ledger under kind */
    size_t resident; /* of lazy memory: bytes from its start that were touched */
    enum sgsim_role role;
    enum sgsim_kind kind;
    int device;
    unsigned int references; /* of a handle, a primary context, a segment; of shared pinned memory 1: it is resident */
    unsigned int mappings;   /* of a handle, and handles imported of it */
    unsigned int flags;      /* of a multicast object: devices of its team, and << 16 those that were added */
    bool is_active;          /* context: usable; mapping: access was granted */
    bool is_primary;
    CUresult error;             /* of a context: what a kernel left behind, and most calls answer from then on */
    struct sgsim_object *owner; /* the context, segment, pool or handle it belongs to */
    struct sgsim_object *next;
    union {
        struct sgsim_pool pool;
        CUmemAllocationProp prop;
        unsigned long long id; /* of a context: no two have the same */
        uintptr_t stream;      /* of a freed block */
        uint64_t exported;     /* of an import: the exporter's key; flags is its pid */
        struct {
            struct sgsim_object *chunk; /* NULL: it has pages of its own */
            size_t pages;               /* what it takes of the chunk, or in pages of its own; 0: SGSIM_CHUNK is off */
        } place;                        /* of a linear block on a device */
        struct {
            struct sgsim_object *on[SGSIM_DEPENDENCIES]; /* what it comes behind */
            size_t count;
        } node;
        struct {
            const void *thread;
            CUstreamCaptureMode mode;
            bool is_broken;
        } capture; /* of a stream that has an owner */
    } u;
};

/* Objects sorted by key. */
struct sgsim_index {
    struct sgsim_object **entries;
    size_t count, capacity;
};

enum sgsim_backing { SGSIM_LAZY, SGSIM_TOUCH, SGSIM_NONE };

/* All state; one lock guards it. */
struct sgsim_state {
    bool is_integrated, is_initialised;
    bool is_mig;                                /* all devices are instances of one card */
    bool is_pinned_shared;                      /* pinned memory is the process's shared memory */
    bool is_register_idle, is_register_missing; /* cuMemHostRegister locks nothing, or is not supported */
    bool is_managed_mapped;                     /* what of managed memory is touched is in the CPU's page tables */
    bool is_busy; /* what is freed asynchronously is outstanding until a synchronisation */
    enum sgsim_backing backing;
    int devices;
    int ordinal[SGSIM_MAX_DEVICES]; /* of the machine's devices, which each of these is (CUDA_VISIBLE_DEVICES) */
    size_t memory, context_bytes, host_bytes;
    struct sgsim_index memory_index; /* addresses: blocks, registrations, mappings */
    struct sgsim_index space_index;  /* reserved address ranges */
    struct sgsim_index handle_index; /* everything opaque */
    struct sgsim_object *primary[SGSIM_MAX_DEVICES];
    struct sgsim_object *default_pool[SGSIM_MAX_DEVICES], *current_pool[SGSIM_MAX_DEVICES];
    size_t pool_reserved, pool_step;
    bool is_pool_mute;    /* a pool says that it has reserved nothing */
    size_t chunk;         /* SGSIM_CHUNK; 0: a linear block takes what was asked for */
    size_t list_bytes;    /* SGSIM_LISTS */
    size_t resident_left; /* of SGSIM_RESIDENT */
};

extern struct sgsim_state sgsim;

/* What a call needs before it may do anything. */
enum sgsim_need { SGSIM_NEEDS_NOTHING, SGSIM_NEEDS_UNFORKED, SGSIM_NEEDS_INIT, SGSIM_NEEDS_CONTEXT };

/* Counts the call, takes the lock, lets a planned failure happen. On an error the lock is free again. */
CUresult sgsim_enter(enum sgsim_function function, enum sgsim_need need);
CUresult sgsim_leave(CUresult result);

#define SGSIM_ENTER(symbol, need) \
    do { \
        CUresult sgsim_entry_error = sgsim_enter(SGSIM_FN_##symbol, (need)); \
        if (sgsim_entry_error != CUDA_SUCCESS) \
            return sgsim_entry_error; \
    } while (0)

/* Indexes. Insert answers false when not even bookkeeping memory can be had. */
bool sgsim_index_insert(struct sgsim_index *index, struct sgsim_object *object);
void sgsim_index_remove(struct sgsim_index *index, const struct sgsim_object *object);
size_t sgsim_index_after(const struct sgsim_index *index, uintptr_t key); /* position of the first entry above key */
struct sgsim_object *sgsim_index_exact(const struct sgsim_index *index, uintptr_t key);
struct sgsim_object *sgsim_index_covering(const struct sgsim_index *index, uintptr_t address);
bool sgsim_index_overlaps(const struct sgsim_index *index, uintptr_t start, size_t size);

struct sgsim_object *sgsim_object_new(enum sgsim_role role);
void sgsim_object_recycle(struct sgsim_object *object);
struct sgsim_object *sgsim_handle_new(enum sgsim_role role); /* and entered in handle_index */
struct sgsim_object *sgsim_handle_find(const void *handle, enum sgsim_role role);
void sgsim_handle_drop(struct sgsim_object *object);

/* Raw memory. 0 means there is none. */
uintptr_t sgsim_map(size_t size, int protection, int flags);
void sgsim_unmap(uintptr_t address, size_t size);
uintptr_t sgsim_map_backing(enum sgsim_kind kind, size_t size, bool is_low, size_t *mapped);
uintptr_t sgsim_map_shared(size_t size, bool is_resident, size_t *mapped);
long sgsim_protect(uintptr_t address, size_t size, int protection);
void sgsim_discard(uintptr_t address, size_t size); /* the pages, not the range */
bool sgsim_move_pages(uintptr_t from, uintptr_t to, size_t size);
size_t sgsim_round_up(size_t value, size_t step); /* SIZE_MAX when that overflows */

/* Ledger: OUT_OF_MEMORY when the device has no room. Keeps the fake meminfo file in step. */
CUresult sgsim_charge(enum sgsim_kind kind, int device, size_t bytes);
void sgsim_release(enum sgsim_kind kind, int device, size_t bytes);
size_t sgsim_free_bytes(int device);

/* The same where the driver takes other than it was asked for: `bytes` are booked, `pages` taken. */
CUresult sgsim_charge_pages(enum sgsim_kind kind, int device, size_t bytes, size_t pages);
void sgsim_release_pages(enum sgsim_kind kind, int device, size_t bytes, size_t pages);

/* Charges a new block, which has its size, kind and device, or releases it: in chunks where it is linear memory of a
 * device. */
CUresult sgsim_chunk_charge(struct sgsim_object *block);
void sgsim_chunk_release(struct sgsim_object *block);

/* Allocations with a backing of their own, entered in memory_index, and the way back. is_low: below 4 GiB, for v1 pointers. */
CUresult sgsim_block_new(enum sgsim_role role, enum sgsim_kind kind, size_t size, bool is_low,
                         struct sgsim_object **out);
void sgsim_block_drop(struct sgsim_object *block);

/* Contexts and devices. */
struct sgsim_object *sgsim_current(void); /* NULL: none; after SGSIM_NEEDS_CONTEXT never */
bool sgsim_is_device(CUdevice device);
CUresult sgsim_stream_context(CUstream stream, struct sgsim_object **context);
CUresult sgsim_check_stream(CUstream stream);
CUresult sgsim_primary_retain(CUcontext *out, CUdevice device);
CUresult sgsim_primary_release(CUdevice device);

/* Between the files. */
void sgsim_memory_drop_context(const struct sgsim_object *context);
void sgsim_array_drop_context(const struct sgsim_object *context);
void sgsim_pool_free_block(struct sgsim_object *block);
void sgsim_pool_reset_device(int device);
void sgsim_pool_synchronize(uintptr_t stream); /* sgsim_stream_key; 0: all of them */
uintptr_t sgsim_stream_key(CUstream stream, bool is_ptsz);
struct sgsim_object *sgsim_pool_find(CUmemoryPool handle);
struct sgsim_object *sgsim_pool_new(const CUmemPoolProps *props);
struct sgsim_object *sgsim_vmm_find(CUmemGenericAllocationHandle handle); /* NULL: it has no reference */
struct sgsim_object *sgsim_vmm_handle_new(enum sgsim_kind kind, int device,
                                          size_t size);       /* not booked; one reference */
struct sgsim_object *sgsim_graph_of_capture(CUstream stream); /* NULL: the stream does not capture */
CUresult
sgsim_capture_check(void); /* of a potentially unsafe call: whether a capture prohibits it, and is broken by it */
CUresult sgsim_graph_capture_alloc(struct sgsim_object *graph, size_t size, int device, CUdeviceptr *pointer);
CUresult sgsim_graph_capture_free(struct sgsim_object *graph, CUdeviceptr pointer);
void sgsim_graph_free_block(struct sgsim_object *block);
void sgsim_graph_reset_device(int device);
struct sgsim_object *sgsim_pool_of_block(const struct sgsim_object *block);
void sgsim_core_configure(void);
void sgsim_ledger_configure(void);

#endif
