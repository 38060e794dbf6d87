/*
 * python_fork.c - see python_fork.h.
 */
#include "hooks/python_fork.h"

#include "base/elf_symbols.h"
#include "base/loaded.h"
#include "base/procfs.h"
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

/* A function of the interpreter in this process, which stays loaded. NULL: there is none that counts threads. */
static void *find(const char *name)
{
    struct sg_object interpreter;
    const unsigned long *version = sg_elf_symbols_variable("Py_Version");
    if (version == NULL || *version < COUNTS_THREADS_SINCE || !sg_loaded_holding(version, &interpreter))
        return NULL;
    return sg_loaded_find(&interpreter, name);
}

bool sg_python_fork_end_helpers(void)
{
    int (*is_initialized)(void) = NULL;
    uint32_t ours = sg_service_thread_count();
    if (ours == 0 || sg_elf_symbols_variable("Py_Version") == NULL || sg_procfs_threads(0) > 1 + ours)
        return false;
    void *found = find("Py_IsInitialized");
    memcpy(&is_initialized, &found, sizeof found);
    return is_initialized != NULL && is_initialized() != 0 && sg_watchdog_end_helpers();
}

void sg_python_fork_resume_helpers(void)
{
    int (*add_pending_call)(int (*)(void *), void *) = NULL;
    void *found = find("Py_AddPendingCall");
    memcpy(&add_pending_call, &found, sizeof found);
    if (add_pending_call == NULL || add_pending_call(resume, NULL) != 0)
        (void)resume(NULL);
}
