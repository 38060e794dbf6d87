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

struct json {
    FILE *stream;
    unsigned depth;
    bool has_members; /* in the object or array that is open */
};

void json_open(struct json *json, const char *key, char bracket);
void json_close(struct json *json, char bracket);
void json_text(struct json *json, const char *key, const char *text);
void json_integer(struct json *json, const char *key, int64_t value);
/* Finite. */
void json_number(struct json *json, const char *key, double value);
void json_bool(struct json *json, const char *key, bool value);
void json_null(struct json *json, const char *key);

/* null for SG_UNKNOWN. */
void json_bytes(struct json *json, const char *key, uint64_t bytes);

/* RFC 3339 in UTC, null for a time that is unknown. */
void json_time(struct json *json, const char *key, int64_t time_ns);

#endif
