/*
 * answer.c - the probe: this tool, started again with the library preloaded. It asks for memory, looks how the calls of
 * the CUDA driver are found, and writes one answer. It does not initialise CUDA, which could hang on a hung driver;
 * only the probe of --cuda does (measure.c).
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "launch/check/check.h"
#include "sparkguard.h"

#define LARGE_BYTES (UINT64_C(64) << 20)
#define KEPT_BYTES (UINT64_C(4) << 20)

#define CUDA_VERSION_ASKED 12000 /* of cuGetProcAddress: all drivers that know its second version know this one */

static bool refuses_mmap(void)
{
    void *range = mmap(NULL, LARGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool is_refused = range == MAP_FAILED && errno == ENOMEM;
    if (range != MAP_FAILED)
        munmap(range, LARGE_BYTES);
    return is_refused;
}

static void ask_for_memory(struct check_answer *answer)
{
    struct sparkguard_stats before, after;
    void *volatile large; /* volatile: the compiler must not take out a malloc whose block is not used */
    void *volatile kept;
    bool has_before = sparkguard_stats(&before) == 0;
    kept = malloc(KEPT_BYTES);
    bool has_after = sparkguard_stats(&after) == 0;
    answer->is_active = sparkguard_active() == 1;
    answer->is_counted = has_before && has_after && kept != NULL && after.live_bytes >= before.live_bytes + KEPT_BYTES;
    large = malloc(LARGE_BYTES);
    answer->is_malloc_refused = large == NULL && errno == ENOMEM;
    answer->is_mmap_refused = refuses_mmap();
    free(large);
    free(kept);
}

/* Returns whether a function belongs to the library that also has sparkguard_active(). */
static bool is_ours(void *function)
{
    Dl_info found, ours;
    void *active = dlsym(RTLD_DEFAULT, "sparkguard_active");
    return function != NULL && active != NULL && dladdr(function, &found) != 0 && dladdr(active, &ours) != 0 &&
           found.dli_fbase == ours.dli_fbase;
}

/* Asks the driver for a function as the CUDA runtime does. */
static void *ask_driver(void *handle)
{
    void *get = dlsym(handle, "cuGetProcAddress_v2"), *function = NULL;
    int (*ask)(const char *, void **, int, uint64_t, int *);
    int found = 0;
    memcpy(&ask, &get, sizeof ask); /* ISO C has no cast from void * to a function pointer */
    return get != NULL && ask("cuMemAlloc", &function, CUDA_VERSION_ASKED, 0, &found) == 0 ? function : NULL;
}

static void look_at_driver(struct check_answer *answer)
{
    struct link_map *map = NULL;
    void *handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (handle == NULL) {
        const char *fault = dlerror();
        if (fault != NULL && strstr(fault, "No such file") == NULL)
            snprintf(answer->driver_fault, sizeof answer->driver_fault, "%s", fault);
        return;
    }
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != NULL)
        snprintf(answer->driver, sizeof answer->driver, "%s", map->l_name);
    answer->is_hooked[CHECK_EXPORT] = is_ours(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    answer->is_hooked[CHECK_DLSYM] = is_ours(dlsym(handle, "cuMemAlloc_v2"));
    answer->is_hooked[CHECK_PROC_ADDRESS] = is_ours(ask_driver(handle));
}

/* Holds a block that is large enough for a record, so that the record shows how this process is guarded.
 * sparkguard_stats joins the registry; a request that the cached snapshot serves does not. */
static void hold_memory(struct check_answer *answer)
{
    static void *volatile kept; /* until the probe ends */
    struct sparkguard_stats stats;
    kept = malloc(KEPT_BYTES);
    (void)sparkguard_stats(&stats);
    answer->is_active = sparkguard_active() == 1;
    answer->is_counted = kept != NULL;
}

void check_answer_inside(char **argv)
{
    int answers, hold, kind;
    char byte;
    struct check_answer answer = {0};
    if (argv[1] == NULL || sscanf(argv[1], CHECK_INSIDE_OPTION "%d,%d,%d", &answers, &hold, &kind) != 3)
        return;
    if (kind == CHECK_PROBE_LIMITED) {
        ask_for_memory(&answer);
    } else if (kind == CHECK_PROBE_CUDA) {
        check_measure(&answer);
    } else {
        hold_memory(&answer);
        look_at_driver(&answer);
    }
    while (write(answers, &answer, sizeof answer) < 0 && errno == EINTR)
        continue;
    while (read(hold, &byte, 1) < 0 && errno == EINTR)
        continue;
    exit(0);
}
