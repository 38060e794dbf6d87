/*
 * document.c - see runtime.h. An engine writes numbers that jansson cannot hold: RLIM_INFINITY is 2^64 - 1, where
 * jansson's integers end at 2^63 - 1. So each number is read as a string, and written as the same characters.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"
#include "runtime/runtime.h"

/* A configuration of docker has 20 KiB, one with a thousand mounts 300 KiB. */
enum { DOCUMENT_MAX = 16 << 20 };

struct buffer {
    char *bytes;
    size_t length, capacity;
};

static void append(struct buffer *buffer, const char *bytes, size_t length)
{
    if (buffer->length + length + 1 > buffer->capacity) {
        buffer->capacity = 2 * (buffer->length + length + 1);
        char *longer = tool_allocate(buffer->capacity, 1);
        if (buffer->length > 0)
            memcpy(longer, buffer->bytes, buffer->length);
        buffer->bytes = longer;
    }
    memcpy(buffer->bytes + buffer->length, bytes, length);
    buffer->length += length;
    buffer->bytes[buffer->length] = '\0';
}

static const char *skip_digits(const char *text)
{
    while (isdigit((unsigned char)*text))
        text++;
    return text;
}

/* Returns the end of a number as JSON has it; `text` where there is none. */
static const char *number_end(const char *text)
{
    const char *digits = text + (*text == '-'), *end = skip_digits(digits), *more;
    if (end == digits || (digits[0] == '0' && end != digits + 1))
        return text;
    if (*end == '.') {
        more = skip_digits(end + 1);
        if (more == end + 1)
            return text;
        end = more;
    }
    if (*end == 'e' || *end == 'E') {
        const char *sign = end + 1 + (end[1] == '+' || end[1] == '-');
        more = skip_digits(sign);
        if (more == sign)
            return text;
        end = more;
    }
    return end;
}

static const char *string_end(const char *quote)
{
    const char *end = quote + 1;
    while (*end != '"' && *end != '\0')
        end += end[0] == '\\' && end[1] != '\0' ? 2 : 1;
    return *end == '"' ? end + 1 : end;
}

/* Copies a text of JSON, with each number as a marked string. Returns false for a number in the place of a key. */
static bool mark_numbers(struct buffer *out, const char *text, const char *mark)
{
    append(out, "", 0);
    while (*text != '\0') {
        const char *end = *text == '"' ? string_end(text) : number_end(text);
        bool is_number = *text != '"' && end != text;
        if (is_number && end[strspn(end, " \t\r\n")] == ':')
            return false;
        end = end != text ? end : text + 1;
        append(out, "\"", is_number);
        append(out, mark, is_number ? strlen(mark) : 0);
        append(out, text, (size_t)(end - text));
        append(out, "\"", is_number);
        text = end;
    }
    return true;
}

/* Copies a text of JSON, with each marked string as the number again. */
static void unmark_numbers(struct buffer *out, const char *text, const char *mark)
{
    size_t length = strlen(mark);
    append(out, "", 0);
    while (*text != '\0') {
        const char *end = *text == '"' ? string_end(text) : text + 1;
        bool is_marked = *text == '"' && strncmp(text + 1, mark, length) == 0;
        if (is_marked)
            append(out, text + 1 + length, (size_t)(end - text) - 2 - length);
        else
            append(out, text, (size_t)(end - text));
        text = end;
    }
}

/* Nobody can write a string that is taken for a number: the mark is drawn anew for each document. */
static void draw_mark(char mark[32])
{
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t)sizeof number)
        number = (uint64_t)getpid();
    snprintf(mark, 32, "#number-%016llx:", (unsigned long long)number);
}

/* Reads a whole file of at most DOCUMENT_MAX bytes. Returns NULL with *why. */
static char *read_whole(const char *path, struct stat *status, const char **why)
{
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    *why = fd < 0                                  ? strerror(errno)
           : fstat(fd, status) != 0                ? strerror(errno)
           : !S_ISREG(status->st_mode)             ? "it is no regular file"
           : status->st_size > (off_t)DOCUMENT_MAX ? "it is too large"
                                                   : NULL;
    if (*why == NULL)
        text = tool_allocate((size_t)status->st_size + 1, 1);
    if (*why == NULL && read(fd, text, (size_t)status->st_size) != (ssize_t)status->st_size)
        *why = "it changed while it was read";
    if (*why == NULL && memchr(text, '\0', (size_t)status->st_size) != NULL)
        *why = "it is not JSON that can be read";
    if (fd >= 0)
        close(fd);
    return *why == NULL ? text : NULL;
}

const char *runtime_document_read(struct runtime_document *document, const char *path)
{
    const char *why = NULL;
    struct buffer marked = {0};
    *document = (struct runtime_document){.path = tool_adopt(realpath(path, NULL))};
    if (document->path == NULL)
        return strerror(errno);
    char *text = read_whole(document->path, &document->status, &why);
    if (text == NULL)
        return why;
    draw_mark(document->mark);
    if (mark_numbers(&marked, text, document->mark))
        document->root = json_loadb(marked.bytes, marked.length, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    return json_is_object(document->root) ? NULL : "it is not JSON that can be read";
}

static bool write_all(int fd, const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t written = write(fd, bytes, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        bytes += written;
        length -= (size_t)written;
    }
    return true;
}

/* Puts a text in the place of the document's file. Returns NULL or why it could not. */
static const char *replace(const struct runtime_document *document, const struct buffer *text)
{
    const char *why = NULL;
    char *path = text_format("%s.sparkguard-XXXXXX", document->path);
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return strerror(errno);
    bool is_owned = (document->status.st_uid == geteuid() && document->status.st_gid == getegid()) ||
                    fchown(fd, document->status.st_uid, document->status.st_gid) == 0;
    bool is_good =
        is_owned && fchmod(fd, document->status.st_mode & 07777) == 0 && write_all(fd, text->bytes, text->length);
    if (!is_good)
        why = strerror(errno);
    if (close(fd) != 0 && why == NULL)
        why = strerror(errno);
    if (why == NULL && rename(path, document->path) != 0)
        why = strerror(errno);
    if (why != NULL)
        unlink(path);
    return why;
}

const char *runtime_document_write(struct runtime_document *document)
{
    struct buffer text = {0};
    unmark_numbers(&text, json_dumps(document->root, JSON_COMPACT), document->mark);
    return replace(document, &text);
}

bool runtime_document_number(const struct runtime_document *document, const json_t *value, uint32_t *number)
{
    size_t length = strlen(document->mark);
    const char *text = json_string_value(value);
    char *end;
    if (json_is_integer(value)) {
        json_int_t integer = json_integer_value(value);
        *number = (uint32_t)integer;
        return integer >= 0 && integer <= UINT32_MAX;
    }
    if (text == NULL || strncmp(text, document->mark, length) != 0 || !isdigit((unsigned char)text[length]))
        return false;
    errno = 0;
    unsigned long long read = strtoull(text + length, &end, 10);
    *number = (uint32_t)read;
    return errno == 0 && *end == '\0' && read <= UINT32_MAX;
}

static const json_t *mappings_of(const struct runtime_document *document, const char *list)
{
    return json_object_get(json_object_get(document->root, "linux"), list);
}

bool runtime_document_map_id(const struct runtime_document *document, const char *list, uint32_t id, bool is_inside,
                             uint32_t *mapped)
{
    size_t i;
    const json_t *one, *mappings = mappings_of(document, list);
    for (i = 0; (one = json_array_get(mappings, i)) != NULL; i++) {
        uint32_t inside, outside, size;
        if (!runtime_document_number(document, json_object_get(one, "containerID"), &inside) ||
            !runtime_document_number(document, json_object_get(one, "hostID"), &outside) ||
            !runtime_document_number(document, json_object_get(one, "size"), &size))
            continue;
        uint32_t from = is_inside ? inside : outside, to = is_inside ? outside : inside;
        if (id >= from && id - from < size) {
            *mapped = to + (id - from);
            return true;
        }
    }
    *mapped = id;
    return json_array_size(mappings) == 0;
}

bool runtime_document_has_mappings(const struct runtime_document *document, const char *list)
{
    return json_array_size(mappings_of(document, list)) > 0;
}
