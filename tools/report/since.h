/*
 * since.h - parses a time from the command line.
 */
#ifndef SG_TOOLS_REPORT_SINCE_H
#define SG_TOOLS_REPORT_SINCE_H

#include <stdbool.h>
#include <stdint.h>

/* Nanoseconds since 1970, above 0, of
 *   2h  30min  "1d 12h"  "2 hours ago"       so long before `now_ns`; units s, min or m, h, d, w, also spelt out
 *   2026-11-20  2026-11-20T13:06[:40[.5]]    with Z or +01:00 as RFC 3339 has it, else in the reader's time zone; a
 *   blank for T 13:06[:40[.5]]                           of today, in the reader's time zone
 *   today  yesterday                         the midnight at which they began
 *   @1795180000                              seconds since 1970
 * False where the text is none of these. */
bool report_since_parse(const char *text, int64_t now_ns, int64_t *since_ns);

#endif
