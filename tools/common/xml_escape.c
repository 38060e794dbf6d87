/*
 * xml_escape.c - see xml_escape.h.
 */
#include "common/xml_escape.h"

#include <stdint.h>
#include <string.h>

#include "common/text.h"

void xml_escape_text(FILE *stream, const char *text)
{
    char *printable = text_printable(text, true); /* leaves no control characters and only valid UTF-8 */
    size_t left = strlen(printable);
    for (const char *p = printable; left > 0;) {
        uint32_t code;
        size_t length = text_utf8_next(p, left, &code);
        if (code == '&' || code == '<' || code == '>' || code == '"' || code == '\'')
            fprintf(stream, "&#%u;", (unsigned)code);
        else if (code == 0xfffe || code == 0xffff)
            fprintf(stream, "\\u%04x", (unsigned)code); /* XML does not allow these two characters */
        else
            fwrite(p, 1, length, stream);
        p += length;
        left -= length;
    }
}
