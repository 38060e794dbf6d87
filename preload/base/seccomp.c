/*
 * seccomp.c - see seccomp.h.
 */
#include "base/seccomp.h"

#include "base/atomics.h"
#include "base/syscall.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

static uint32_t was_told; /* (atomic) it could be read, once */
static uint32_t filtered; /* (atomic) found once, for ever */

/* What /proc/self/status says behind `name`, '0' where it does not have it; or why it cannot be read, -errno. In small
 * pieces, for the thread may have little stack. */
static int status_digit(const char *name)
{
    char text[512];
    size_t length = 0, name_length = strlen(name);
    int mode = '0';
    long got, fd = sg_sys_openat((int)SG_AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return (int)fd;
    while ((got = sg_sys_read((int)fd, text + length, sizeof text - 1 - length)) > 0) {
        length += (size_t)got;
        text[length] = '\0';
        const char *found = strstr(text, name);
        if (found != NULL && found[name_length] != '\0') {
            mode = (unsigned char)found[name_length];
            break;
        }
        size_t kept = length <= name_length ? length : name_length + 1; /* it may be cut in two */
        memmove(text, text + length - kept, kept);
        length = kept;
    }
    (void)sg_sys_close((int)fd);
    return got < 0 ? (int)got : mode;
}

/* Without a file system, or without a number for a file, the kernel has answered and no filter. Neither has one where a
 * policy lets nobody look (EACCES, of a security module), unless this process once could. */
static bool is_silence(int error)
{
    return error == -EACCES ? sg_load_relaxed(&was_told) != 0
                            : error != -ENOENT && error != -EMFILE && error != -ENFILE;
}

bool sg_seccomp_is_on(void)
{
    if (sg_load_relaxed(&filtered) != 0)
        return true;
    int mode = status_digit("\nSeccomp:\t");
    if (mode < 0)
        return is_silence(mode);
    if (sg_load_relaxed(&was_told) == 0)
        sg_store_relaxed(&was_told, 1u);
    if (mode != '0')
        sg_store_relaxed(&filtered, 1u);
    return mode != '0';
}

bool sg_seccomp_bars_processes(void)
{
    return sg_seccomp_is_on() && status_digit("\nNoNewPrivs:\t") != '0';
}
