/*
 * text.c - see base/text.h.
 */
#include "base/text.h"

#include "sparkguard_options.h"
#include "base/syscall.h"

#include <string.h>
#include <fcntl.h>

void sg_text_add(struct sg_text *text, const char *piece)
{
    while (*piece != '\0' && text->length + 1 < text->capacity)
        text->bytes[text->length++] = *piece++;
    text->bytes[text->length] = '\0';
}

void sg_text_add_padded(struct sg_text *text, uint64_t number, unsigned digits)
{
    char reversed[24], forward[24];
    unsigned count = 0;
    do
        reversed[count++] = (char)('0' + number % 10);
    while ((number /= 10) != 0 || count < digits);
    for (unsigned i = 0; i < count; i++)
        forward[i] = reversed[count - 1 - i];
    forward[count] = '\0';
    sg_text_add(text, forward);
}

void sg_text_add_number(struct sg_text *text, uint64_t number)
{
    sg_text_add_padded(text, number, 1);
}

void sg_text_add_place(struct sg_text *text, const char *path, uint32_t line)
{
    sg_text_add(text, path);
    if (line == 0)
        return;
    sg_text_add(text, ":");
    sg_text_add_number(text, line);
}

void sg_text_add_hex(struct sg_text *text, uint64_t number)
{
    char digits[17];
    for (int i = 0; i < 16; i++)
        digits[i] = "0123456789abcdef"[(number >> (60 - 4 * i)) & 15];
    digits[16] = '\0';
    sg_text_add(text, digits);
}

/* Counts years from March on, so that the leap day is the last day of a year (H. Hinnant, "chrono-Compatible Low-Level
 * Date Algorithms", civil_from_days). */
void sg_text_add_time(struct sg_text *text, uint64_t seconds)
{
    uint64_t days = seconds / 86400 + 719468, rest = seconds % 86400; /* since 1 March of the year 0 */
    uint64_t era = days / 146097, of_era = days % 146097;
    uint64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    uint64_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    uint64_t month = (5 * of_year + 2) / 153; /* 0 is March */
    sg_text_add_padded(text, era * 400 + year_of_era + (month >= 10), 4);
    sg_text_add_padded(text, month < 10 ? month + 3 : month - 9, 2);
    sg_text_add_padded(text, of_year - (153 * month + 2) / 5 + 1, 2);
    sg_text_add(text, "T");
    sg_text_add_padded(text, rest / 3600, 2);
    sg_text_add_padded(text, rest / 60 % 60, 2);
    sg_text_add_padded(text, rest % 60, 2);
}

void sg_text_add_size(struct sg_text *text, uint64_t bytes)
{
    char size[16];
    sg_format_size(size, bytes);
    sg_text_add(text, size);
}

uint64_t sg_text_read_number(const char **cursor)
{
    const char *p = *cursor;
    uint64_t number = 0;
    while (*p == ' ' || *p == '\t')
        p++;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(number, 10u, &number) ||
            __builtin_add_overflow(number, (uint64_t)(*p - '0'), &number))
            number = UINT64_MAX;
    *cursor = p;
    return number;
}

long sg_text_read_file(const char *path, char *buffer, size_t capacity)
{
    buffer[0] = '\0';
    const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK; /* a FIFO in the file's place must not block us */
    long fd = sg_sys_openat((int)SG_AT_FDCWD, path, flags, 0);
    if (fd < 0)
        return fd;
    size_t length = 0;
    long got = 1;
    while (got > 0 && length + 1 < capacity) {
        got = sg_sys_read((int)fd, buffer + length, capacity - 1 - length);
        if (got == -EINTR)
            got = 1;
        else if (got > 0)
            length += (size_t)got;
    }
    (void)sg_sys_close((int)fd);
    buffer[length] = '\0';
    return got < 0 ? got : (long)length;
}

uint64_t sg_text_read_field(const char *text, const char *key, uint64_t missing)
{
    size_t length = strlen(key);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, length) == 0 && (line[length] == ' ' || line[length] == '\t')) {
            const char *cursor = line + length;
            return sg_text_read_number(&cursor);
        }
        line = strchr(line, '\n');
        if (line != NULL)
            line++;
    }
    return missing;
}

void sg_text_wrap(char *text, size_t length, size_t columns)
{
    size_t begin = 0, width = 0, space = 0,
           to_space = 0; /* of the row; its last space (0: none), and the width to it */
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\033') { /* a colour: takes no column, and ends with a letter */
            while (i + 1 < length && ((unsigned char)text[i] < 'A' || text[i] == '['))
                i++;
            continue;
        }
        width += ((unsigned char)text[i] & 0xc0) != 0x80;
        if (text[i] == ' ') {
            space = i;
            to_space = width;
        }
        if (text[i] == '\n') {
            begin = i + 1;
            width = 0;
        } else if (width > columns && space > begin) {
            text[space] = '\n';
            begin = space + 1;
            width -= to_space;
        }
    }
}
