/*
 * allocating.c - the calls of allocating.h for scripts: build/sim/liballocating.so, loaded by test_every_call.py.
 */
#define __CUDA_API_VERSION_INTERNAL
#include "allocating.h"

#include <string.h>

static const struct allocating_call calls[] = {
#define SGSIM_FUNCTION(...)
#define SGSIM_ALLOCATES ALLOCATING_CALL
#include "functions.def"
#undef SGSIM_FUNCTION
};

enum { NO_SUCH_CALL = -1 };

static const struct allocating_call *find(const char *symbol)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (strcmp(calls[i].symbol, symbol) == 0)
            return &calls[i];
    return NULL;
}

int allocating_take(const char *symbol, union allocated *out, size_t size);
int allocating_free(const char *symbol, union allocated *out);

/* Calls the function as this library is linked to it: a preloaded hook, if there is one. */
int allocating_take(const char *symbol, union allocated *out, size_t size)
{
    const struct allocating_call *call = find(symbol);
    return call != NULL ? call->take(call->linked, out, size) : NO_SUCH_CALL;
}

int allocating_free(const char *symbol, union allocated *out)
{
    const struct allocating_call *call = find(symbol);
    return call != NULL ? call->free(out) : NO_SUCH_CALL;
}
