/*
 * python_fork.c - see python_fork.h.
 */
#include "hooks/python_fork.h"

#include "base/elf_symbols.h"
#include "hooks/loaded.h"
#include "watch/own_process.h"
#include "watch/service_thread.h"
#include "watch/watchdog.h"

#include <stddef.h>
#include <string.h>

#define COUNTS_THREADS_SINCE 0x030c0000u /* Python 3.12, as Py_Version has it; older versions have no such variable */

static int resume(void *unused)
{
    (void)unused;
    sg_watchdog_resume_helpers();
    return 0;
}

/* The version of the interpreter in this process, which stays loaded. NULL: there is none that counts threads. */
static const unsigned long *find_version(void)
{
    const unsigned long *version = sg_elf_symbols_variable("Py_Version");
    return version != NULL && *version >= COUNTS_THREADS_SINCE ? version : NULL;
}

/* A function of that interpreter; NULL: it has none of this name. */
static void *find(const unsigned long *version, const char *name)
{
    struct sg_object interpreter;
    return version != NULL && sg_loaded_holding(version, &interpreter) ? sg_loaded_find(&interpreter, name) : NULL;
}

bool sg_python_fork_end_helpers(void)
{
    int (*is_initialized)(void) = NULL;
    uint32_t ours = sg_service_thread_count();
    const unsigned long *version = ours != 0 ? find_version() : NULL;
    if (version == NULL || sg_own_process_threads() > 1 + ours)
        return false;
    void *found = find(version, "Py_IsInitialized");
    memcpy(&is_initialized, &found, sizeof found);
    return is_initialized != NULL && is_initialized() != 0 && sg_watchdog_end_helpers();
}

void sg_python_fork_resume_helpers(void)
{
    int (*add_pending_call)(int (*)(void *), void *) = NULL;
    void *found = find(find_version(), "Py_AddPendingCall");
    memcpy(&add_pending_call, &found, sizeof found);
    if (add_pending_call == NULL || add_pending_call(resume, NULL) != 0)
        (void)resume(NULL);
}
