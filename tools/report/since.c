/*
 * since.c - see since.h.
 */
#include "report/since.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECOND_NS INT64_C(1000000000)

static const struct {
    const char *name;
    int64_t seconds;
} units[] = {
    {"s", 1},       {"sec", 1},      {"second", 1}, {"seconds", 1},   {"m", 60},         {"min", 60},
    {"minute", 60}, {"minutes", 60}, {"h", 3600},   {"hour", 3600},   {"hours", 3600},   {"d", 86400},
    {"day", 86400}, {"days", 86400}, {"w", 604800}, {"week", 604800}, {"weeks", 604800},
};

static int64_t seconds_of(const char *unit, size_t length)
{
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strlen(units[i].name) == length && memcmp(units[i].name, unit, length) == 0)
            return units[i].seconds;
    return 0;
}

static const char *skip_blanks(const char *text)
{
    return text + strspn(text, " ");
}

/* Parses a number below 10^12 at *text and advances *text past it; -1 if there is none. */
static int64_t read_number(const char **text)
{
    size_t digits = strspn(*text, "0123456789");
    if (digits == 0 || digits > 12)
        return -1;
    int64_t number = strtoll(*text, NULL, 10);
    *text += digits;
    return number;
}

/* Parses a sequence of numbers with units. */
static bool parse_span(const char *text, int64_t now_ns, int64_t *since_ns)
{
    int64_t sum = 0, part;
    do {
        int64_t number = read_number(&text);
        text = skip_blanks(text);
        size_t length = 0;
        while (isalpha((unsigned char)text[length]))
            length++;
        int64_t unit = seconds_of(text, length);
        if (number < 0 || unit == 0 || __builtin_mul_overflow(number, unit * SECOND_NS, &part) ||
            __builtin_add_overflow(sum, part, &sum))
            return false;
        text = skip_blanks(text + length);
    } while (isdigit((unsigned char)*text));
    *since_ns = sum < now_ns ? now_ns - sum : 1;
    return *text == '\0' || strcmp(text, "ago") == 0;
}

/* Parses "Z" or "+01:00" to seconds east of Greenwich. */
static bool parse_zone(const char *text, long *east)
{
    unsigned hours, minutes;
    int length = 0;
    *east = 0;
    if (strcmp(text, "Z") == 0 || strcmp(text, "z") == 0)
        return true;
    if ((*text != '+' && *text != '-') || sscanf(text + 1, "%2u:%2u%n", &hours, &minutes, &length) != 2 ||
        length != 5 || text[6] != '\0' || hours > 23 || minutes > 59)
        return false;
    *east = (long)(hours * 3600 + minutes * 60) * (*text == '-' ? -1 : 1);
    return true;
}

/* Parses "13:06[:40[.5]]" into parts. Returns the rest of the text, NULL if it is not a time. */
static const char *read_clock(const char *text, struct tm *parts)
{
    const char *whole = strptime(text, "%H:%M:%S", parts);
    if (whole == NULL)
        return strptime(text, "%H:%M", parts);
    return *whole == '.' ? whole + 1 + strspn(whole + 1, "0123456789") : whole; /* fractions of a second are ignored */
}

static bool parse_date(const char *text, int64_t *since_ns)
{
    struct tm parts = {.tm_isdst = -1};
    const char *rest = strptime(text, "%Y-%m-%d", &parts);
    long east = 0;
    if (rest == NULL)
        return false;
    if (*rest == 'T' || *rest == 't' || *rest == ' ') {
        rest = read_clock(rest + 1, &parts);
        if (rest == NULL)
            return false;
    }
    if (*rest != '\0' && !parse_zone(rest, &east))
        return false;
    int64_t seconds = *rest == '\0' ? mktime(&parts) : timegm(&parts) - east;
    if (seconds >= INT64_MAX / SECOND_NS)
        return false;
    *since_ns = seconds > 0 ? seconds * SECOND_NS : 1;
    return true;
}

/* Returns a time of the day that is `days_before` days before today. */
static int64_t on_day(int64_t now_ns, int days_before, const struct tm *clock)
{
    time_t now = (time_t)(now_ns / SECOND_NS);
    struct tm parts;
    if (localtime_r(&now, &parts) == NULL)
        return 1;
    struct tm day = {.tm_year = parts.tm_year,
                     .tm_mon = parts.tm_mon,
                     .tm_mday = parts.tm_mday - days_before,
                     .tm_hour = clock->tm_hour,
                     .tm_min = clock->tm_min,
                     .tm_sec = clock->tm_sec,
                     .tm_isdst = -1};
    return (int64_t)mktime(&day) * SECOND_NS;
}

bool report_since_parse(const char *text, int64_t now_ns, int64_t *since_ns)
{
    struct tm clock = {0};
    const char *rest;
    if (strcmp(text, "today") == 0 || strcmp(text, "yesterday") == 0) {
        *since_ns = on_day(now_ns, text[0] == 'y', &clock);
        return true;
    }
    rest = read_clock(text, &clock);
    if (rest != NULL && *rest == '\0') {
        *since_ns = on_day(now_ns, 0, &clock);
        return true;
    }
    if (text[0] == '@') {
        rest = text + 1;
        int64_t seconds = read_number(&rest);
        bool is_good = seconds >= 0 && *rest == '\0' && seconds < INT64_MAX / SECOND_NS;
        *since_ns = is_good && seconds > 0 ? seconds * SECOND_NS : 1;
        return is_good;
    }
    return parse_date(text, since_ns) || parse_span(text, now_ns, since_ns);
}
