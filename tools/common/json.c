/*
 * json.c - see json.h.
 */
#include "common/json.h"

#include <inttypes.h>
#include <string.h>

#include "sparkguard_abi.h"
#include "common/text.h"

static void put_text(FILE *stream, const char *text)
{
    size_t left = strlen(text);
    fputc('"', stream);
    while (left > 0) {
        uint32_t code;
        size_t length = text_utf8_next(text, left, &code);
        if (code == TEXT_NO_CODE)
            fputs("\\ufffd", stream);
        else if (text_is_control(code))
            fprintf(stream, "\\u%04" PRIx32, code); /* all control characters are below 0x10000 */
        else if (code == '"' || code == '\\')
            fprintf(stream, "\\%c", (int)code);
        else
            fwrite(text, 1, length, stream);
        text += length;
        left -= length;
    }
    fputc('"', stream);
}

static void put_indent(const struct json *json)
{
    fprintf(json->stream, "\n%*s", (int)(2 * json->depth), "");
}

static void begin_value(struct json *json, const char *key)
{
    if (json->has_members)
        fputc(',', json->stream);
    if (json->depth > 0)
        put_indent(json);
    json->has_members = true;
    if (key != NULL) {
        put_text(json->stream, key);
        fputs(": ", json->stream);
    }
}

void json_open(struct json *json, const char *key, char bracket)
{
    begin_value(json, key);
    fputc(bracket, json->stream);
    json->depth++;
    json->has_members = false;
}

void json_close(struct json *json, char bracket)
{
    json->depth--;
    if (json->has_members)
        put_indent(json);
    fputc(bracket, json->stream);
    json->has_members = true;
    if (json->depth == 0)
        fputc('\n', json->stream);
}

void json_text(struct json *json, const char *key, const char *text)
{
    begin_value(json, key);
    put_text(json->stream, text);
}

void json_integer(struct json *json, const char *key, int64_t value)
{
    begin_value(json, key);
    fprintf(json->stream, "%" PRId64, value);
}

void json_number(struct json *json, const char *key, double value)
{
    begin_value(json, key);
    fprintf(json->stream, "%.15g", value);
}

void json_bytes(struct json *json, const char *key, uint64_t bytes)
{
    begin_value(json, key);
    if (bytes == SG_UNKNOWN)
        fputs("null", json->stream);
    else
        fprintf(json->stream, "%" PRIu64, bytes);
}

void json_bool(struct json *json, const char *key, bool value)
{
    begin_value(json, key);
    fputs(value ? "true" : "false", json->stream);
}

void json_null(struct json *json, const char *key)
{
    begin_value(json, key);
    fputs("null", json->stream);
}

void json_time(struct json *json, const char *key, int64_t time_ns)
{
    char text[TEXT_TIME_CAPACITY];
    if (text_time_rfc3339(text, time_ns))
        json_text(json, key, text);
    else
        json_null(json, key);
}
