/*
 * style.c - style.css: the style sheet for wide and narrow screens, bright and dark displays, and paper. Colour repeats
 * what the words say.
 */
#include "report/html/html.h"

const char report_html_style[] =
#include "style.css.inc"
    ;
