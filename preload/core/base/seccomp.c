/*
 * seccomp.c - see seccomp.h.
 */
#include "base/seccomp.h"

#include "base/atomics.h"
#include "base/syscall.h"

#include <errno.h>
#include <fcntl.h>

static uint32_t was_readable; /* (atomic) 1: /proc/self/status could be read at least once */
static uint32_t is_filtered;  /* (atomic) 1: a filter was found; filters are never removed */

/* The character after `name`, which begins with a newline and has no other, in /proc/self/status; '0' if the file does
 * not contain `name`; -errno if it cannot be read. The thread may have little stack: the pieces are small, and the
 * libc's strstr is not called, which takes more than they do on aarch64. */
static int status_digit(const char *name)
{
    char text[256] = {0};
    size_t matched = 0; /* characters of `name`, which may straddle two pieces */
    int mode = -1;
    long got, fd = sg_sys_openat((int)SG_AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return (int)fd;
    while (mode < 0 && (got = sg_sys_read((int)fd, text, sizeof text)) > 0)
        for (long i = 0; mode < 0 && i < got; i++) {
            if (name[matched] == '\0')
                mode = (unsigned char)text[i];
            else
                matched = text[i] == name[matched] ? matched + 1 : text[i] == name[0];
        }
    (void)sg_sys_close((int)fd);
    return mode >= 0 ? mode : got < 0 ? (int)got : '0';
}

/* Whether this error of opening /proc/self/status suggests a filter. ENOENT, EMFILE and ENFILE come from the kernel
 * itself: no /proc, or no free descriptor. EACCES comes from a security module's policy, which says nothing about
 * filters, unless this process could read the file before. */
static bool suggests_filter(int error)
{
    return error == -EACCES ? sg_load_relaxed(&was_readable) != 0
                            : error != -ENOENT && error != -EMFILE && error != -ENFILE;
}

bool sg_seccomp_is_on(void)
{
    if (sg_load_relaxed(&is_filtered) != 0)
        return true;
    int mode = status_digit("\nSeccomp:\t");
    if (mode < 0)
        return suggests_filter(mode);
    if (sg_load_relaxed(&was_readable) == 0)
        sg_store_relaxed(&was_readable, 1u);
    if (mode != '0')
        sg_store_relaxed(&is_filtered, 1u);
    return mode != '0';
}

bool sg_seccomp_is_strict(void)
{
    return sg_seccomp_is_on() && status_digit("\nNoNewPrivs:\t") != '0';
}
