/*
 * text.h - formats sizes, times and names, and escapes texts of other processes.
 *
 * Texts of a segment come from other processes and may hold any bytes. Pass them through text_printable() before they
 * go to a terminal, and through json_of_text() before they go into JSON. A returned char * is in the arena
 * (common/tool.h), a const char * there or a constant. The only error is out of memory, which ends the tool.
 */
#ifndef SG_TOOLS_COMMON_TEXT_H
#define SG_TOOLS_COMMON_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TEXT_NO_CODE UINT32_MAX

/* Returns a copy of a text of at most `capacity` bytes, which need not end with NUL. */
char *text_copy(const char *bytes, size_t capacity);
/* Returns a new text formatted as by printf. */
char *text_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *text_formatv(const char *format, va_list arguments) __attribute__((format(printf, 1, 0)));

/* Appends an item to a list such as "a, b": behind the separator, if the list is not empty. */
void text_append(const char **list, const char *separator, const char *item);

/* Returns whether a word is one of a list such as "yes|true|1". False for NULL. */
bool text_is_one_of(const char *word, const char *words);

/* Decodes the first character of `left` > 0 bytes and returns its length in bytes. *code becomes its code point; for a
 * byte that is not UTF-8 the length is 1 and *code TEXT_NO_CODE. */
size_t text_utf8_next(const char *bytes, size_t left, uint32_t *code);

/* Returns whether a character could control a terminal or reorder its text: C0, C1, DEL, line separators, bidi
 * controls, the byte order mark. */
bool text_is_control(uint32_t code);

/* Returns the text with control characters and bytes that are not UTF-8 escaped as \x1b or \u202e. If is_utf8 is false,
 * everything that is not ASCII is escaped too. */
char *text_printable(const char *text, bool is_utf8);

/* Returns the part of a command line that begins with the base name of its program. */
const char *text_command(const char *command);

/* Shortens a printable text in place to `columns` characters, which end with "...". */
void text_shorten(char *text, size_t columns);

/* Formats a size: "12.0 GiB"; "-" for SG_UNKNOWN. */
char *text_size(uint64_t bytes);

/* Formats a time as "2026-11-20T13:17:42.123Z". Returns NULL for a time outside of the years 1970 to 9999. */
char *text_time_rfc3339(int64_t time_ns);

/* Format a time in the reader's time zone as "2026-11-20 13:17:42" or "13:17:42"; "-" where unknown. */
const char *text_time_local(int64_t time_ns);
const char *text_clock_local(int64_t time_ns);

/* Formats a duration as "0.4 s", "12 min 3 s", "2 h 5 min" or "3 d 4 h"; "-" if negative. */
const char *text_duration(int64_t duration_ns);

/* Formats a signal number as "SIGKILL", or as "signal 70" for a signal without a name. */
const char *text_signal(int number);

#endif
