/*
 * help.c - what the live screen says about its keys and columns. Short enough for a terminal of 60 columns and 15 rows.
 */
#include "report/watch/watch.h"

void watch_put_help(const struct style *style)
{
    static const struct {
        const char *key, *words;
    } lines[] = {
        {"arrows j k", "choose a row; also PgUp PgDn Home End"},
        {"Enter", "show the chosen job or process in depth"},
        {"Esc q", "go back; q in the list ends the view"},
        {"/", "show only what has a text in its name or command"},
        {"t", "jobs as trees, or all processes in one list"},
        {"F9 e", "send SIGTERM to the chosen process or job"},
        {"L", "set a new limit of the chosen job"},
        {"l p r x n", "sort by live, peak, rate, refusals, number"},
        {"HISTORY", "what the job held, for 5 minutes at most;"},
        {"", "blank: not recorded. If narrow: in HELD"},
        {"HELD", "part of the limit or machine; pale: the peak"},
        {"RATE", "how fast LIVE changes"},
        {"WALL IN", "time until requests are refused at this rate"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        fprintf(style->stream, "%s%10s%s  %s\n", style_colour_on(style, STYLE_BOLD), lines[i].key,
                style_colour_off(style, STYLE_BOLD), lines[i].words);
}
