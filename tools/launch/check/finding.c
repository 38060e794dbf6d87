/*
 * finding.c - see finding.h.
 */
#include "launch/check/finding.h"

#include <stdarg.h>

#include "common/bytes.h"
#include "common/text.h"
#include "sparkguard_abi.h"

struct finding *finding_add(struct findings *findings, const char *id)
{
    findings->count += findings->count < FINDING_CAPACITY;
    struct finding *finding = &findings->at[findings->count - 1];
    *finding = (struct finding){.id = id};
    return finding;
}

void finding_say(struct finding *finding, enum finding_state state, const char *fix, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    finding->sentence = text_formatv(format, arguments);
    va_end(arguments);
    finding->state = state;
    finding->fix = fix;
}

void finding_say_absent(struct finding *finding, const char *absent)
{
    finding_say(finding, FINDING_FINE, NULL, "It does not apply here: %s.", absent);
    finding->absent = absent;
}

void finding_figure_signed(struct finding *finding, const char *key, int64_t value)
{
    if (finding->figure_count < FINDING_FIGURE_CAPACITY)
        finding->figure[finding->figure_count++] = (struct finding_figure){key, value};
}

void finding_figure(struct finding *finding, const char *key, uint64_t value)
{
    finding_figure_signed(finding, key, value == SG_UNKNOWN ? INT64_MIN : (int64_t)bytes_min(value, INT64_MAX));
}

size_t finding_count(const struct findings *findings, enum finding_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < findings->count; i++)
        count += findings->at[i].state == state;
    return count;
}
