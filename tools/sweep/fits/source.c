/*
 * source.c - see source.h.
 */
#include "sweep/fits/source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

char *fits_source_open(struct fits_source *source, const char *path)
{
    struct stat status;
    source->fd = -1;
    /* Without O_NONBLOCK the open of a FIFO would wait for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return text_format("%s", strerror(errno));
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(fd);
        return text_format("not a regular file");
    }
    source->fd = fd;
    source->size_bytes = source->end = (uint64_t)status.st_size;
    source->at = source->buffer_at = 0;
    source->buffer_length = 0;
    return NULL;
}

void fits_source_close(struct fits_source *source)
{
    close(source->fd);
    source->fd = -1;
}

/* Returns how many of the bytes are there. */
static size_t read_at(int fd, uint64_t at, void *out, size_t length)
{
    size_t done = 0;
    while (done < length && at + done <= INT64_MAX) {
        ssize_t got = pread(fd, (char *)out + done, length - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    return done;
}

bool fits_source_read(const struct fits_source *source, uint64_t at, void *out, size_t length)
{
    return read_at(source->fd, at, out, length) == length;
}

bool fits_source_take(struct fits_source *source, void *out, size_t length)
{
    for (size_t done = 0; done < length;) {
        if (source->at < source->buffer_at || source->at >= source->buffer_at + source->buffer_length) {
            uint64_t left = bytes_less(source->end, source->at);
            size_t wanted = (size_t)bytes_min(left, sizeof source->buffer);
            source->buffer_at = source->at;
            source->buffer_length = read_at(source->fd, source->at, source->buffer, wanted);
            if (source->buffer_length == 0)
                return false;
        }
        size_t from = (size_t)(source->at - source->buffer_at);
        size_t piece = (size_t)bytes_min(source->buffer_length - from, length - done);
        memcpy((char *)out + done, source->buffer + from, piece);
        source->at += piece;
        done += piece;
    }
    return true;
}

bool fits_source_skip(struct fits_source *source, uint64_t length)
{
    if (length > bytes_less(source->end, source->at))
        return false;
    source->at += length;
    return true;
}

char *fits_source_text(const char *path, size_t most, char **text, size_t *length)
{
    struct fits_source *source = tool_allocate(1, sizeof *source);
    char *why = fits_source_open(source, path);
    if (why == NULL && source->size_bytes > most)
        why = text_format("larger than %zu MiB", most >> 20);
    else if (why == NULL) {
        *length = (size_t)source->size_bytes;
        *text = tool_allocate(*length + 1, 1);
        if (!fits_source_read(source, 0, *text, *length))
            why = text_format("it became shorter while it was read");
    }
    if (source->fd >= 0)
        fits_source_close(source);
    return why;
}

uint64_t fits_little_endian(const unsigned char *bytes, size_t length)
{
    uint64_t number = 0;
    for (size_t i = length; i > 0; i--)
        number = number << 8 | bytes[i - 1];
    return number;
}
