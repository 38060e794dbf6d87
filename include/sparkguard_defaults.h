/*
 * sparkguard_defaults.h - the user's file of defaults: values of options that neither a variable nor an option of a
 * tool sets.
 *
 *   # $XDG_CONFIG_HOME/sparkguard.conf, else ~/.config/sparkguard.conf
 *   reserve = 12G
 *   limit = 64G
 *   history = off
 *
 * Library and tools read it by sg_options_read_defaults() (base/options.h). A line that cannot be read has no effect;
 * of lines that set one option the last counts. All functions are pure: any thread, before set-up, any signal
 * handler.
 */
#ifndef SPARKGUARD_DEFAULTS_H
#define SPARKGUARD_DEFAULTS_H

#include "sparkguard_options.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { SG_DEFAULTS_BYTES = 4096, SG_DEFAULTS_PATH_BYTES = 1024, SG_DEFAULTS_CHANGES = 2 };

enum sg_defaults_state {
    SG_DEFAULTS_NONE,       /* there is no file, its place is not known, or it cannot be opened now */
    SG_DEFAULTS_READ,       /* it was read; single lines may have no effect */
    SG_DEFAULTS_FOREIGN,    /* it belongs to another user */
    SG_DEFAULTS_OPEN,       /* all users may write it */
    SG_DEFAULTS_UNREADABLE, /* no regular file, or reading it fails */
    SG_DEFAULTS_LARGE       /* longer than SG_DEFAULTS_BYTES */
};

struct sg_defaults {
    enum sg_defaults_state state;
    unsigned wrong_line;                /* the first line that cannot be read, from 1; 0: none */
    const char *wrong_name;             /* in `text`, before the '=' of that line; NULL: it has none */
    const char *value[SG_OPTION_COUNT]; /* in `text`, valid; NULL: the file does not set the option */
    unsigned line[SG_OPTION_COUNT];     /* that sets it, from 1 */
    char path[SG_DEFAULTS_PATH_BYTES];  /* of the file */
    char text[SG_DEFAULTS_BYTES + 1];
};

/* The form of a line, for the message about a wrong one. */
#define SG_DEFAULTS_EXPECTED "reserve=SIZE, limit=SIZE or history=DIR"

/* The options that the file may set: a user wants them of every program. Names and places of one run are none of it. */
static const enum sg_option sg_defaults_allowed[] = {SG_OPTION_RESERVE, SG_OPTION_LIMIT, SG_OPTION_HISTORY};

/* Ends of the sentence "PATH ..." that say why a file has no effect; NULL for the states in which it may have one, and
 * for FOREIGN, which is no mistake of this user. */
static inline const char *sg_defaults_fault(enum sg_defaults_state state)
{
    switch (state) {
    case SG_DEFAULTS_OPEN:
        return "can be written by all users and has no effect; chmod o-w mends it";
    case SG_DEFAULTS_UNREADABLE:
        return "cannot be read and has no effect";
    case SG_DEFAULTS_LARGE:
        return "is longer than 4096 bytes and has no effect";
    case SG_DEFAULTS_NONE:
    case SG_DEFAULTS_READ:
    case SG_DEFAULTS_FOREIGN:
        break;
    }
    return NULL;
}

/* Returns the name that the first wrong line nearly has, NULL if it has it or one like no other. */
static inline const char *sg_defaults_nearest(const struct sg_defaults *defaults)
{
    const char *name = defaults->wrong_name;
    for (size_t i = 0; name != NULL && i < sizeof sg_defaults_allowed / sizeof *sg_defaults_allowed; i++) {
        const char *allowed = sg_option_table[sg_defaults_allowed[i]].name;
        unsigned changes = sg_edit_distance(name, allowed);
        if (changes <= SG_DEFAULTS_CHANGES)
            return changes != 0 ? allowed : NULL;
    }
    return NULL;
}

static inline bool sg_defaults_is_blank(char byte)
{
    return byte == ' ' || byte == '\t' || byte == '\r';
}

/* Cuts blanks off both ends. */
static inline char *sg_defaults_trim(char *text)
{
    while (sg_defaults_is_blank(*text))
        text++;
    size_t length = strlen(text);
    while (length > 0 && sg_defaults_is_blank(text[length - 1]))
        length--;
    text[length] = '\0';
    return text;
}

/* Removes a comment: from a '#' on that begins the line, or follows a blank. */
static inline void sg_defaults_drop_comment(char *line)
{
    for (char *at = line; *at != '\0'; at++)
        if (*at == '#' && (at == line || sg_defaults_is_blank(at[-1]))) {
            *at = '\0';
            return;
        }
}

/* Whether the value is one that a user can mean: sizes have their unit, and programs run within the limit. */
static inline bool sg_defaults_is_meant(enum sg_option option, const char *value)
{
    return sg_is_valid(option, value) && sg_missing_unit(option, value) == '\0' &&
           (option != SG_OPTION_LIMIT || !sg_is_low_limit(value));
}

/* Takes over one line. False: it cannot be read. */
static inline bool sg_defaults_take_line(struct sg_defaults *out, char *line, unsigned number)
{
    sg_defaults_drop_comment(line);
    line = sg_defaults_trim(line);
    if (*line == '\0')
        return true;
    char *equals = strchr(line, '=');
    if (equals == NULL)
        return false;
    *equals = '\0';
    const char *name = sg_defaults_trim(line), *value = sg_defaults_trim(equals + 1);
    for (size_t i = 0; i < sizeof sg_defaults_allowed / sizeof *sg_defaults_allowed; i++) {
        enum sg_option option = sg_defaults_allowed[i];
        if (strcmp(name, sg_option_table[option].name) != 0)
            continue;
        if (!sg_defaults_is_meant(option, value))
            return false;
        out->value[option] = value;
        out->line[option] = number;
        return true;
    }
    if (out->wrong_line == 0)
        out->wrong_name = name;
    return false;
}

/* Takes over all lines of out->text, which is cut to pieces. */
static inline void sg_defaults_take_lines(struct sg_defaults *out, size_t bytes)
{
    char *line = out->text, *end = out->text + bytes;
    for (unsigned number = 1; line < end; number++) {
        char *next = memchr(line, '\n', (size_t)(end - line));
        next = next != NULL ? next : end;
        *next = '\0';
        bool is_text = strlen(line) == (size_t)(next - line); /* no zero byte in it */
        if ((!is_text || !sg_defaults_take_line(out, line, number)) && out->wrong_line == 0)
            out->wrong_line = number;
        line = next + 1;
    }
}

#endif
