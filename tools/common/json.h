/*
 * json.h - a strict emitter: nesting, commas and escapes are its business, so that what comes out is JSON.
 *
 * A key is given for members of an object and NULL for elements of an array. Output is ASCII-safe where it matters:
 * control characters are escaped, bytes that are no UTF-8 become U+FFFD.
 */
#ifndef SG_TOOLS_COMMON_JSON_H
#define SG_TOOLS_COMMON_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct report_json {
    FILE *stream;
    unsigned depth;
    bool has_members; /* in the object or array that is open */
};

void report_json_open(struct report_json *json, const char *key, char bracket);
void report_json_close(struct report_json *json, char bracket);
void report_json_text(struct report_json *json, const char *key, const char *text);
void report_json_integer(struct report_json *json, const char *key, int64_t value);
/* Finite. */
void report_json_number(struct report_json *json, const char *key, double value);
void report_json_bool(struct report_json *json, const char *key, bool value);
void report_json_null(struct report_json *json, const char *key);

/* null for SG_UNKNOWN. */
void report_json_bytes(struct report_json *json, const char *key, uint64_t bytes);

/* RFC 3339 in UTC, null for a time that is unknown. */
void report_json_time(struct report_json *json, const char *key, int64_t time_ns);

#endif
