/*
 * source.h - bounded reads of a file that anybody may have made: a truncated one, a FIFO, a directory.
 *
 * Errors are sentences without a period at the end.
 */
#ifndef SG_TOOLS_SWEEP_FITS_SOURCE_H
#define SG_TOOLS_SWEEP_FITS_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fits_source {
    int fd;
    uint64_t size_bytes; /* of the file when it was opened */
    uint64_t at;         /* where fits_source_take() reads next */
    uint64_t end;        /* it reads nothing from here on */
    unsigned char buffer[65536];
    uint64_t buffer_at; /* where in the file the buffer begins */
    size_t buffer_length;
};

/* Opens a regular file; anything else is an error. Returns NULL, or why not. */
char *fits_source_open(struct fits_source *source, const char *path);
void fits_source_close(struct fits_source *source);
/* Reads exactly `length` bytes from `at`. Returns false if they are not there. */
bool fits_source_read(const struct fits_source *source, uint64_t at, void *out, size_t length);
/* Read the next bytes through a buffer; skip any number. They return false at the end. */
bool fits_source_take(struct fits_source *source, void *out, size_t length);
bool fits_source_skip(struct fits_source *source, uint64_t length);

/* Reads a whole file of at most `most` bytes, with a NUL behind it. Returns NULL, or why not. */
char *fits_source_text(const char *path, size_t most, char **text, size_t *length);

/* Returns a little-endian number of 1 to 8 bytes. */
uint64_t fits_little_endian(const unsigned char *bytes, size_t length);

#endif
