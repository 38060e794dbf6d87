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

/* Returns whether `name` begins an option, which getopt accepts. Else the nearest option is in *nearest. */
static bool find_option(const struct argp *parser, const char *name, struct nearest *nearest)
{
    for (const struct argp_option *option = parser->options; option != NULL; option++) {
        if (option->name == NULL && option->key == 0 && option->doc == NULL)
            break;
        if (option->name == NULL) /* a heading */
            continue;
        if (strncmp(option->name, name, strlen(name)) == 0)
            return true;
        compare(nearest, name, option->name);
    }
    for (const struct argp_child *child = parser->children; child != NULL && child->argp != NULL; child++)
        if (find_option(child->argp, name, nearest))
            return true;
    return false;
}

/* Returns whether an option is that of other tools for the memory that a program may have: -m, -m4g, --mem-limit. */
static bool is_of_memory(const struct argp *parser, const char *argument)
{
    struct nearest nearest = {NULL, MOST_CHANGES + 1};
    bool is_short =
        strncmp(argument, "-m", 2) == 0 && (argument[2] == '\0' || strchr("0123456789", argument[2]) != NULL);
    bool is_long = strncmp(argument, "--", 2) == 0 && strstr(argument, "mem") != NULL;
    if ((!is_short && !is_long) || !find_option(parser, "memory", &nearest))
        return false;
    char *name = text_copy(argument + 2, strcspn(argument + 2, "="));
    nearest = (struct nearest){NULL, MOST_CHANGES + 1};
    return is_short || strcmp(name, "mem") == 0 || (!find_option(parser, name, &nearest) && nearest.word == NULL);
}

void suggest_option(const char *tool, const struct argp *parser, char **argv)
{
    for (char **argument = argv + 1; *argument != NULL && strcmp(*argument, "--") != 0; argument++) {
        if (strcmp(*argument, "-h") == 0) {
            fprintf(stderr, "%s: did you mean --help?\n", tool);
            return;
        }
        if (is_of_memory(parser, *argument)) {
            fprintf(stderr, "%s: did you mean --memory?\n", tool);
            return;
        }
        struct nearest nearest = {NULL, MOST_CHANGES + 1};
        if ((*argument)[0] == '-' && (*argument)[1] != '-') { /* a long option with one dash? */
            char *single = text_copy(*argument + 1, strcspn(*argument + 1, "="));
            bool is_long = strlen(single) >= LONG_LEAST && find_option(parser, single, &nearest);
            if (is_long)
                fprintf(stderr, "%s: did you mean --%s?\n", tool, single);
            if (is_long)
                return;
        }
        if (strncmp(*argument, "--", 2) != 0)
            continue;
        nearest = (struct nearest){NULL, MOST_CHANGES + 1};
        char *name = text_copy(*argument + 2, strcspn(*argument + 2, "="));
        bool is_known = strcmp(name, "help") == 0 || find_option(parser, name, &nearest);
        if (is_known)
            continue;
        if (nearest.word != NULL)
            fprintf(stderr, "%s: did you mean --%s?\n", tool, nearest.word);
        return;
    }
}

const char *suggest_word(const char *word, const char *const *words, size_t count)
{
    struct nearest nearest = {NULL, MOST_CHANGES + 1};
    for (size_t i = 0; i < count; i++)
        compare(&nearest, word, words[i]);
    return nearest.word;
}
