/*
 * measure.c - the probe of --check --cuda: takes and frees memory of the GPU, so that the library, which is preloaded, finds
 * out what it assumes of the driver (driver_facts.def). The driver is looked up at run time; nothing is linked.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "launch/check/check.h"

#define PINNED_BYTES ((size_t)2 << 20)
#define ROUNDS \
    4 /* one call that takes nothing proves nothing, and one beside another guarded process is not measured */
#define ATTRIBUTE_INTEGRATED 18

/* The calls of the driver, as in cuda.h: a device is an int, an address has 64 bits, an error is 0 for success. */
struct driver {
    int (*init)(unsigned int flags);
    int (*version)(int *version);
    int (*attribute)(int *value, int attribute, int device);
    int (*name)(char *name, int length, int device);
    int (*retain)(void **context, int device);
    int (*make_current)(void *context);
    int (*allocate)(uint64_t *address, size_t size);
    int (*free)(uint64_t address);
    int (*allocate_host)(void **pointer, size_t size, unsigned int flags);
    int (*free_host)(void *pointer);
};

static const char *const names[] = {
    "cuInit",          "cuDriverGetVersion", "cuDeviceGetAttribute", "cuDeviceGetName", "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent", "cuMemAlloc_v2",      "cuMemFree_v2",         "cuMemHostAlloc",  "cuMemFreeHost",
};
_Static_assert(sizeof(struct driver) == sizeof names / sizeof names[0] * sizeof(void *), "a name for each function");

/* Notes the first call that failed. Returns whether this one succeeded. */
static bool is_good(struct check_answer *answer, const char *call, int error)
{
    if (error != 0 && answer->failed_call[0] == '\0') {
        snprintf(answer->failed_call, sizeof answer->failed_call, "%s", call);
        answer->error = error;
    }
    return error == 0;
}

static bool look_up(struct driver *driver, struct check_answer *answer)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *functions[sizeof names / sizeof names[0]];
    const char *fault = handle == NULL ? dlerror() : NULL;
    snprintf(answer->driver, sizeof answer->driver, "%s", handle != NULL ? "libcuda.so.1" : "");
    snprintf(answer->driver_fault, sizeof answer->driver_fault, "%s", fault != NULL ? fault : "");
    for (size_t i = 0; handle != NULL && i < sizeof names / sizeof names[0]; i++)
        if ((functions[i] = dlsym(handle, names[i])) == NULL && is_good(answer, names[i], -1))
            return false;
    if (handle != NULL && answer->failed_call[0] == '\0')
        memcpy(driver, functions, sizeof functions); /* ISO C has no cast from void * to a function pointer */
    return handle != NULL && answer->failed_call[0] == '\0';
}

static bool begin_driver(const struct driver *driver, struct check_answer *answer)
{
    void *context = NULL;
    if (!is_good(answer, "cuInit", driver->init(0)))
        return false;
    (void)driver->version(&answer->cuda_version);
    (void)driver->name(answer->device, sizeof answer->device - 1, 0);
    (void)driver->attribute(&answer->is_integrated, ATTRIBUTE_INTEGRATED, 0);
    return is_good(answer, "cuDevicePrimaryCtxRetain", driver->retain(&context, 0)) &&
           is_good(answer, "cuCtxSetCurrent", driver->make_current(context));
}

void check_measure(struct check_answer *answer)
{
    struct driver driver;
    uint64_t address;
    void *pinned;
    if (!look_up(&driver, answer) || !begin_driver(&driver, answer))
        return;
    for (int i = 0; i < ROUNDS; i++)
        if (is_good(answer, "cuMemAlloc", driver.allocate(&address, CHECK_MEASURE_BYTES)))
            (void)is_good(answer, "cuMemFree", driver.free(address));
    if (is_good(answer, "cuMemHostAlloc", driver.allocate_host(&pinned, PINNED_BYTES, 0)))
        (void)is_good(answer, "cuMemFreeHost", driver.free_host(pinned));
}
