/*
 * text.h - bytes, times and names as people and programs read them.
 *
 * Texts of a segment come from other processes and may hold anything; whatever goes to a terminal passes
 * text_printable() first, whatever goes to JSON the emitter of json.h. Functions that return char * return
 * memory that the caller frees; there is no error but the end of memory, which ends the tool.
 */
#ifndef SG_TOOLS_COMMON_TEXT_H
#define SG_TOOLS_COMMON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TEXT_SIZE_CAPACITY = 16, TEXT_TIME_CAPACITY = 40 };

#define TEXT_NO_CODE UINT32_MAX

char *text_copy(const char *bytes, size_t room);
char *text_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Decodes one character of `left` > 0 bytes: its length, and its code or TEXT_NO_CODE for a byte that is no UTF-8. */
size_t text_utf8_next(const char *bytes, size_t left, uint32_t *code);

/* Whether a character may steer a terminal or reorder what it shows: C0, C1, DEL, line separators, bidi controls. */
bool text_is_control(uint32_t code);

/* The text with everything of the kind above, and what is no UTF-8, spelt as \x1b or \u202e; with is_utf8 false all
 * that is not ASCII. */
char *text_printable(const char *text, bool is_utf8);

/* Cuts a printable text to `columns` characters with "..." at its end; in place. */
void text_shorten(char *text, size_t columns);

/* "12.0 GiB", and "-" for SG_UNKNOWN. */
const char *text_size(char text[TEXT_SIZE_CAPACITY], uint64_t bytes);

/* "2026-11-20T13:17:42.123Z"; false where ns is no time of the years 1970 to 9999. */
bool text_time_rfc3339(char text[TEXT_TIME_CAPACITY], int64_t time_ns);

/* The same in the reader's time zone, "2026-11-20 13:17:42"; "-" where unknown. */
const char *text_time_local(char text[TEXT_TIME_CAPACITY], int64_t time_ns);
const char *text_clock_local(char text[TEXT_TIME_CAPACITY], int64_t time_ns);

/* "0.4 s", "12 min 3 s", "2 h 5 min", "3 d 4 h". */
const char *text_duration(char text[TEXT_TIME_CAPACITY], int64_t duration_ns);

/* "SIGKILL", or "signal 70" in text for one without a name. */
const char *text_signal(char text[TEXT_TIME_CAPACITY], int number);

#endif
