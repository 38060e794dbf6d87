/*
 * values.c - parses and checks the values of --param and --timeout.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sweep/sweep.h"
#include "common/text.h"

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

static bool has_twice(const struct sweep_parameter *parameter)
{
    for (size_t i = 0; i < parameter->count; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(parameter->value[i], parameter->value[j]) == 0 ||
                (parameter->is_number && parameter->number[i] <= parameter->number[j]))
                return true;
    return false;
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
        if (value[0] == '\0')
            return "a value is empty";
        if (parameter->count == SWEEP_VALUES)
            return "there may be 64 values";
        parameter->is_number = parameter->is_number && sweep_read_number(value, &parameter->number[parameter->count]);
        parameter->value[parameter->count++] = value;
    }
    if (parameter->is_number)
        sort_values(parameter);
    if (has_twice(parameter))
        return "a value is given twice";
    sweep->parameter_count++;
    return NULL;
}

bool sweep_take_duration(const char *text, int64_t *duration_ns)
{
    uint64_t milli, ns;
    const char *unit = sg_parse_milli(text, &milli);
    if (unit == NULL)
        return false;
    uint64_t factor = strcmp(unit, "h") == 0 ? 3600 : strcmp(unit, "m") == 0 ? 60 : 1;
    if ((factor == 1 && unit[0] != '\0' && strcmp(unit, "s") != 0) ||
        __builtin_mul_overflow(milli, factor * UINT64_C(1000000), &ns) || ns > INT64_MAX / 2)
        return false;
    *duration_ns = (int64_t)ns;
    return true;
}
