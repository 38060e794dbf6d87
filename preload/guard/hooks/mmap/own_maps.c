/*
 * own_maps.c - see own_maps.h.
 */
#include "hooks/mmap/own_maps.h"

#include "base/syscall.h"

#include <fcntl.h>

/* The fields of a line: "begin-end rights offset device inode   path". */
enum { BEGIN, END, RIGHTS, INODE = RIGHTS + 3, PATH };

struct line {
    struct sg_own_mapping mapping;
    unsigned field, length; /* of the text of the present field so far */
};

static uintptr_t with_digit(uintptr_t number, char c)
{
    return number << 4 | (uintptr_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static void read_character(struct line *line, char c)
{
    struct sg_own_mapping *mapping = &line->mapping;
    if (line->field < PATH && (c == ' ' || (c == '-' && line->field == BEGIN))) {
        line->field++;
        line->length = 0;
    } else if (line->field == BEGIN) {
        mapping->begin = with_digit(mapping->begin, c);
    } else if (line->field == END) {
        mapping->end = with_digit(mapping->end, c);
    } else if (line->field == RIGHTS && line->length < sizeof mapping->rights - 1) {
        mapping->rights[line->length++] = c;
    } else if (line->field == PATH && line->length < sizeof mapping->path - 1 && (c != ' ' || line->length != 0)) {
        mapping->path[line->length++] = c;
    }
}

bool sg_own_maps_visit(bool (*visit)(void *context, const struct sg_own_mapping *mapping), void *context)
{
    char text[512] = "";
    struct line line = {.field = BEGIN};
    bool goes_on = true;
    long length = 0, fd = sg_sys_openat((int)SG_AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    while (fd >= 0 && goes_on && (length = sg_sys_read((int)fd, text, sizeof text)) > 0)
        for (long i = 0; i < length && goes_on; i++) {
            if (text[i] != '\n') {
                read_character(&line, text[i]);
                continue;
            }
            goes_on = line.mapping.begin > INTPTR_MAX || visit(context, &line.mapping);
            line = (struct line){.field = BEGIN};
        }
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
    return fd >= 0 && length >= 0;
}
