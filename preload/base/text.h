/*
 * text.h - putting sentences together without printf, which allocates and takes locks.
 *
 * A struct sg_text never overflows: what does not fit is dropped, the rest stays terminated. No state; any thread,
 * before set-up, in signal handlers.
 */
#ifndef SG_PRELOAD_BASE_TEXT_H
#define SG_PRELOAD_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct sg_text {
    char *bytes;
    size_t room; /* including the terminating zero */
    size_t length;
};

struct sg_text sg_text_begin(char *buffer, size_t room);
void sg_text_add(struct sg_text *text, const char *piece);
void sg_text_add_number(struct sg_text *text, uint64_t number);
void sg_text_add_hex(struct sg_text *text, uint64_t number); /* 16 digits */
void sg_text_add_padded(struct sg_text *text, uint64_t number, unsigned digits);
void sg_text_add_size(struct sg_text *text, uint64_t bytes); /* "12.0 GiB" */

/* "20261120T131742": seconds since 1970 in UTC. The libc's gmtime_r would read /etc/localtime, and allocate. */
void sg_text_add_time(struct sg_text *text, uint64_t seconds);

/* Reads a decimal number at *cursor, skipping blanks before it and moving behind it; 0 if there is none. */
uint64_t sg_text_read_number(const char **cursor);

/* The number behind `key` (a whole word at the start of a line, as in /proc/meminfo), or `missing`. */
uint64_t sg_text_read_field(const char *text, const char *key, uint64_t missing);

/* Reads a whole small file into `buffer` and terminates it: its length, or -errno. A longer file is cut. */
long sg_text_read_file(const char *path, char *buffer, size_t room);

#endif
