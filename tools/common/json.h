/*
 * json.h - writes JSON. The writer handles nesting, commas, indentation and escapes, so that the output is valid JSON.
 *
 * `key` names a member of an object. `key` is NULL for an element of an array and for the outermost value. Control
 * characters are escaped. Bytes that are not UTF-8 become U+FFFD.
 */
#ifndef SG_TOOLS_COMMON_JSON_H
#define SG_TOOLS_COMMON_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *stream;
    unsigned depth;
    bool has_members; /* the innermost open object or array has members */
};

/* Opens and closes an object or array; `bracket` is '{', '[', '}' or ']'. Closing the outermost ends the line. */
void json_open(struct json *json, const char *key, char bracket);
void json_close(struct json *json, char bracket);
void json_text(struct json *json, const char *key, const char *text);
void json_integer(struct json *json, const char *key, int64_t value);
/* Writes a number with up to 15 significant digits. `value` must be finite. */
void json_number(struct json *json, const char *key, double value);
void json_bool(struct json *json, const char *key, bool value);
void json_null(struct json *json, const char *key);

/* Writes a number of bytes, or null for SG_UNKNOWN. */
void json_bytes(struct json *json, const char *key, uint64_t bytes);

/* Writes a time as a text of RFC 3339 in UTC, or null for an unknown time. */
void json_time(struct json *json, const char *key, int64_t time_ns);

#endif
