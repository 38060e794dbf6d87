/*
 * text.h - builds and reads texts without printf, which allocates and takes locks.
 *
 * A struct sg_text never overflows: text that does not fit is dropped, and the buffer stays terminated. No state; any
 * thread, before set-up, in signal handlers.
 */
#ifndef SG_PRELOAD_BASE_TEXT_H
#define SG_PRELOAD_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct sg_text {
    char *bytes;
    size_t capacity; /* including the terminating zero */
    size_t length;
};

/* Begins an empty text in `buffer` of `capacity` bytes. */
static inline struct sg_text sg_text_begin(char *buffer, size_t capacity)
{
    buffer[0] = '\0';
    return (struct sg_text){.bytes = buffer, .capacity = capacity};
}

/* Append to the text. Numbers are decimal; hex has 16 digits; padded has at least `digits` digits, with leading zeros;
 * size is for people: "12.0 GiB". */
void sg_text_add(struct sg_text *text, const char *piece);
void sg_text_add_number(struct sg_text *text, uint64_t number);
void sg_text_add_hex(struct sg_text *text, uint64_t number);
void sg_text_add_padded(struct sg_text *text, uint64_t number, unsigned digits);
void sg_text_add_size(struct sg_text *text, uint64_t bytes);

/* Appends a place in a file: "PATH:LINE", or with line 0 the file alone. */
void sg_text_add_place(struct sg_text *text, const char *path, uint32_t line);

/* Breaks lines of a UTF-8 text that are longer than `columns` characters at their spaces. A word that is longer stays
 * whole. Escape sequences of colours take no column. */
void sg_text_wrap(char *text, size_t length, size_t columns);

/* Appends a time as "20261120T131742", in UTC; `seconds` since 1970. The libc's gmtime_r would read /etc/localtime and
 * allocate. */
void sg_text_add_time(struct sg_text *text, uint64_t seconds);

/* Reads a decimal number at *cursor after spaces and tabs, and moves *cursor past it. 0 if there is none; UINT64_MAX
 * if it is too large. */
uint64_t sg_text_read_number(const char **cursor);

/* The number after `key`, which is a whole word at the start of a line, as in /proc/meminfo. `missing` if there is no
 * such line. */
uint64_t sg_text_read_field(const char *text, const char *key, uint64_t missing);

/* Reads a file into `buffer` of `capacity` bytes and terminates it. Longer files are cut. Returns the length, or
 * -errno. */
long sg_text_read_file(const char *path, char *buffer, size_t capacity);

#endif
