/*
 * json.c - see json.h.
 */
#include "common/json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "sparkguard_abi.h"
#include "common/text.h"
#include "common/tool.h"

json_t *json_of_text(const char *text)
{
    if (text == NULL)
        return json_null();
    json_t *string = json_string(text);
    if (string != NULL)
        return string;
    size_t left = strlen(text);
    char *valid = tool_allocate(3 * left + 1, 1), *out = valid;
    while (left > 0) {
        uint32_t code;
        size_t length = text_utf8_next(text, left, &code);
        out = code == TEXT_NO_CODE ? stpcpy(out, "\xef\xbf\xbd") : mempcpy(out, text, length);
        text += length;
        left -= length;
    }
    return json_string(valid);
}

json_t *json_of_number(uint64_t number)
{
    if (number == SG_UNKNOWN)
        return json_null();
    return json_integer(number < INT64_MAX ? (json_int_t)number : INT64_MAX);
}

json_t *json_of_real(double value)
{
    bool is_whole = fabs(value) < 1e15 && value == (double)(int64_t)value;
    return is_whole ? json_integer((json_int_t)value) : json_real(value);
}

json_t *json_of_time(int64_t time_ns)
{
    return json_of_text(text_time_rfc3339(time_ns));
}

/* Escapes the control characters that JSON allows. They are found in strings only, and jansson passes whole
 * characters. */
static int put_escaped(const char *text, size_t left, void *stream)
{
    size_t kept = 0; /* bytes before `text` that are not printed yet */
    while (left > 0) {
        uint32_t code;
        size_t length = text_utf8_next(text, left, &code);
        if (code >= 0x7f && text_is_control(code)) {
            fwrite(text - kept, 1, kept, stream);
            fprintf(stream, "\\u%04" PRIx32, code); /* all of them are below 0x10000 */
            kept = 0;
        } else {
            kept += length;
        }
        text += length;
        left -= length;
    }
    fwrite(text - kept, 1, kept, stream);
    return ferror(stream) ? -1 : 0;
}

void json_print(json_t *root, FILE *stream)
{
    json_dump_callback(root, put_escaped, stream, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    fputc('\n', stream);
}
