/*
 * log.c - see log.h.
 */
#include "base/log.h"

#include "base/atomics.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/syscall.h"

#include <asm/ioctls.h>
#include <poll.h>
#include <string.h>

static struct {
    uint32_t is_known;
    uint32_t is_open;
    dev_t device;
    ino_t inode;
} error_output SG_AT_START;

void sg_log_begin(void)
{
    if (error_output.is_known)
        return;
    struct stat now = {0};
    if (sg_sys_fstat(2, &now) == 0) {
        error_output.is_open = 1;
        error_output.device = now.st_dev;
        error_output.inode = now.st_ino;
    }
    error_output.is_known = 1;
}

/* Whether descriptor 2 is a terminal. Lines may go there even if it is not the one of the start. */
static bool is_terminal(void)
{
    uint64_t settings[16]; /* larger than the kernel's struct termios */
    return sg_syscall(SYS_ioctl, 2, TCGETS, (long)settings, 0, 0, 0) == 0;
}

static bool is_error_output(void)
{
    struct stat now = {0};
    sg_log_begin();
    if (!error_output.is_open || sg_sys_fstat(2, &now) != 0)
        return false;
    if (now.st_dev == error_output.device && now.st_ino == error_output.inode)
        return true;
    return S_ISCHR(now.st_mode) && is_terminal();
}

static bool would_block(void)
{
    struct pollfd poll = {.fd = 2, .events = POLLOUT};
    const struct timespec at_once = {0, 0};
    return sg_syscall(SYS_ppoll, (long)&poll, 1, (long)&at_once, 0, 8, 0) != 1 || (poll.revents & POLLOUT) == 0;
}

void sg_log_line(const char *line)
{
    static const char line_begin[] = "\r\033[K"; /* the cursor may stand behind a progress bar: erase that */
    char buffer[1024 + sizeof line_begin];
    if (!is_error_output() || would_block())
        return;
    size_t begin = is_terminal() ? sizeof line_begin - 1 : 0, length = strnlen(line, 1024);
    memcpy(buffer, line_begin, begin);
    for (size_t i = 0; i < length; i++) /* paths and values in the line may contain control characters */
        buffer[begin + i] = (unsigned char)line[i] < ' ' || line[i] == 0x7f ? '?' : line[i];
    buffer[begin + length] = '\n';
    (void)sg_file_write(2, buffer, begin + length + 1);
}

bool sg_log_may_speak(uint64_t *last_ns)
{
    uint64_t last = sg_load_relaxed(last_ns);
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    return (last == 0 || now - last >= 1000000000u) && sg_cas_u64(last_ns, &last, now);
}
