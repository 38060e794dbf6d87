/*
 * text.c - see common/text.h. For single-threaded tools. The local time functions read TZ as localtime(3) does.
 */
#include "common/text.h"
#include "common/tool.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "sparkguard_abi.h"
#include "sparkguard_options.h"

char *text_copy(const char *bytes, size_t capacity)
{
    size_t length = strnlen(bytes, capacity);
    return memcpy(tool_allocate(length + 1, 1), bytes, length);
}

char *text_formatv(const char *format, va_list arguments)
{
    char *text;
    if (vasprintf(&text, format, arguments) < 0)
        tool_end_without_memory();
    return tool_adopt(text);
}

char *text_format(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *text = text_formatv(format, arguments);
    va_end(arguments);
    return text;
}

void text_append(const char **list, const char *separator, const char *item)
{
    *list = text_format("%s%s%s", *list, (*list)[0] != '\0' ? separator : "", item);
}

bool text_is_one_of(const char *word, const char *words)
{
    return word != NULL && sg_parse_choice(word, words) >= 0;
}

size_t text_utf8_next(const char *bytes, size_t left, uint32_t *code)
{
    const unsigned char *p = (const unsigned char *)bytes;
    size_t length = p[0] < 0x80 ? 1 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : p[0] >= 0xe0 ? 3 : p[0] >= 0xc2 ? 2 : 0;
    static const uint32_t lowest[] = {0, 0, 0x80, 0x800, 0x10000};
    *code = TEXT_NO_CODE;
    if (length == 1)
        *code = p[0];
    if (length <= 1 || length > left || p[0] >= 0xf5)
        return 1;
    uint32_t value = p[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 1;
        value = value << 6 | (p[i] & 0x3fu);
    }
    if (value < lowest[length] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
        return 1;
    *code = value;
    return length;
}

bool text_is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200e && code <= 0x200f) ||
           (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code == 0x061c || code == 0xfeff;
}

char *text_printable(const char *text, bool is_utf8)
{
    size_t left = strlen(text);
    char *printable = tool_allocate(left * 10 + 1, 1);
    char *out = printable;
    while (left > 0) {
        uint32_t code;
        size_t length = text_utf8_next(text, left, &code);
        if (code == TEXT_NO_CODE || (code < 0x100 && text_is_control(code)))
            out += sprintf(out, "\\x%02x", code == TEXT_NO_CODE ? (unsigned char)*text : (unsigned)code);
        else if (text_is_control(code) || (code >= 0x80 && !is_utf8))
            out += sprintf(out, code > 0xffff ? "\\U%08" PRIx32 : "\\u%04" PRIx32, code);
        else
            out = mempcpy(out, text, length);
        text += length;
        left -= length;
    }
    *out = '\0';
    return printable;
}

const char *text_command(const char *command)
{
    const char *name = command;
    for (const char *at = command; *at != '\0' && *at != ' '; at++)
        if (at[0] == '/' && at[1] != '\0' && at[1] != ' ')
            name = at + 1;
    return name;
}

void text_shorten(char *text, size_t columns)
{
    size_t left = strlen(text), count = 0;
    char *cut = text;
    for (char *p = text; left > 0; count++) {
        uint32_t code;
        size_t length = text_utf8_next(p, left, &code);
        if (count + 3 <= columns)
            cut = p;
        p += length;
        left -= length;
    }
    if (count > columns && columns >= 3)
        memcpy(cut, "...", sizeof "...");
}

char *text_size(uint64_t bytes)
{
    char text[16] = "-";
    if (bytes != SG_UNKNOWN)
        sg_format_size(text, bytes);
    return text_copy(text, sizeof text);
}

/* Returns false for a time outside of the years 1970 to 9999. */
static bool split_time(int64_t time_ns, bool is_local, struct tm *parts)
{
    time_t seconds = (time_t)(time_ns / 1000000000);
    if (time_ns <= 0)
        return false;
    return (is_local ? localtime_r(&seconds, parts) : gmtime_r(&seconds, parts)) != NULL && parts->tm_year < 8100;
}

char *text_time_rfc3339(int64_t time_ns)
{
    struct tm parts;
    char text[40];
    if (!split_time(time_ns, false, &parts))
        return NULL;
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    return text_format("%s.%03dZ", text, (int)(time_ns / 1000000 % 1000));
}

const char *text_time_local(int64_t time_ns)
{
    struct tm parts;
    char text[40];
    if (!split_time(time_ns, true, &parts))
        return "-";
    return text_copy(text, strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts));
}

const char *text_clock_local(int64_t time_ns)
{
    const char *both = text_time_local(time_ns);
    return strlen(both) > sizeof "2026-11-20" ? both + sizeof "2026-11-20" : both;
}

const char *text_duration(int64_t duration_ns)
{
    int64_t seconds = duration_ns / 1000000000;
    if (duration_ns < 0)
        return "-";
    if (seconds < 60)
        return text_format("%" PRId64 ".%" PRId64 " s", seconds, duration_ns / 100000000 % 10);
    if (seconds < 3600)
        return text_format("%" PRId64 " min %" PRId64 " s", seconds / 60, seconds % 60);
    if (seconds < 86400)
        return text_format("%" PRId64 " h %" PRId64 " min", seconds / 3600, seconds / 60 % 60);
    return text_format("%" PRId64 " d %" PRId64 " h", seconds / 86400, seconds / 3600 % 24);
}

/* sigabbrev_np needs glibc 2.32. */
static const char *const signal_names[] = {
    [SIGHUP] = "HUP",     [SIGINT] = "INT",       [SIGQUIT] = "QUIT", [SIGILL] = "ILL",       [SIGTRAP] = "TRAP",
    [SIGABRT] = "ABRT",   [SIGBUS] = "BUS",       [SIGFPE] = "FPE",   [SIGKILL] = "KILL",     [SIGUSR1] = "USR1",
    [SIGSEGV] = "SEGV",   [SIGUSR2] = "USR2",     [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM",     [SIGTERM] = "TERM",
    [SIGCHLD] = "CHLD",   [SIGCONT] = "CONT",     [SIGSTOP] = "STOP", [SIGTSTP] = "TSTP",     [SIGTTIN] = "TTIN",
    [SIGTTOU] = "TTOU",   [SIGURG] = "URG",       [SIGXCPU] = "XCPU", [SIGXFSZ] = "XFSZ",     [SIGPROF] = "PROF",
    [SIGPOLL] = "POLL",   [SIGVTALRM] = "VTALRM", [SIGPWR] = "PWR",   [SIGSTKFLT] = "STKFLT", [SIGSYS] = "SYS",
    [SIGWINCH] = "WINCH",
};

const char *text_signal(int number)
{
    const int count = (int)(sizeof signal_names / sizeof signal_names[0]);
    const char *name = number > 0 && number < count ? signal_names[number] : NULL;
    return name != NULL ? text_format("SIG%s", name) : text_format("signal %d", number);
}
