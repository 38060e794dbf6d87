/*
 * xml_escape.h - texts as HTML and SVG hold them: they cannot break out of an element or of a quoted attribute.
 */
#ifndef SG_TOOLS_COMMON_XML_ESCAPE_H
#define SG_TOOLS_COMMON_XML_ESCAPE_H

#include <stdio.h>

/* Puts a text, escaped; what XML cannot hold, steers or reorders is spelt out. */
void xml_escape_text(FILE *stream, const char *text);

#endif
