/*
 * log.c - see log.h.
 */
#include "base/log.h"

#include "base/atomics.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/syscall.h"
#include "base/text.h"

#include <asm/ioctls.h>
#include <poll.h>
#include <string.h>

static struct {
    uint16_t is_known;
    uint16_t is_open;
    uint32_t columns; /* of the terminal; 0: unknown, or it is none */
    dev_t device;
    ino_t inode;
} error_output SG_AT_START;

/* Asked at the start alone: a filter that a program installs later may allow TCGETS and end the process for this. */
static uint32_t terminal_columns(void)
{
    uint16_t size[4] = {0}; /* the kernel's struct winsize: rows, columns, pixels */
    return sg_syscall(SYS_ioctl, 2, TIOCGWINSZ, (long)size, 0, 0, 0) == 0 ? size[1] : 0;
}

void sg_log_begin(void)
{
    if (error_output.is_known)
        return;
    struct stat now = {0};
    if (sg_sys_fstat(2, &now) == 0) {
        error_output.is_open = 1;
        error_output.device = now.st_dev;
        error_output.inode = now.st_ino;
        error_output.columns = S_ISCHR(now.st_mode) ? terminal_columns() : 0;
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

/* Appends a line, cut to what is left of `capacity`, and a newline. Paths and values in it may contain control
 * characters. Returns the new length. */
static size_t add_line(char *text, size_t length, size_t capacity, const char *line)
{
    for (; *line != '\0' && length + 1 < capacity; line++)
        text[length++] = (unsigned char)*line < ' ' || *line == 0x7f ? '?' : *line;
    text[length++] = '\n';
    return length;
}

void sg_log_lines(const char *first, const char *second)
{
    static const char line_begin[] = "\r\033[K"; /* the cursor may stand behind a progress bar: erase that */
    enum { MOST = 1024 };
    char buffer[sizeof line_begin + MOST + 2];
    if (!is_error_output() || would_block())
        return;
    size_t begin = is_terminal() ? sizeof line_begin - 1 : 0, length = 0;
    memcpy(buffer, line_begin, begin);
    char *text = buffer + begin;
    length = add_line(text, length, MOST + 1, first);
    if (second != NULL && length < MOST)
        length = add_line(text, length, MOST + 1, second);
    if (begin != 0 && error_output.columns != 0)
        sg_text_wrap(text, length, error_output.columns);
    (void)sg_file_write(2, buffer, begin + length);
}

void sg_log_line(const char *line)
{
    sg_log_lines(line, NULL);
}

bool sg_log_may_speak(uint64_t *last_ns)
{
    uint64_t last = sg_load_relaxed(last_ns);
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    return (last == 0 || now - last >= 1000000000u) && sg_cas_u64(last_ns, &last, now);
}
