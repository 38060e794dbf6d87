/*
 * style.h - how text for people looks where it goes: width, colour, characters.
 */
#ifndef SG_TOOLS_COMMON_STYLE_H
#define SG_TOOLS_COMMON_STYLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum style_colour {
    STYLE_PLAIN,
    STYLE_BOLD,
    STYLE_DIM,
    STYLE_RED,
    STYLE_GREEN,
    STYLE_YELLOW,
    STYLE_CYAN,
};

/* Where the text goes. */
struct style {
    FILE *stream;
    size_t columns;   /* of the terminal; 80 where there is none */
    bool is_terminal; /* tables are cut to its width */
    bool has_colour;
    bool is_utf8;
};

struct style style_of(FILE *stream);

/* The escape that begins a colour, and the one that ends it; "" without colour. */
const char *style_colour_on(const struct style *style, enum style_colour colour);
const char *style_colour_off(const struct style *style, enum style_colour colour);

/* Puts one more piece of a line, behind `separator` unless it is the first; wraps where the terminal ends. `column` is
 * where the line stands, 0 at first. The piece is printable and not longer than a line. */
void style_flow(const struct style *style, size_t *column, const char *separator, enum style_colour colour,
                const char *piece);

/* Puts a printable text, the line standing at `indent` blanks; on a terminal it wraps between words and goes on there. */
void style_words(const struct style *style, size_t indent, enum style_colour colour, const char *text);

#endif
