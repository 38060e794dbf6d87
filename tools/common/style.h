/*
 * style.h - adapts text for people to its output stream: width, colour, character set.
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

/* An output stream and its abilities. */
struct style {
    FILE *stream;
    size_t columns;   /* width of the terminal, at least 40; 80 for a file or pipe */
    bool is_terminal; /* tables are cut to the width of a terminal only */
    bool has_colour;
    bool is_utf8;
};

/* Finds out the abilities of a stream. Respects NO_COLOR, TERM=dumb and the locale. */
struct style style_of(FILE *stream);

/* Return the escape sequences that begin and end a colour; "" on a stream without colour. */
const char *style_colour_on(const struct style *style, enum style_colour colour);
const char *style_colour_off(const struct style *style, enum style_colour colour);

/* Writes one piece of a list, after `separator` unless *column is 0. Continues on a new line if the piece does not fit
 * into the width. *column is the current column, 0 at the start of the list. `piece` must be printable and not longer
 * than a line. */
void style_flow(const struct style *style, size_t *column, const char *separator, enum style_colour colour,
                const char *piece);

/* Writes a printable text and ends the line. The cursor must be at column `indent`. On a terminal the text wraps
 * between words, and further lines begin at `indent`. */
void style_words(const struct style *style, size_t indent, enum style_colour colour, const char *text);

/* Lets what this process prints on stderr wrap between words where that is a terminal: each line as a whole, at the
 * width that the terminal then has. */
void style_wrap_messages(void);

#endif
