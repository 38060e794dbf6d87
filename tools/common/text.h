/*
 * text.h - bytes, times and names as people and programs read them.
 *
 * Texts of a segment come from other processes and may hold anything; whatever goes to a terminal passes
 * report_text_printable() first, whatever goes to JSON the emitter of json.h. Functions that return char * return
 * memory that the caller frees; there is no error but the end of memory, which ends the tool.
 */
#ifndef SG_TOOLS_COMMON_TEXT_H
#define SG_TOOLS_COMMON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REPORT_SIZE_TEXT = 16, REPORT_TIME_TEXT = 40 };

#define REPORT_NO_CODE UINT32_MAX

/* malloc and friends that print one line and exit with this status, the launcher's, where there is no memory. */
extern int report_memory_status;
void *report_allocate(size_t count, size_t bytes_each);
char *report_text_copy(const char *bytes, size_t room);
char *report_text_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Has getopt(3) name the tool as the tool's own lines do, not by the path it was called by. First in main(). */
void report_name_tool(char **argv);
/* The path by which the tool was called, if that was relative ("build/sparkguard-report"): what to type again. Else
 * NULL. */
extern const char *report_typed_name;

/* Decodes one character of `left` > 0 bytes: its length, and its code or REPORT_NO_CODE for a byte that is no UTF-8. */
size_t report_utf8_next(const char *bytes, size_t left, uint32_t *code);

/* Whether a character may steer a terminal or reorder what it shows: C0, C1, DEL, line separators, bidi controls. */
bool report_is_control(uint32_t code);

/* The text with everything of the kind above, and what is no UTF-8, spelt as \x1b or \u202e; with is_utf8 false all
 * that is not ASCII. */
char *report_text_printable(const char *text, bool is_utf8);

/* Cuts a printable text to `columns` characters with "..." at its end; in place. */
void report_text_shorten(char *text, size_t columns);

/* "12.0 GiB", and "-" for SG_UNKNOWN. */
const char *report_size_text(char text[REPORT_SIZE_TEXT], uint64_t bytes);

/* "2026-11-20T13:17:42.123Z"; false where ns is no time of the years 1970 to 9999. */
bool report_time_rfc3339(char text[REPORT_TIME_TEXT], int64_t time_ns);

/* The same in the reader's time zone, "2026-11-20 13:17:42"; "-" where unknown. */
const char *report_time_local(char text[REPORT_TIME_TEXT], int64_t time_ns);
const char *report_clock_local(char text[REPORT_TIME_TEXT], int64_t time_ns);

/* "0.4 s", "12 min 3 s", "2 h 5 min", "3 d 4 h". */
const char *report_duration_text(char text[REPORT_TIME_TEXT], int64_t duration_ns);

/* "SIGKILL", or "signal 70" in text for one without a name. */
const char *report_signal_text(char text[REPORT_TIME_TEXT], int number);

int64_t report_now_ns(void);

static inline uint64_t report_add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static inline uint64_t report_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static inline uint64_t report_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t report_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

#endif
