/*
 * runtime.c - hooks of the CUDA runtime's allocating functions, so that messages and reports name the function that the
 * program called.
 *
 * Nothing is judged here. The runtime makes exactly one driver call for each of these functions, and that call is
 * refused, so that the runtime's error state is its own. Several runtimes can live in one process (PyTorch's 12 beside
 * a program's 13). A call through this library's export goes to the runtime that the caller's own object would have
 * found. A call through dlsym goes to the runtime that dlsym was asked for.
 */
#include "base/compiler.h"
#include "hooks/cuda/mark.h"
#include "hooks/runtime.h"
#include "hooks/loaded.h"
#include "hooks/real.h"
#include "account/thread_record.h"

#include <string.h>

#include <cuda_runtime_api.h>

/* The header renames these functions if the per-thread default stream is on. These are the names of the exports. */
extern cudaError_t CUDARTAPI cudaMallocAsync_ptsz(void **devPtr, size_t size, cudaStream_t hStream);
extern cudaError_t CUDARTAPI cudaMallocFromPoolAsync_ptsz(void **ptr, size_t size, cudaMemPool_t memPool,
                                                          cudaStream_t stream);

/* Objects that call the exports, and the runtime function behind each. Each is looked up once. */
enum { CALLER_CAPACITY = 256, RUNTIME_CAPACITY = 4 };

struct caller {
    uintptr_t key;         /* page of the calling code, mixed with the hook; written last */
    sg_function real;      /* (atomic) */
    uint64_t unload_count; /* (atomic) objects unloaded when it was found; written after `real` */
};

static struct caller callers[CALLER_CAPACITY];

/* Returns whether a function lies in a runtime, whatever its file is called. A library that only wraps the allocating
 * functions does not define cudaGetLastError. */
static bool is_in_runtime(const void *function)
{
    struct sg_object object;
    struct sg_elf_symbols symbols;
    void *found;
    return sg_loaded_holding(function, &object) && sg_elf_symbols_open(&symbols, object.bias, object.dynamic) &&
           sg_elf_symbols_find(&symbols, "cudaGetLastError", &found);
}

/* Returns the function that the calling object would have bound to without this library. That is the next definition in
 * the global scope, if it is a wrapper and not a runtime of some version. Otherwise it is the definition in the
 * object's own scope: a library opened RTLD_LOCAL has its own runtime there. */
static sg_function look_up_for(const void *return_address, enum sg_hook hook)
{
    const char *name = sg_hook_table[hook].symbol;
    struct sg_object caller;
    void *next = sg_loaded_next(name), *real = NULL;
    /* The program, or a library preloaded before this one, means by the name the next definition after its own. */
    if (sg_loaded_holding(return_address, &caller) && !sg_loaded_is_ahead(&caller) &&
        (next == NULL || is_in_runtime(next)))
        real = sg_loaded_find(&caller, name);
    if (real == NULL)
        real = next;
    if (real == NULL) /* last resort: a tail call out of a library opened RTLD_LOCAL shows the caller of its caller */
        real = sg_loaded_anywhere("libcudart.so", name);
    sg_function function;
    memcpy(&function, &real, sizeof function);
    return function;
}

/* Callback of dl_iterate_phdr: stores the count of unloaded objects and stops. */
static int note_unload_count(struct dl_phdr_info *info, size_t size, void *count)
{
    (void)size;
    *(uint64_t *)count = info->dlpi_subs;
    return 1;
}

/* Returns how many objects were ever unloaded. After an unload another object may lie at the same addresses. */
static uint64_t count_unloads(void)
{
    uint64_t count = 0;
    (void)dl_iterate_phdr(note_unload_count, &count);
    return count;
}

/* Returns the runtime function for a call from `return_address`, from the table of callers or by a look-up. */
static sg_function real_for(const void *return_address, enum sg_hook hook)
{
    uintptr_t key = ((uintptr_t)return_address >> 12) * SG_HOOK_COUNT + hook;
    uint64_t unload_count = count_unloads();
    for (unsigned i = 0; i < CALLER_CAPACITY; i++) {
        struct caller *caller = &callers[(key + i) % CALLER_CAPACITY];
        uintptr_t held = sg_load_acquire(&caller->key);
        if (held == key && sg_load_acquire(&caller->unload_count) == unload_count) {
            sg_function known = sg_load_acquire(&caller->real);
            if (sg_load_acquire(&caller->unload_count) == unload_count && sg_load_acquire(&caller->key) == key)
                return known;
        }
        if (held != 0 && held != key)
            continue;
        sg_function real = look_up_for(return_address, hook);
        if (real != NULL && sg_cas_u64((uint64_t *)&caller->key, &held, 1)) { /* 1: one thread is filling it */
            sg_store_release(&caller->unload_count, UINT64_MAX);              /* pairs with the second load above */
            sg_fence();
            sg_store_release(&caller->real, real);
            sg_store_release(&caller->unload_count, unload_count);
            sg_store_release(&caller->key, key);
        }
        return real;
    }
    return look_up_for(return_address, hook);
}

/* The real function of each thunk. FORWARD defines, for one runtime function, the export and RUNTIME_CAPACITY thunks,
 * which dlsym hands out. `word` is the name that the program used. The outermost call gives the name: a runtime may
 * call its own exports. */
static sg_function thunk_real[SG_HOOK_COUNT][RUNTIME_CAPACITY];

/* The runtime function that this thread is inside of. Its calls of the exports are meant for the same runtime. */
static SG_THREAD_LOCAL sg_function inside;

#define CALLER (inside != NULL ? *(void **)(void *)&inside : __builtin_return_address(0))

/* Forgets a runtime function that the thread has left by siglongjmp. */
static inline void forget_left(uintptr_t frame_end)
{
    if (SG_UNLIKELY(sg_self.call != NULL) && sg_mark_is_gone(&sg_self.named, frame_end)) {
        sg_self.call = NULL;
        sg_self.caller = NULL;
    }
    if (sg_self.call == NULL)
        inside = NULL;
}

#define CALL_AS(name, word, real_function, ...) \
    forget_left(SG_FRAME_END()); \
    const char *outer = sg_self.call; \
    const void *outer_caller = sg_self.caller; \
    sg_function real = (real_function), outside = inside; \
    if (real == NULL) \
        return cudaErrorInsufficientDriver; \
    inside = real; \
    if (outer == NULL) \
        sg_self.named = SG_MARK_HERE(); \
    sg_self.call = outer != NULL ? outer : (word); \
    sg_self.caller = outer != NULL ? outer_caller : __builtin_return_address(0); \
    cudaError_t result = ((__typeof__(&name))real)(__VA_ARGS__); \
    sg_self.call = outer; \
    sg_self.caller = outer_caller; \
    inside = outside; \
    return result

#define THUNK(name, word, number, parameters, ...) \
    static cudaError_t CUDARTAPI name##_##number parameters \
    { \
        CALL_AS(name, word, sg_load_acquire(&thunk_real[SG_HOOK_##name][number]), __VA_ARGS__); \
    }

#define FORWARD_AS(name, word, parameters, ...) \
    THUNK(name, word, 0, parameters, __VA_ARGS__) \
    THUNK(name, word, 1, parameters, __VA_ARGS__) \
    THUNK(name, word, 2, parameters, __VA_ARGS__) \
    THUNK(name, word, 3, parameters, __VA_ARGS__) \
    SG_EXPORT cudaError_t CUDARTAPI name parameters \
    { \
        CALL_AS(name, word, real_for(CALLER, SG_HOOK_##name), __VA_ARGS__); \
    }

#define FORWARD(name, parameters, ...) FORWARD_AS(name, #name, parameters, __VA_ARGS__)

FORWARD(cudaMalloc, (void **devPtr, size_t size), devPtr, size)
FORWARD(cudaMallocManaged, (void **devPtr, size_t size, unsigned int flags), devPtr, size, flags)
FORWARD(cudaMallocHost, (void **ptr, size_t size), ptr, size)
FORWARD(cudaHostAlloc, (void **pHost, size_t size, unsigned int flags), pHost, size, flags)
FORWARD(cudaMallocPitch, (void **devPtr, size_t *pitch, size_t width, size_t height), devPtr, pitch, width, height)
FORWARD(cudaMalloc3D, (struct cudaPitchedPtr * pitchedDevPtr, struct cudaExtent extent), pitchedDevPtr, extent)
FORWARD(cudaMallocArray,
        (cudaArray_t * array, const struct cudaChannelFormatDesc *desc, size_t width, size_t height,
         unsigned int flags),
        array, desc, width, height, flags)
FORWARD(cudaMalloc3DArray,
        (cudaArray_t * array, const struct cudaChannelFormatDesc *desc, struct cudaExtent extent, unsigned int flags),
        array, desc, extent, flags)
FORWARD(cudaMallocMipmappedArray,
        (cudaMipmappedArray_t * mipmappedArray, const struct cudaChannelFormatDesc *desc, struct cudaExtent extent,
         unsigned int numLevels, unsigned int flags),
        mipmappedArray, desc, extent, numLevels, flags)
FORWARD(cudaMallocAsync, (void **devPtr, size_t size, cudaStream_t hStream), devPtr, size, hStream)
FORWARD_AS(cudaMallocAsync_ptsz, "cudaMallocAsync", (void **devPtr, size_t size, cudaStream_t hStream), devPtr, size,
           hStream)
FORWARD(cudaMallocFromPoolAsync, (void **ptr, size_t size, cudaMemPool_t memPool, cudaStream_t stream), ptr, size,
        memPool, stream)
FORWARD_AS(cudaMallocFromPoolAsync_ptsz, "cudaMallocFromPoolAsync",
           (void **ptr, size_t size, cudaMemPool_t memPool, cudaStream_t stream), ptr, size, memPool, stream)

/* Returns a thunk by its number. It is a switch, because the dynamic linker would have to relocate a table of addresses
 * at the start of every program. */
static sg_function thunk_of(enum sg_hook hook, unsigned number)
{
    switch ((unsigned)hook * RUNTIME_CAPACITY + number) {
#define SG_HOOK_LIBC(symbol)
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz)
#define SG_HOOK_NVML(symbol)
#define SG_HOOK_NVML_HIDDEN(symbol)
#define SG_ANSWER(symbol, number) \
    case SG_HOOK_##symbol *RUNTIME_CAPACITY + number: \
        return (sg_function)symbol##_##number;
#define SG_HOOK_RUNTIME(symbol) SG_ANSWER(symbol, 0) SG_ANSWER(symbol, 1) SG_ANSWER(symbol, 2) SG_ANSWER(symbol, 3)
#include "hooks/hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_NVML_HIDDEN
#undef SG_HOOK_RUNTIME
    default:
        return NULL;
    }
}

sg_function sg_runtime_thunk(enum sg_hook hook, sg_function real)
{
    sg_real_pin(real);
    for (unsigned i = 0; i < RUNTIME_CAPACITY; i++) {
        uint64_t none = 0;
        if (sg_load_acquire(&thunk_real[hook][i]) == real ||
            sg_cas_u64((uint64_t *)&thunk_real[hook][i], &none, (uint64_t)(uintptr_t)real) ||
            sg_load_acquire(&thunk_real[hook][i]) == real)
            return thunk_of(hook, i);
    }
    return real;
}
