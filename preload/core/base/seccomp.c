/*
 * seccomp.c - see seccomp.h.
 */
#include "base/seccomp.h"

#include "base/atomics.h"
#include "base/syscall.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

static uint32_t was_readable; /* (atomic) 1: /proc/self/status could be read at least once */
static uint32_t is_filtered;  /* (atomic) 1: a filter was found; filters are never removed */

/* The character after `name` in /proc/self/status; '0' if the file does not contain `name`; -errno if it cannot be
 * read. Reads in small pieces, because the thread may have little stack. */
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
        size_t kept = length <= name_length ? length : name_length + 1; /* `name` may straddle two pieces */
        memmove(text, text + length - kept, kept);
        length = kept;
    }
    (void)sg_sys_close((int)fd);
    return got < 0 ? (int)got : mode;
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
