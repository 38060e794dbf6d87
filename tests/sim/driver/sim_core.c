/*
 * sim_core.c - the ground the simulated driver stands on: raw memory, objects, indexes, and the
 * one way into and out of every exported function (count, lock, planned failure, state check).
 *
 * Promises: no libc allocation and no call that an interposing library could see, except
 * pthread_mutex_* and getenv. Everything but sgsim_enter() is called with the lock held.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include "cuda_sim.h"
#include "sim_faults.h"
#include "sim_hold.h"
#include "sim_machine.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4 /* Linux 5.7 */
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000 /* Linux 4.17 */
#endif
#define SLAB_BYTES (64 * SGSIM_KIB)
#define LOW_FIRST ((uintptr_t)256 * SGSIM_MIB)
#define LOW_STEP ((uintptr_t)SGSIM_MIB)
#define LOW_END ((uintptr_t)4 * SGSIM_GIB)
#define PAGE_BYTES ((size_t)sysconf(_SC_PAGESIZE))

struct sgsim_state sgsim;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long calls[SGSIM_FN_COUNT];
static unsigned long blocked_calls; /* (atomic) */
static bool is_blocking_watched;    /* (atomic) a system call more for each of the driver's */
static struct sgsim_object *free_slots;
static __thread const struct sgsim_hold *behind __attribute__((tls_model("initial-exec"))); /* this call */
static bool is_configured;

/* Wiped by the kernel in every child with memory of its own, and asked without a system call, of which a real driver's
 * shortest functions make none either. */
#define PAGE_MOST 65536
static union {
    bool is_owner; /* has called, and is no child of who did */
    char bytes[PAGE_MOST];
} mark __attribute__((aligned(PAGE_MOST)));

static void fork_prepare(void)
{
    pthread_mutex_lock(&lock);
}

static void fork_done(void)
{
    pthread_mutex_unlock(&lock);
}

static void fork_done_in_child(void)
{
    mark.is_owner = false; /* where the kernel does not wipe it */
    sgsim_machine_forget();
    pthread_mutex_unlock(&lock);
}

/* A driver is not usable in a child forked after the parent used it; the child is told so, as by a real one. */
static bool is_forked_child(void)
{
    return sgsim.is_initialised && !mark.is_owner;
}

static void first_call(void)
{
    if (!is_configured) {
        sgsim_core_configure();
        sgsim_ledger_configure();
        sgsim_machine_configure();
        sgsim_faults_configure();
        sgsim_hold_configure();
        pthread_atfork(fork_prepare, fork_done, fork_done_in_child);
        (void)syscall(SYS_madvise, &mark, sizeof mark, 18 /* MADV_WIPEONFORK, Linux 4.14 */);
        is_configured = true;
    }
    if (!sgsim.is_initialised) /* so that a child forked before cuInit is an owner of its own */
        mark.is_owner = true;
}

/* Questions and the ends of contexts still work. */
static bool is_deaf_to_errors(enum sgsim_function function)
{
    const char *name = sgsim_function_name(function);
    return strncmp(name, "cuCtx", 5) == 0 || strncmp(name, "cuDevice", 8) == 0 || strncmp(name, "cuGet", 5) == 0;
}

static void note_blocked(void)
{
    sigset_t blocked;
    if (__atomic_load_n(&is_blocking_watched, __ATOMIC_RELAXED) && pthread_sigmask(SIG_BLOCK, NULL, &blocked) == 0 &&
        sigismember(&blocked, SIGURG) == 1)
        __atomic_fetch_add(&blocked_calls, 1, __ATOMIC_RELAXED);
}

/* As drivers do, which keep lists in the program's heap. */
static bool has_host_memory(void)
{
    if (sgsim.host_bytes == 0)
        return true;
    void *volatile block = malloc(sgsim.host_bytes);
    free(block);
    return block != NULL;
}

CUresult sgsim_enter(enum sgsim_function function, enum sgsim_need need)
{
    note_blocked();
    sgsim_hold_dawdle();
    pthread_mutex_lock(&lock);
    first_call();
    calls[function]++;
    const struct sgsim_hold *hold = sgsim_hold_due(function);
    bool is_behind = hold && sgsim_hold_is_behind(hold);
    if (hold && !is_behind) { /* other threads may call meanwhile */
        pthread_mutex_unlock(&lock);
        sgsim_hold_wait(hold);
        pthread_mutex_lock(&lock);
    }
    sgsim_machine_settle_if_due();
    CUresult error = has_host_memory() ? sgsim_faults_due(function) : CUDA_ERROR_UNKNOWN;
    if (error == CUDA_SUCCESS && need != SGSIM_NEEDS_NOTHING) {
        const struct sgsim_object *context = sgsim_current();
        if (is_forked_child() || (need >= SGSIM_NEEDS_INIT && !sgsim.is_initialised))
            error = CUDA_ERROR_NOT_INITIALIZED;
        else if (need == SGSIM_NEEDS_CONTEXT && !context)
            error = CUDA_ERROR_INVALID_CONTEXT;
        else if (need == SGSIM_NEEDS_CONTEXT && !context->is_active)
            error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
        else if (context && !is_deaf_to_errors(function))
            error = context->error;
    }
    behind = is_behind ? hold : NULL;
    return error == CUDA_SUCCESS ? error : sgsim_leave(error);
}

CUresult sgsim_leave(CUresult result)
{
    const struct sgsim_hold *hold = behind;
    behind = NULL;
    pthread_mutex_unlock(&lock);
    if (hold)
        sgsim_hold_wait(hold);
    sgsim_hold_dawdle();
    return result;
}

/* For the questions of tests and the exit report, which are no driver calls. */
void sgsim_quiet_enter(void)
{
    pthread_mutex_lock(&lock);
    first_call();
}

void sgsim_quiet_leave(void)
{
    pthread_mutex_unlock(&lock);
}

bool sgsim_quiet_try_enter(void)
{
    return !is_forked_child() && pthread_mutex_trylock(&lock) == 0;
}

void sgsim_break(int code)
{
    sgsim_quiet_enter();
    struct sgsim_object *context = sgsim_current();
    if (context)
        context->error = (CUresult)code;
    sgsim_quiet_leave();
}

unsigned long sgsim_blocked_calls(void)
{
    __atomic_store_n(&is_blocking_watched, true, __ATOMIC_RELAXED);
    return __atomic_load_n(&blocked_calls, __ATOMIC_RELAXED);
}

unsigned long sgsim_calls_of(enum sgsim_function function)
{
    return calls[function];
}

/* ---- raw memory ---- */

size_t sgsim_round_up(size_t value, size_t step)
{
    return value > SIZE_MAX - (step - 1) ? SIZE_MAX : (value + step - 1) / step * step;
}

uintptr_t sgsim_map(size_t size, int protection, int flags)
{
    long address =
        syscall(SYS_mmap, NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0L);
    return address == -1 ? 0 : (uintptr_t)address;
}

void sgsim_unmap(uintptr_t address, size_t size)
{
    if (address)
        syscall(SYS_munmap, address, size);
}

/* The functions of CUDA 2 return 32-bit pointers. */
static uintptr_t map_low(size_t size, int protection, int flags)
{
    int all_flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE | flags;
    for (uintptr_t hint = LOW_FIRST; hint < LOW_END && size <= LOW_END - hint; hint += LOW_STEP) {
        long address = syscall(SYS_mmap, hint, size, protection, all_flags, -1, 0L);
        if (address != -1 && (uintptr_t)address == hint)
            return hint;
        if (address != -1) /* a kernel before 4.17 takes the address for a hint */
            sgsim_unmap((uintptr_t)address, size);
    }
    return 0;
}

/* Host memory that stands for `size` bytes of this kind: the CPU must reach pinned and managed memory in every mode. */
uintptr_t sgsim_map_backing(enum sgsim_kind kind, size_t size, bool is_low, size_t *mapped)
{
    size_t whole = sgsim_round_up(size, PAGE_BYTES);
    bool is_host_visible = kind == SGSIM_PINNED || kind == SGSIM_MANAGED;
    int protection = sgsim.backing == SGSIM_NONE && !is_host_visible ? PROT_NONE : PROT_READ | PROT_WRITE;
    bool is_populated =
        sgsim.backing == SGSIM_TOUCH && kind != SGSIM_MANAGED; /* managed memory is lazy on a Spark too */
    if (whole == SIZE_MAX)
        return 0;
    *mapped = whole;
    return (is_low ? map_low : sgsim_map)(whole, protection, is_populated ? MAP_POPULATE : 0);
}

/* "/dev/zero (deleted)" in the process's map, as pinned memory is there. */
uintptr_t sgsim_map_shared(size_t size, bool is_resident, size_t *mapped)
{
    size_t whole = sgsim_round_up(size, PAGE_BYTES);
    int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    long address = whole == SIZE_MAX ? -1 : syscall(SYS_mmap, NULL, whole, PROT_READ | PROT_WRITE, flags, -1, 0L);
    if (address == -1)
        return 0;
    *mapped = whole;
    volatile char *bytes = (volatile char *)address;
    for (size_t at = 0, page = PAGE_BYTES; is_resident && at < whole; at += page)
        bytes[at] = 0; /* an emulator may drop MAP_POPULATE */
    return (uintptr_t)address;
}

long sgsim_protect(uintptr_t address, size_t size, int protection)
{
    return syscall(SYS_mprotect, address, size, protection);
}

void sgsim_discard(uintptr_t address, size_t size)
{
    syscall(SYS_madvise, address, size, MADV_DONTNEED);
}

/* The pages behind one range, moved behind another; what was there is gone, `from` stays mapped and empty. */
bool sgsim_move_pages(uintptr_t from, uintptr_t to, size_t size)
{
    long moved = syscall(SYS_mremap, from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to);
    return moved != -1;
}

/* ---- objects ---- */

struct sgsim_object *sgsim_object_new(enum sgsim_role role)
{
    if (!free_slots) {
        uintptr_t slab = sgsim_map(SLAB_BYTES, PROT_READ | PROT_WRITE, 0);
        if (!slab)
            return NULL;
        struct sgsim_object *slots = (struct sgsim_object *)slab;
        for (size_t i = 0; i < SLAB_BYTES / sizeof *slots; i++) {
            slots[i].next = free_slots;
            free_slots = &slots[i];
        }
    }
    struct sgsim_object *object = free_slots;
    free_slots = object->next;
    memset(object, 0, sizeof *object);
    object->role = role;
    return object;
}

void sgsim_object_recycle(struct sgsim_object *object)
{
    object->role = SGSIM_FREE_SLOT;
    object->next = free_slots;
    free_slots = object;
}

struct sgsim_object *sgsim_handle_new(enum sgsim_role role)
{
    struct sgsim_object *object = sgsim_object_new(role);
    if (!object)
        return NULL;
    object->key = (uintptr_t)object;
    if (sgsim_index_insert(&sgsim.handle_index, object))
        return object;
    sgsim_object_recycle(object);
    return NULL;
}

struct sgsim_object *sgsim_handle_find(const void *handle, enum sgsim_role role)
{
    struct sgsim_object *object = sgsim_index_exact(&sgsim.handle_index, (uintptr_t)handle);
    return object && object->role == role ? object : NULL;
}

void sgsim_handle_drop(struct sgsim_object *object)
{
    sgsim_index_remove(&sgsim.handle_index, object);
    sgsim_object_recycle(object);
}

/* ---- indexes ---- */

size_t sgsim_index_after(const struct sgsim_index *index, uintptr_t key)
{
    size_t low = 0, high = index->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (index->entries[middle]->key > key)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct sgsim_object *sgsim_index_exact(const struct sgsim_index *index, uintptr_t key)
{
    size_t after = sgsim_index_after(index, key);
    return after > 0 && index->entries[after - 1]->key == key ? index->entries[after - 1] : NULL;
}

struct sgsim_object *sgsim_index_covering(const struct sgsim_index *index, uintptr_t address)
{
    size_t after = sgsim_index_after(index, address);
    struct sgsim_object *object = after > 0 ? index->entries[after - 1] : NULL;
    return object && address - object->key < object->size ? object : NULL;
}

bool sgsim_index_overlaps(const struct sgsim_index *index, uintptr_t start, size_t size)
{
    if (sgsim_index_covering(index, start))
        return true;
    size_t after = sgsim_index_after(index, start);
    return after < index->count && index->entries[after]->key - start < size;
}

static bool grow(struct sgsim_index *index)
{
    size_t wanted = index->capacity ? index->capacity * 2 : 1024;
    uintptr_t room = sgsim_map(wanted * sizeof *index->entries, PROT_READ | PROT_WRITE, 0);
    if (!room)
        return false;
    if (index->count)
        memcpy((void *)room, index->entries, index->count * sizeof *index->entries);
    sgsim_unmap((uintptr_t)index->entries, index->capacity * sizeof *index->entries);
    index->entries = (struct sgsim_object **)room;
    index->capacity = wanted;
    return true;
}

bool sgsim_index_insert(struct sgsim_index *index, struct sgsim_object *object)
{
    if (index->count == index->capacity && !grow(index))
        return false;
    size_t at = sgsim_index_after(index, object->key);
    memmove(&index->entries[at + 1], &index->entries[at], (index->count - at) * sizeof *index->entries);
    index->entries[at] = object;
    index->count++;
    return true;
}

void sgsim_index_remove(struct sgsim_index *index, const struct sgsim_object *object)
{
    size_t at = sgsim_index_after(index, object->key);
    if (at == 0 || index->entries[at - 1] != object)
        return;
    memmove(&index->entries[at - 1], &index->entries[at], (index->count - at) * sizeof *index->entries);
    index->count--;
}

/* ---- blocks ---- */

/* Resident as far as SGSIM_RESIDENT goes, for the machine that runs the tests has less than the simulated one. */
static void map_pinned(struct sgsim_object *block)
{
    block->references = block->size <= sgsim.resident_left;
    block->backing = sgsim_map_shared(block->size, block->references, &block->backing_size);
    sgsim.resident_left -= block->references ? block->size : 0;
}

static void unmap_block(struct sgsim_object *block)
{
    if (block->role == SGSIM_HOST && block->references)
        sgsim.resident_left += block->size;
    sgsim_unmap(block->backing, block->backing_size);
}

CUresult sgsim_block_new(enum sgsim_role role, enum sgsim_kind kind, size_t size, bool is_low,
                         struct sgsim_object **out)
{
    struct sgsim_object *block = sgsim_object_new(role);
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block->kind = kind;
    block->owner = sgsim_current();
    block->device = block->owner->device;
    block->size = block->charged = size;
    CUresult error = sgsim_chunk_charge(block);
    if (error == CUDA_SUCCESS) {
        if (role == SGSIM_HOST && sgsim.is_pinned_shared)
            map_pinned(block);
        else
            block->backing = sgsim_map_backing(kind, size, is_low, &block->backing_size);
        block->key = block->backing;
        if (block->key && sgsim_index_insert(&sgsim.memory_index, block)) {
            *out = block;
            return CUDA_SUCCESS;
        }
        unmap_block(block);
        sgsim_chunk_release(block);
        error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    sgsim_object_recycle(block);
    return error;
}

/* The ledger goes first to zero and the address last, so that nobody can hold the address while it is still booked. */
void sgsim_block_drop(struct sgsim_object *block)
{
    sgsim_index_remove(&sgsim.memory_index, block);
    sgsim_chunk_release(block);
    sgsim_machine_give(block->resident, SGSIM_TOUCHED);
    unmap_block(block);
    sgsim_object_recycle(block);
}
