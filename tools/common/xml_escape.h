/*
 * xml_escape.h - escapes texts for HTML and SVG, so that they cannot break out of an element or a quoted attribute.
 */
#ifndef SG_TOOLS_COMMON_XML_ESCAPE_H
#define SG_TOOLS_COMMON_XML_ESCAPE_H

#include <stdio.h>

/* Writes a text with XML's special characters escaped. Control characters, bidi controls and characters that XML does
 * not allow appear as \x1b or \u202e. */
void xml_escape_text(FILE *stream, const char *text);

#endif
