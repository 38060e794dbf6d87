/*
 * sparkguard_bounds.h - the administrator's file: the largest limit and the smallest reserve that each user can have.
 * The library and the launcher read it with this one parser.
 *
 *   # who      bounds
 *   alice      limit=80G reserve=12G
 *   @students  limit=24G
 *   *          limit=60G
 *
 * `who` is a user's name or number, a group's behind "@", or "*": all users but root. For each bound, the first line
 * that names the user counts. Names are looked up in /etc/passwd and /etc/group; users of other sources, such as LDAP,
 * need their numbers. All functions are pure: any thread, any signal handler.
 */
#ifndef SPARKGUARD_BOUNDS_H
#define SPARKGUARD_BOUNDS_H

#include "sparkguard_options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SG_BOUNDS_FILE "/etc/sparkguard.conf"

struct sg_bounds {
    struct sg_size limit;   /* the largest limit; a job without a limit has this one */
    struct sg_size reserve; /* the smallest reserve of the machine */
    uint32_t zero_line;     /* the first line with a bound of 0, which is read as none, from 1; 0: there is none */
};

/* Part of a file's text. It needs no terminator; `at` may be NULL if `bytes` is 0. */
struct sg_bounds_text {
    const char *at;
    size_t bytes;
};

struct sg_bounds_sources {
    struct sg_bounds_text bounds, users, groups; /* sparkguard.conf, /etc/passwd, /etc/group */
};

struct sg_bounds_user {
    uint32_t user;
    const uint32_t *groups;
    size_t group_count;
};

/* Removes the text before the next `end` from *text and returns it; `end` is removed, too. */
static inline struct sg_bounds_text sg_bounds_cut(struct sg_bounds_text *text, char end)
{
    const char *found = text->bytes != 0 ? (const char *)memchr(text->at, end, text->bytes) : NULL;
    struct sg_bounds_text part = {text->at, found != NULL ? (size_t)(found - text->at) : text->bytes};
    size_t removed = part.bytes + (found != NULL ? 1 : 0);
    *text = (struct sg_bounds_text){removed != 0 ? text->at + removed : text->at, text->bytes - removed};
    return part;
}

/* Removes the next word from a line and returns it; without one, `bytes` is 0. */
static inline struct sg_bounds_text sg_bounds_word(struct sg_bounds_text *line)
{
    size_t begin = 0;
    while (begin < line->bytes && (line->at[begin] == ' ' || line->at[begin] == '\t' || line->at[begin] == '\r'))
        begin++;
    size_t end = begin;
    while (end < line->bytes && line->at[end] != ' ' && line->at[end] != '\t' && line->at[end] != '\r')
        end++;
    struct sg_bounds_text word = {end != 0 ? line->at + begin : line->at, end - begin};
    *line = (struct sg_bounds_text){end != 0 ? line->at + end : line->at, line->bytes - end};
    return word;
}

static inline bool sg_bounds_is(struct sg_bounds_text text, const char *expected)
{
    return text.bytes == strlen(expected) && (text.bytes == 0 || memcmp(text.at, expected, text.bytes) == 0);
}

/* Returns the number that a text consists of, or UINT64_MAX. */
static inline uint64_t sg_bounds_number(struct sg_bounds_text text)
{
    uint64_t number = 0;
    for (size_t i = 0; i < text.bytes; i++) {
        if (text.at[i] < '0' || text.at[i] > '9' || number > UINT32_MAX)
            return UINT64_MAX;
        number = number * 10 + (uint64_t)(text.at[i] - '0');
    }
    return text.bytes != 0 ? number : UINT64_MAX;
}

/* Returns the number of a user or group: the text itself, or its third field in /etc/passwd or /etc/group; UINT64_MAX:
 * there is none of that name. */
static inline uint64_t sg_bounds_identity(struct sg_bounds_text name, struct sg_bounds_text known)
{
    uint64_t number = sg_bounds_number(name);
    while (number == UINT64_MAX && known.bytes != 0) {
        struct sg_bounds_text line = sg_bounds_cut(&known, '\n'), first = sg_bounds_cut(&line, ':');
        if (first.bytes != name.bytes || name.bytes == 0 || memcmp(first.at, name.at, name.bytes) != 0)
            continue;
        (void)sg_bounds_cut(&line, ':');
        number = sg_bounds_number(sg_bounds_cut(&line, ':'));
    }
    return number;
}

static inline bool sg_bounds_names(struct sg_bounds_text who, const struct sg_bounds_sources *sources,
                                   const struct sg_bounds_user *user)
{
    if (sg_bounds_is(who, "*"))
        return user->user != 0;
    if (who.at[0] != '@')
        return sg_bounds_identity(who, sources->users) == user->user;
    const struct sg_bounds_text name = {who.at + 1, who.bytes - 1};
    uint64_t group = sg_bounds_identity(name, sources->groups);
    for (size_t i = 0; i < user->group_count; i++)
        if (group == user->groups[i])
            return true;
    return false;
}

/* Reads "limit=SIZE" or "reserve=SIZE". False: it is neither. Of 0 in any spelling but "none", zero_line becomes 1. */
static inline bool sg_bounds_take(struct sg_bounds *bounds, struct sg_bounds_text word)
{
    char value[32];
    struct sg_size size;
    struct sg_bounds_text name = sg_bounds_cut(&word, '=');
    bool is_limit = sg_bounds_is(name, "limit");
    if ((!is_limit && !sg_bounds_is(name, "reserve")) || word.bytes == 0 || word.bytes >= sizeof value)
        return false;
    memcpy(value, word.at, word.bytes);
    value[word.bytes] = '\0';
    if (sg_parse_size(value, &size) != 0)
        return false;
    bounds->zero_line |= sg_is_told_zero(is_limit ? SG_OPTION_LIMIT : SG_OPTION_RESERVE, value);
    *(is_limit ? &bounds->limit : &bounds->reserve) = size;
    return true;
}

/* Finds the bounds of a user; a bound that no line sets, or that its line sets to none, is not set. Lines that cannot
 * be read have no effect. Returns the number of the first of them, from 1; 0: all lines can be read. */
static inline uint32_t sg_bounds_find(const struct sg_bounds_sources *sources, const struct sg_bounds_user *user,
                                      struct sg_bounds *bounds)
{
    struct sg_bounds_text rest = sources->bounds;
    uint32_t number = 0, unreadable = 0;
    *bounds = (struct sg_bounds){0};
    while (rest.bytes != 0) {
        struct sg_bounds_text line = sg_bounds_cut(&rest, '\n'), part = sg_bounds_cut(&line, '#');
        struct sg_bounds_text who = sg_bounds_word(&part), word = sg_bounds_word(&part);
        struct sg_bounds here = {0};
        bool is_readable = who.bytes == 0 || word.bytes != 0;
        number++;
        for (; is_readable && word.bytes != 0; word = sg_bounds_word(&part))
            is_readable = sg_bounds_take(&here, word);
        if (!is_readable)
            unreadable = unreadable != 0 ? unreadable : number;
        if (is_readable && here.zero_line != 0 && bounds->zero_line == 0)
            bounds->zero_line = number;
        if (!is_readable || who.bytes == 0 || !sg_bounds_names(who, sources, user))
            continue;
        bounds->limit = bounds->limit.is_set ? bounds->limit : here.limit;
        bounds->reserve = bounds->reserve.is_set ? bounds->reserve : here.reserve;
    }
    bounds->limit.is_set = bounds->limit.bytes != 0 || bounds->limit.percent_milli != 0;
    bounds->reserve.is_set = bounds->reserve.bytes != 0 || bounds->reserve.percent_milli != 0;
    return unreadable;
}

#endif
