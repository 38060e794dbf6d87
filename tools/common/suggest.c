/*
 * suggest.c - see suggest.h.
 */
#include "common/suggest.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/text.h"
#include "sparkguard_options.h"

/* Letters: words that differ in more are not similar, and shorter ones are several options of a letter each. */
enum { MOST_CHANGES = 2, LONG_LEAST = 3 };

struct nearest {
    const char *word; /* NULL: none is similar yet */
    unsigned changes;
};

static void compare(struct nearest *nearest, const char *given, const char *word)
{
    unsigned changes = sg_edit_distance(given, word);
    if (changes < nearest->changes)
        *nearest = (struct nearest){word, changes};
}

/* Returns the option that `name` is, or begins, as getopt(3) accepts it. Else NULL, and the nearest is in *nearest. */
static const struct argp_option *find_option(const struct argp *parser, const char *name, struct nearest *nearest)
{
    for (const struct argp_option *option = parser->options; option != NULL; option++) {
        if (option->name == NULL && option->key == 0 && option->doc == NULL)
            break;
        if (option->name == NULL) /* a heading */
            continue;
        if (strncmp(option->name, name, strlen(name)) == 0)
            return option;
        compare(nearest, name, option->name);
    }
    const struct argp_option *found = NULL;
    for (const struct argp_child *child = parser->children; found == NULL && child != NULL && child->argp != NULL;
         child++)
        found = find_option(child->argp, name, nearest);
    return found;
}

static const struct argp_option *find_letter(const struct argp *parser, char letter)
{
    for (const struct argp_option *option = parser->options; option != NULL; option++) {
        if (option->name == NULL && option->key == 0 && option->doc == NULL)
            break;
        if (option->key == letter && option->doc != NULL)
            return option;
    }
    const struct argp_option *found = NULL;
    for (const struct argp_child *child = parser->children; found == NULL && child != NULL && child->argp != NULL;
         child++)
        found = find_letter(child->argp, letter);
    return found;
}

/* The name in an argument such as --NAME=VALUE or -NAME. */
static char *name_in(const char *argument)
{
    argument += strncmp(argument, "--", 2) == 0 ? 2 : 1;
    return text_copy(argument, strcspn(argument, "="));
}

/* Returns whether an option is that of other tools for the memory that a program may have: -m, -m4g, --mem-limit. */
static bool is_of_memory(const struct argp *parser, const char *argument)
{
    struct nearest nearest = {NULL, MOST_CHANGES + 1};
    char *name = name_in(argument);
    bool is_short = argument[1] == 'm' && (argument[2] == '\0' || strchr("0123456789", argument[2]) != NULL);
    bool is_long = strncmp(argument, "--", 2) == 0 && strstr(name, "mem") != NULL;
    if (find_option(parser, "memory", &nearest) == NULL)
        return false;
    nearest = (struct nearest){NULL, MOST_CHANGES + 1};
    return is_short || strcmp(name, "mem") == 0 ||
           (is_long && find_option(parser, name, &nearest) == NULL && nearest.word == NULL);
}

/* Returns the long option that was probably meant by an argument that is none; NULL if none is near. */
static const char *meant_by(const struct argp *parser, const char *argument)
{
    struct nearest nearest = {NULL, MOST_CHANGES + 1};
    bool has_one_dash = strncmp(argument, "--", 2) != 0;
    char *name = name_in(argument);
    if (strcmp(argument, "-h") == 0)
        return "help";
    if (is_of_memory(parser, argument))
        return "memory";
    if (has_one_dash && strlen(name) < LONG_LEAST)
        return NULL;
    const struct argp_option *option = find_option(parser, name, &nearest);
    if (has_one_dash)
        return option != NULL ? option->name : NULL;
    return nearest.word;
}

/* Returns whether an argument is an option that getopt(3) accepts; *takes_next: the next argument is its value. */
static bool is_known(const struct argp *parser, const char *argument, bool *takes_next)
{
    struct nearest nearest = {NULL, MOST_CHANGES + 1};
    bool is_long = strncmp(argument, "--", 2) == 0;
    char *name = name_in(argument);
    *takes_next = false;
    if (is_of_memory(parser, argument))
        return false;
    if (!is_long && strlen(name) >= LONG_LEAST && find_option(parser, name, &nearest) != NULL)
        return false; /* a long option with one dash */
    if (is_long && (strcmp(name, "help") == 0 || strcmp(name, "usage") == 0 || strcmp(name, "version") == 0))
        return true;
    const struct argp_option *option = is_long ? find_option(parser, name, &nearest) : find_letter(parser, argument[1]);
    while (option != NULL && (option->flags & OPTION_ALIAS) != 0)
        option--;
    if (option != NULL && option->arg != NULL && (option->flags & OPTION_ARG_OPTIONAL) == 0)
        *takes_next = is_long ? strchr(argument, '=') == NULL : argument[2] == '\0';
    return option != NULL;
}

void suggest_option(const char *tool, const struct argp *parser, unsigned flags, char **argv)
{
    bool takes_next;
    for (char **argument = argv + 1; *argument != NULL && strcmp(*argument, "--") != 0; argument++) {
        if ((*argument)[0] != '-' || (*argument)[1] == '\0') {
            if ((flags & ARGP_IN_ORDER) != 0) /* the rest is the program's */
                return;
            continue;
        }
        if (!is_known(parser, *argument, &takes_next)) {
            const char *meant = meant_by(parser, *argument);
            if (meant != NULL)
                fprintf(stderr, "%s: did you mean --%s?\n", tool, meant);
            return;
        }
        if (takes_next && argument[1] != NULL)
            argument++;
    }
}

const char *suggest_word(const char *word, const char *const *words, size_t count)
{
    struct nearest nearest = {NULL, MOST_CHANGES + 1};
    for (size_t i = 0; i < count; i++)
        compare(&nearest, word, words[i]);
    return nearest.word;
}
