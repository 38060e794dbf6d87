/*
 * toml.c - see toml.h.
 */
#include "common/toml.h"

#include <stdbool.h>
#include <string.h>

#include "common/text.h"

/* Returns whether a header's name, without brackets, quotes and blanks, ends with the section's. */
static bool is_section(const char *line, size_t length, const char *section)
{
    char name[512];
    size_t used = 0, wanted = strlen(section);
    for (size_t i = 0; i < length && line[i] != '#' && used + 1 < sizeof name; i++)
        if (strchr("[]\"' \t", line[i]) == NULL)
            name[used++] = line[i];
    name[used] = '\0';
    if (used < wanted || strcmp(name + used - wanted, section) != 0)
        return false;
    return used == wanted || (wanted > 0 && name[used - wanted - 1] == '.');
}

/* Returns a copy of a value up to its comment, without the quotes around it. */
static char *value_before_comment(const char *text, size_t length)
{
    if (length > 0 && (text[0] == '"' || text[0] == '\'')) {
        const char *end = memchr(text + 1, text[0], length - 1);
        return end != NULL ? text_copy(text + 1, (size_t)(end - text - 1)) : text_copy("", 1);
    }
    const char *comment = memchr(text, '#', length);
    length = comment != NULL ? (size_t)(comment - text) : length;
    while (length > 0 && strchr(" \t\r", text[length - 1]) != NULL)
        length--;
    return text_copy(text, length);
}

char *toml_value(const char *text, const char *section, const char *key)
{
    bool is_in = section[0] == '\0';
    size_t key_length = strlen(key);
    char *value = NULL;
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        line += strspn(line, " \t");
        size_t length = strcspn(line, "\n");
        if (line[0] == '[') {
            is_in = section[0] != '\0' && is_section(line, length, section);
            continue;
        }
        if (!is_in || strncmp(line, key, key_length) != 0)
            continue;
        const char *at = line + key_length;
        at += strspn(at, " \t");
        if (*at != '=')
            continue;
        at += 1 + strspn(at + 1, " \t");
        value = value_before_comment(at, (size_t)(line + length - at));
    }
    return value;
}
