/*
 * identity.c - the calls that change the user, the groups or the capabilities of the process.
 *
 * The kernel changes one thread, and the C library makes all other threads that it knows follow (nptl(7)). It does not
 * know this library's service threads. A service thread that kept root's rights would hand them to an intruder who
 * takes over the program later. Therefore the service threads end before the change, and start again with the rights
 * that the process has then. capset(2) changes one thread only in any case; a service thread then starts with the
 * rights of the thread that makes it. The bounds of the new user are read at the next decision.
 *
 * A service thread that waits for a disk ends when its system call returns. The change waits for that, up to five
 * seconds; later changes do not wait for the same thread again. If a file system hangs for longer, that thread keeps
 * the old rights until its system call returns. It then finishes its copy, in the library's own files, and ends. An
 * intruder who controls the program's memory by then could make it do more. The limit of five seconds exists because no
 * program may be kept from giving up its rights for longer.
 */
#include "admit/bounds.h"
#include "admit/headroom.h"
#include "base/compiler.h"
#include "base/options.h"
#include "hooks/real.h"
#include "shared/segment.h"
#include "watch/watchdog.h"

#include <errno.h>
#include <grp.h>
#include <unistd.h>

int capset(void *header, const void *data); /* no header of the C library declares it */

static void end_service_threads(void)
{
    int saved_errno = errno;
    if (!sg_options.is_disabled && sg_segment_is_own())
        sg_watchdog_end_helpers_surely();
    errno = saved_errno;
}

/* Another user has other bounds (/etc/sparkguard.conf). */
static void forget_bounds(void)
{
    if (sg_options.is_disabled || !sg_segment_is_own())
        return;
    sg_bounds_forget();
    sg_headroom_forget();
}

#define CHANGES_RIGHTS(name, parameters, ...) \
    SG_EXPORT int name parameters \
    { \
        end_service_threads(); \
        int answer = SG_REAL(name)(__VA_ARGS__); \
        forget_bounds(); \
        return answer; \
    }

CHANGES_RIGHTS(setuid, (uid_t user), user)
CHANGES_RIGHTS(setgid, (gid_t group), group)
CHANGES_RIGHTS(seteuid, (uid_t user), user)
CHANGES_RIGHTS(setegid, (gid_t group), group)
CHANGES_RIGHTS(setreuid, (uid_t real, uid_t effective), real, effective)
CHANGES_RIGHTS(setregid, (gid_t real, gid_t effective), real, effective)
CHANGES_RIGHTS(setresuid, (uid_t real, uid_t effective, uid_t saved), real, effective, saved)
CHANGES_RIGHTS(setresgid, (gid_t real, gid_t effective, gid_t saved), real, effective, saved)
CHANGES_RIGHTS(setgroups, (size_t count, const gid_t *groups), count, groups)
CHANGES_RIGHTS(initgroups, (const char *user, gid_t group), user, group)
CHANGES_RIGHTS(capset, (void *header, const void *data), header, data)
