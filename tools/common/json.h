/*
 * json.h - JSON, through jansson: values for what the tools know, and the one way in which they print it. Everything
 * else is jansson's own interface.
 *
 * Out of memory ends the tool, also inside jansson's functions. So no function returns NULL for that reason, and an
 * object never lacks a key. The caller owns a returned value, or passes it to json_object_set_new() or
 * json_array_append_new().
 */
#ifndef SG_TOOLS_COMMON_JSON_H
#define SG_TOOLS_COMMON_JSON_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

/* Returns a string, or null for NULL. Bytes that are not UTF-8 become U+FFFD. */
json_t *json_of_text(const char *text);
/* Returns an integer, or null for SG_UNKNOWN. A number above INT64_MAX, which no figure of a machine reaches, becomes
 * INT64_MAX. */
json_t *json_of_number(uint64_t number);
/* Returns a number; a whole one is written without a fraction. `value` must be finite. */
json_t *json_of_real(double value);
/* Returns a time as a string of RFC 3339 in UTC, or null for an unknown time. */
json_t *json_of_time(int64_t time_ns);

/* Prints `root` on lines of its own, indented, keys in the order in which they were set. Characters that could control
 * a terminal (text_is_control) are escaped, other characters are printed as UTF-8. The stream's error flag shows
 * whether that failed. */
void json_print(json_t *root, FILE *stream);

#endif
