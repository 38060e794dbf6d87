/*
 * why.c - finds out why the library is not in a process: by its program, its environment and its mappings. Tells the
 * command line and the variables of one.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/elf.h"
#include "common/procfs.h"
#include "common/text.h"
#include "model/host/host.h"
#include "sparkguard_abi.h"

const char *const host_why_text[HOST_WHY_COUNT] = {
    [HOST_WHY_STATIC] = "static program",
    [HOST_WHY_MUSL] = "linked with musl",
    [HOST_WHY_FOREIGN] = "another architecture",
    [HOST_WHY_NOT_FOUND] = "did not find the library",
    [HOST_WHY_NO_PRELOAD] = "no LD_PRELOAD",
    [HOST_WHY_DISABLED] = "SPARKGUARD_DISABLE=1",
    [HOST_WHY_ELSEWHERE] = "guarded in another directory",
};

enum { VARIABLES_CAPACITY = 1 << 17 }; /* the kernel takes longer environments, which are cut */

static char variables[VARIABLES_CAPACITY]; /* of one process, for host_why_not_loaded() and host_why_unguarded() */

/* Returns whether a process waits in the kernel and no signal reaches it. Its mappings and its environment may not be
 * readable until that ends: whoever reads them would wait too. */
static bool is_stuck(uint32_t pid)
{
    char status[1024];
    return procfs_read(pid, "status", status, sizeof status) > 0 && strstr(status, "\nState:\tD") != NULL;
}

char *host_command(uint32_t pid)
{
    char text[SG_COMMAND_BYTES];
    long length = procfs_read(pid, "cmdline", text, sizeof text);
    while (length > 0 && text[length - 1] == '\0')
        length--;
    for (long i = 0; i < length; i++)
        if (text[i] == '\0')
            text[i] = ' ';
    return length > 0 ? text_copy(text, (size_t)length) : NULL;
}

char *host_variable(uint32_t pid, const char *name)
{
    static char all[VARIABLES_CAPACITY]; /* not `variables`, which the launcher's scans use meanwhile */
    const size_t length = strlen(name);
    long left = is_stuck(pid) ? 0 : procfs_read(pid, "environ", all, sizeof all);
    for (const char *at = all; left > 0;) {
        size_t bytes = strnlen(at, (size_t)left);
        if (bytes > length && strncmp(at, name, length) == 0 && at[length] == '=')
            return text_copy(at + length + 1, bytes - length - 1);
        at += bytes + 1;
        left -= (long)bytes + 1;
    }
    return NULL;
}

enum host_why host_why_not_loaded(uint32_t pid, const char *library)
{
    char path[PROCFS_PATH_CAPACITY];
    struct elf_facts facts, ours;
    snprintf(path, sizeof path, "%s/proc/%" PRIu32 "/exe", procfs_live_root, pid);
    if (!elf_read(path, &facts) || !elf_read("/proc/self/exe", &ours))
        return HOST_WHY_UNKNOWN;
    if (facts.class != ours.class || facts.machine != ours.machine)
        return HOST_WHY_FOREIGN;
    if (facts.loader[0] == '\0')
        return HOST_WHY_STATIC;
    if (elf_is_of_musl(&facts))
        return HOST_WHY_MUSL;
    long length = procfs_read(pid, "environ", variables, sizeof variables);
    bool is_named = length > 0 && memmem(variables, (size_t)length, library, strlen(library)) != NULL;
    return is_named ? HOST_WHY_NOT_FOUND : HOST_WHY_NO_PRELOAD;
}

enum host_why host_why_unguarded(uint32_t pid)
{
    static const char library[] = "libsparkguard.so", disabled[] = "SPARKGUARD_DISABLE=1";
    if (is_stuck(pid))
        return HOST_WHY_UNKNOWN;
    if (!procfs_maps(pid, library)) {
        enum host_why why = host_why_not_loaded(pid, library);
        /* an unreadable environment says nothing */
        return why == HOST_WHY_NO_PRELOAD && procfs_read(pid, "environ", variables, sizeof variables) < 0
                   ? HOST_WHY_UNKNOWN
                   : why;
    }
    long length = procfs_read(pid, "environ", variables, sizeof variables);
    bool is_disabled = length > 0 && memmem(variables, (size_t)length, disabled, sizeof disabled) != NULL;
    return is_disabled ? HOST_WHY_DISABLED : HOST_WHY_ELSEWHERE;
}

char *host_unguarded_reason(const struct host_container *record, uint32_t pid)
{
    const char *why = host_why_text[host_why_unguarded(pid)];
    if (record != NULL && !record->is_guarded && record->reason != NULL)
        return text_format("its runtime kept out: %s", record->reason);
    return why != NULL ? text_copy(why, strlen(why)) : NULL;
}
