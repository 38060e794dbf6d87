/*
 * values.c - parses and checks the values of --param and --timeout.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sweep/sweep.h"
#include "common/text.h"
#include "common/tool.h"

bool sweep_read_number(const char *text, double *number)
{
    char *end;
    if (text[0] == '\0' || text[strspn(text, "0123456789.eE+-")] != '\0')
        return false;
    *number = strtod(text, &end);
    return *end == '\0' && isfinite(*number);
}

static bool is_parameter_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    return name[0] != '\0' && strlen(name) < 40 && name[strspn(name, letters)] == '\0';
}

/* Sorts numbers, the smallest first, because a sweep starts small. */
static void sort_values(struct sweep_parameter *parameter)
{
    for (size_t i = 1; i < parameter->count; i++)
        for (size_t j = i; j > 0 && parameter->number[j] < parameter->number[j - 1]; j--) {
            double number = parameter->number[j];
            const char *value = parameter->value[j];
            parameter->number[j] = parameter->number[j - 1];
            parameter->value[j] = parameter->value[j - 1];
            parameter->number[j - 1] = number;
            parameter->value[j - 1] = value;
        }
}

/* Returns a value that is given twice, NULL if none is. */
static const char *find_twice(const struct sweep_parameter *parameter)
{
    for (size_t i = 0; i < parameter->count; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(parameter->value[i], parameter->value[j]) == 0 ||
                (parameter->is_number && parameter->number[i] <= parameter->number[j]))
                return parameter->value[i];
    return NULL;
}

/* Adds a value that is not a range. Returns NULL, or a sentence about the error. */
static const char *add_value(struct sweep_parameter *parameter, const char *value)
{
    if (value[0] == '\0')
        return parameter->count == 0
                   ? "the first value is empty"
                   : text_format("the value after %s is empty", parameter->value[parameter->count - 1]);
    if (parameter->count == SWEEP_VALUES)
        return "there may be 64 values";
    parameter->is_number = parameter->is_number && sweep_read_number(value, &parameter->number[parameter->count]);
    parameter->value[parameter->count++] = value;
    return NULL;
}

/* Parses a whole number of up to 15 digits. Returns what follows it, NULL if there is none. */
static const char *parse_whole(const char *text, long long *number)
{
    size_t digits = strspn(text + (text[0] == '-'), "0123456789");
    if (digits == 0 || digits > 15)
        return NULL;
    *number = strtoll(text, NULL, 10);
    return text + (text[0] == '-') + digits;
}

/* Returns whether a value is meant as a range: nothing but digits and dots, two of these together. */
static bool is_range(const char *value)
{
    return value[strspn(value, "0123456789.-")] == '\0' && strstr(value, "..") != NULL && strcmp(value, "..") != 0;
}

struct range {
    long long first, last, step;
};

/* Parses whole numbers with a separator between them: the first, the last that is not smaller, and a step if there is
 * one. */
static bool read_range(const char *text, const char *separator, struct range *range)
{
    const size_t length = strlen(separator);
    range->step = 1;
    text = parse_whole(text, &range->first);
    if (text == NULL || strncmp(text, separator, length) != 0 ||
        (text = parse_whole(text + length, &range->last)) == NULL)
        return false;
    if (text[0] != '\0' &&
        (strncmp(text, separator, length) != 0 || (text = parse_whole(text + length, &range->step)) == NULL))
        return false;
    return text[0] == '\0' && range->first <= range->last && range->step > 0;
}

/* Says how a range is written if the value looks like one: "8-64", "8:64", or with a step "8-64-8". It may be meant as
 * it stands, as in "cpus=0-3": so it stays a value. */
static void hint_at_range(const char *name, const char *value)
{
    struct range range;
    if ((!read_range(value, "-", &range) && !read_range(value, ":", &range)) || range.first == range.last)
        return;
    fprintf(stderr, "sparkguard-sweep: %s=%s is one value; a range is written %lld..%lld", name, value, range.first,
            range.last);
    if (range.step != 1)
        fprintf(stderr, "..%lld", range.step);
    fputc('\n', stderr);
}

/* Adds the values of "1..8" or, with a step, "1..64..8". Their texts belong to the sweep. */
static const char *add_range(struct sweep *sweep, struct sweep_parameter *parameter, const char *text)
{
    struct range range;
    if (!read_range(text, "..", &range))
        return text_format("%s: a range is two whole numbers, the smaller first, and a step: 1..64 or 8..64..8", text);
    if ((range.last - range.first) / range.step >= (long long)(SWEEP_VALUES - parameter->count))
        return text_format("%s: there may be 64 values; a larger step makes fewer: 8..512..8", text);
    enum { DIGITS = 20 };
    size_t count = (size_t)((range.last - range.first) / range.step) + 1;
    char *texts = tool_allocate(count, DIGITS);
    sweep->text[sweep->text_count++] = texts;
    for (size_t i = 0; i < count; i++) {
        snprintf(texts + i * DIGITS, DIGITS, "%lld", range.first + (long long)i * range.step);
        (void)add_value(parameter, texts + i * DIGITS);
    }
    return NULL;
}

const char *sweep_take_parameter(struct sweep *sweep, char *text)
{
    char *values = strchr(text, '='), *value;
    if (sweep->parameter_count == SWEEP_PARAMETERS)
        return "there may be 8 parameters";
    struct sweep_parameter *parameter = &sweep->parameter[sweep->parameter_count];
    *parameter = (struct sweep_parameter){.name = text, .is_number = true};
    if (values == NULL)
        return "a parameter has values";
    *values++ = '\0';
    if (!is_parameter_name(text))
        return "a name is letters, digits, _ and -";
    for (size_t i = 0; i < sweep->parameter_count; i++)
        if (strcmp(sweep->parameter[i].name, text) == 0)
            return "the parameter is given twice";
    while ((value = strsep(&values, ",")) != NULL) {
        if (is_range(value) && sweep->text_count == SWEEP_TEXTS)
            return "too many ranges";
        const char *wrong = is_range(value) ? add_range(sweep, parameter, value) : add_value(parameter, value);
        if (wrong != NULL)
            return wrong;
    }
    if (parameter->count == 1)
        hint_at_range(parameter->name, parameter->value[0]);
    if (parameter->is_number)
        sort_values(parameter);
    const char *twice = find_twice(parameter);
    if (twice != NULL)
        return text_format("%s is given twice", twice);
    sweep->parameter_count++;
    return NULL;
}

bool sweep_take_duration(const char *text, int64_t *duration_ns)
{
    uint64_t ns;
    if (sg_parse_time(text, &ns) != 0 || ns > INT64_MAX / 2)
        return false;
    *duration_ns = (int64_t)ns;
    return true;
}
