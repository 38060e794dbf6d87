/*
 * fuzz.h - what the fuzz targets share. Each is a LLVMFuzzerTestOneInput() for one reader of ours: `make fuzz` links it
 * to replay.c, which runs stored inputs; `make fuzzers` links it to clang's libFuzzer, which makes new ones.
 *
 * Readers read files, so a target has a folder of its own in TMPDIR (/dev/shm). Whoever runs it removes that.
 */
#ifndef SG_FUZZ_H
#define SG_FUZZ_H

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FUZZ __attribute__((unused)) static

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The most bytes that a reader of the target's takes of an input, or of one text of it: inputs are to be longer, too. */
extern const size_t fuzz_room;
#define FUZZ_CAPACITY(bytes) const size_t fuzz_room = (bytes)

/* By a signal: that is what libFuzzer keeps an input for. */
FUZZ void fuzz_need(bool is_so, const char *what)
{
    if (!is_so) {
        perror(what);
        abort();
    }
}

/* The target's folder. */
FUZZ const char *fuzz_folder(void)
{
    static char folder[256];
    const char *above = getenv("TMPDIR");
    if (folder[0] == '\0') {
        (void)snprintf(folder, sizeof folder, "%s/sparkguard-fuzz-XXXXXX", above != NULL ? above : "/dev/shm");
        fuzz_need(mkdtemp(folder) != NULL, folder);
    }
    return folder;
}

/* The path of `name` below it; the folders above it are made. Good until the next call. */
FUZZ const char *fuzz_path(const char *name)
{
    static char path[512];
    size_t length = (size_t)snprintf(path, sizeof path, "%s/", fuzz_folder());
    (void)snprintf(path + length, sizeof path - length, "%s", name);
    for (char *slash = strchr(path + length, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    return path;
}

FUZZ void fuzz_put(const char *name, const void *bytes, size_t length)
{
    const char *path = fuzz_path(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    fuzz_need(fd >= 0 && write(fd, bytes, length) == (ssize_t)length && close(fd) == 0, path);
}

/* The input as texts that end with NUL, one a file; files without one are empty. */
FUZZ void fuzz_put_texts(const char *const *names, size_t count, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < count; i++) {
        size_t length = size == 0 ? 0 : strnlen((const char *)data, size);
        fuzz_put(names[i], data, length);
        length += length < size;
        data += length;
        size -= length;
    }
}

/* A text of its own memory, so that a sanitizer sees who reads behind its end. The caller frees. */
FUZZ char *fuzz_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    fuzz_need(text != NULL, "malloc");
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

/* The input as changes to something well made: place (16 bits), length (8 bits, at most 16 count), bytes. */
FUZZ void fuzz_patch(void *object, size_t room, const uint8_t *data, size_t size)
{
    while (size > 3) {
        size_t at = ((size_t)data[0] | (size_t)data[1] << 8) % room, length = data[2] % 16u + 1u;
        length = length < size - 3 ? length : size - 3;
        memcpy((char *)object + at, data + 3, length < room - at ? length : room - at);
        data += 3 + length;
        size -= 3 + length;
    }
}

FUZZ FILE *fuzz_nowhere(void)
{
    static FILE *stream;
    if (stream == NULL)
        stream = fopen("/dev/null", "we");
    fuzz_need(stream != NULL, "/dev/null");
    return stream;
}

#endif
