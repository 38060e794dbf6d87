/*
 * sandbox.c - see sandbox.h.
 */
#include "sandbox.h"

#include "atomics.h"
#include "syscall.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define NAME "\nSeccomp:\t"

static uint32_t was_told; /* (atomic) it could be read, once */
static uint32_t filtered; /* (atomic) found once, for ever */

/* Of /proc/self/status: '0', '1', '2', or '0' where the kernel has no filters; or why it cannot be read, -errno. In small pieces, for
 * the thread may have little stack. */
static int filter_mode(void)
{
    char text[512];
    size_t length = 0;
    int mode = '0';
    long got, fd = sg_sys_openat((int)SG_AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return (int)fd;
    while ((got = sg_sys_read((int)fd, text + length, sizeof text - 1 - length)) > 0) {
        length += (size_t)got;
        text[length] = '\0';
        const char *found = strstr(text, NAME);
        if (found != NULL && found[sizeof NAME - 1] != '\0') {
            mode = (unsigned char)found[sizeof NAME - 1];
            break;
        }
        size_t kept = length < sizeof NAME ? length : sizeof NAME; /* it may be cut in two */
        memmove(text, text + length - kept, kept);
        length = kept;
    }
    (void)sg_sys_close((int)fd);
    return got < 0 ? (int)got : mode;
}

/* Without a file system, or without a number for a file, the kernel has answered and no filter. Neither has one where a policy
 * lets nobody look (EACCES, of a security module), unless this process once could. */
static bool is_silence(int error)
{
    return error == -EACCES ? sg_load_relaxed(&was_told) != 0
                            : error != -ENOENT && error != -EMFILE && error != -ENFILE;
}

bool sg_sandbox_is_on(void)
{
    if (sg_load_relaxed(&filtered) != 0)
        return true;
    int mode = filter_mode();
    if (mode < 0)
        return is_silence(mode);
    if (sg_load_relaxed(&was_told) == 0)
        sg_store_relaxed(&was_told, 1u);
    if (mode != '0')
        sg_store_relaxed(&filtered, 1u);
    return mode != '0';
}
