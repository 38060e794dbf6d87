/*
 * style.c - see style.h.
 */
#include <langinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/text.h"
#include "common/style.h"
#include "common/text.h"

struct style style_of(FILE *stream)
{
    struct winsize size;
    const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");
    int fd = stream == stderr ? STDERR_FILENO : fileno(stream); /* one that wraps has no descriptor of its own */
    struct style style = {.stream = stream, .columns = 80, .is_terminal = isatty(fd) == 1};
    if (style.is_terminal && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        style.columns = size.ws_col < 40 ? 40 : size.ws_col;
    style.has_colour = style.is_terminal && (no_colour == NULL || no_colour[0] == '\0') && terminal != NULL &&
                       strcmp(terminal, "dumb") != 0;
    style.is_utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    return style;
}

const char *style_colour_on(const struct style *style, enum style_colour colour)
{
    static const char *const sequences[] = {
        [STYLE_PLAIN] = "",         [STYLE_BOLD] = "\033[1m",    [STYLE_DIM] = "\033[2m",   [STYLE_RED] = "\033[31m",
        [STYLE_GREEN] = "\033[32m", [STYLE_YELLOW] = "\033[33m", [STYLE_CYAN] = "\033[36m",
    };
    return style->has_colour ? sequences[colour] : "";
}

const char *style_colour_off(const struct style *style, enum style_colour colour)
{
    return style->has_colour && colour != STYLE_PLAIN ? "\033[0m" : "";
}

static size_t columns_of(const char *text)
{
    size_t count = 0;
    for (; *text != '\0'; text++)
        count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

void style_flow(const struct style *style, size_t *column, const char *separator, enum style_colour colour,
                const char *piece)
{
    static const char indent[] = "  ";
    size_t length = columns_of(piece);
    if (*column > 0 && *column + strlen(separator) + length > style->columns) {
        fprintf(style->stream, "%s\n%s", separator[0] == ',' ? "," : "", indent);
        *column = strlen(indent);
    } else if (*column > 0) {
        fputs(separator, style->stream);
        *column += strlen(separator);
    }
    fprintf(style->stream, "%s%s%s", style_colour_on(style, colour), piece, style_colour_off(style, colour));
    *column += length;
}

void style_words(const struct style *style, size_t indent, enum style_colour colour, const char *text)
{
    size_t column = indent;
    fputs(style_colour_on(style, colour), style->stream);
    while (*text != '\0') {
        size_t bytes = strspn(text, " ") + strcspn(text + strspn(text, " "), " ");
        char *word = text_copy(text, bytes); /* including the blanks before the word */
        if (style->is_terminal && column > indent && column + columns_of(word) > style->columns) {
            fprintf(style->stream, "\n%*s%s", (int)indent, "", word + strspn(word, " "));
            column = indent + columns_of(word + strspn(word, " "));
        } else {
            fputs(word, style->stream);
            column += columns_of(word);
        }
        text += bytes;
    }
    fprintf(style->stream, "%s\n", style_colour_off(style, colour));
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

enum { MESSAGE_BYTES = 4096 };

/* Writes to the terminal what stdio has of a message: whole lines, as a rule. Returns how much of it is written. */
static ssize_t write_message(void *cookie, const char *text, size_t bytes)
{
    static char broken[MESSAGE_BYTES];
    struct winsize size;
    bool has_width = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    (void)cookie;
    if (!has_width || bytes > MESSAGE_BYTES)
        return write(STDERR_FILENO, text, bytes);
    memcpy(broken, text, bytes);
    sg_text_wrap(broken, bytes, size.ws_col);
    return write(STDERR_FILENO, broken, bytes); /* as many bytes: spaces became ends of lines */
}

void style_wrap_messages(void)
{
    static const cookie_io_functions_t functions = {.write = write_message};
    static char buffer[MESSAGE_BYTES];
    FILE *stream = isatty(STDERR_FILENO) == 1 ? fopencookie(NULL, "w", functions) : NULL;
    if (stream == NULL)
        return;
    setvbuf(stream, buffer, _IOLBF, sizeof buffer);
    stderr = stream;
}
