/*
 * identity.c - the calls that change whom the process acts for.
 *
 * The kernel changes one thread, and the C library asks all others that it knows to follow (nptl(7)). It does not know
 * ours: a helper that kept root's rights would hand them to whoever takes over the program later. So the helpers end
 * before, and begin again with what the process has then. capset(2) is one thread's alone in any case; a helper then
 * begins with the rights of its maker.
 *
 * A helper that waits for a disk ends when its call returns: the change waits for that, up to five seconds, and later
 * changes do not wait for the same thread again. A file system that hangs for longer leaves the old rights to that
 * thread until its call returns. The thread then finishes its copy, in the library's own files, and ends; but an
 * intruder who controls the program's memory by then could make it do more. No program is kept from giving up its
 * rights for longer than that.
 */
#include "base/compiler.h"
#include "admit/filler.h"
#include "base/options.h"
#include "hooks/real.h"
#include "shared/segment.h"
#include "watch/watchdog.h"

#include <errno.h>
#include <grp.h>
#include <unistd.h>

int capset(void *header, const void *data); /* in no header of the C library */

static void end_helpers(void)
{
    int saved_errno = errno;
    if (!sg_options.is_disabled && sg_segment_is_own()) {
        sg_watchdog_end_helpers_surely();
        sg_filler_stop();
    }
    errno = saved_errno;
}

#define CHANGES(name, parameters, ...) \
    SG_EXPORT int name parameters \
    { \
        end_helpers(); \
        return SG_REAL(name)(__VA_ARGS__); \
    }

CHANGES(setuid, (uid_t user), user)
CHANGES(setgid, (gid_t group), group)
CHANGES(seteuid, (uid_t user), user)
CHANGES(setegid, (gid_t group), group)
CHANGES(setreuid, (uid_t real, uid_t effective), real, effective)
CHANGES(setregid, (gid_t real, gid_t effective), real, effective)
CHANGES(setresuid, (uid_t real, uid_t effective, uid_t saved), real, effective, saved)
CHANGES(setresgid, (gid_t real, gid_t effective, gid_t saved), real, effective, saved)
CHANGES(setgroups, (size_t count, const gid_t *groups), count, groups)
CHANGES(initgroups, (const char *user, gid_t group), user, group)
CHANGES(capset, (void *header, const void *data), header, data)
