/*
 * text.c - prints the findings for people: the worst first, each with the reason why it matters and the fix. Fine
 * findings take one line each.
 */
#include <string.h>

#include "doctor/doctor.h"
#include "common/bytes.h"
#include "common/text.h"

enum { INDENT = 9 }; /* columns of "warning" and the blanks after it */

static const enum style_colour colour_of[FINDING_STATE_COUNT] = {
    [FINDING_FINE] = STYLE_GREEN,
    [FINDING_UNKNOWN] = STYLE_CYAN,
    [FINDING_WARNING] = STYLE_YELLOW,
    [FINDING_DANGER] = STYLE_RED,
};

static void put_finding_state(const struct style *style, enum finding_state state)
{
    fprintf(style->stream, "%s%-*s%s", style_colour_on(style, colour_of[state]), INDENT, doctor_state_name[state],
            style_colour_off(style, colour_of[state]));
}

/* Prints a text at the indent, escaped and wrapped. */
static void put_words(const struct style *style, enum style_colour colour, const char *text)
{
    char *printable = text_printable(text, style->is_utf8);
    fprintf(style->stream, "%*s", INDENT, "");
    style_words(style, INDENT, colour, printable);
}

/* Returns the length of the command up to and including its next " && " or " | ", after which a shell continues on the
 * next line. */
static size_t piece_length(const char *command)
{
    const char *and = strstr(command, " && "), *bar = strstr(command, " | ");
    const char *end = and == NULL || (bar != NULL && bar < and) ? bar : and;
    return end == NULL ? strlen(command) : (size_t)(end - command) + (end == and? 4 : 3);
}

/* Prints a command so that it can be copied from a terminal: lines end only where the shell reads on. */
static void put_command(const struct style *style, const char *command)
{
    char *printable = text_printable(command, style->is_utf8);
    size_t column = INDENT + 2, length;
    fprintf(style->stream, "%*s$ %s", INDENT, "", style_colour_on(style, STYLE_BOLD));
    for (const char *at = printable; *at != '\0'; at += length, column += length) {
        length = piece_length(at);
        if (style->is_terminal && at != printable && column + length > style->columns) {
            fprintf(style->stream, "\n%*s", INDENT + 4, "");
            column = INDENT + 4;
        }
        fprintf(style->stream, "%.*s", (int)length, at);
    }
    fprintf(style->stream, "%s\n", style_colour_off(style, STYLE_BOLD));
}

static void put_problem(const struct style *style, const struct finding *finding)
{
    put_finding_state(style, finding->state);
    fprintf(style->stream, "%s%s%s\n", style_colour_on(style, STYLE_BOLD), finding->id,
            style_colour_off(style, STYLE_BOLD));
    put_words(style, STYLE_PLAIN, finding->sentence);
    put_words(style, STYLE_DIM, finding->why);
    if (finding->fix != NULL)
        put_command(style, finding->fix);
    fputc('\n', style->stream);
}

static void put_fine(const struct style *style, const struct finding *finding, size_t id_width)
{
    char *printable = text_printable(finding->sentence, style->is_utf8);
    put_finding_state(style, finding->state);
    fprintf(style->stream, "%-*s", (int)id_width + 2, finding->id);
    style_words(style, INDENT + id_width + 2, STYLE_PLAIN, printable);
}

/* Prints the checks that do not apply, one paragraph for each thing that is not here. */
static void put_absent(const struct doctor *doctor, const struct style *style)
{
    for (size_t i = 0; i < doctor->findings.count; i++) {
        const char *absent = doctor->findings.at[i].absent;
        const char *list = "";
        bool is_told = false;
        for (size_t k = 0; k < doctor->findings.count && absent != NULL; k++) {
            const struct finding *finding = &doctor->findings.at[k];
            if (finding->absent == NULL || strcmp(finding->absent, absent) != 0)
                continue;
            is_told = is_told || k < i;
            text_append(&list, ", ", finding->id);
        }
        if (list[0] != '\0' && !is_told) {
            char *sentence = text_format("%s: does not apply here (%s)", list, absent);
            fprintf(style->stream, "%s%-*s%s", style_colour_on(style, STYLE_DIM), INDENT, "-",
                    style_colour_off(style, STYLE_DIM));
            style_words(style, INDENT, STYLE_DIM, sentence);
        }
    }
}

/* Prints a line such as "2 dangers, 1 warning, 12 fine". */
static void put_summary(const struct doctor *doctor, const struct style *style)
{
    static const char *const many[] = {"fine", "unknown", "warnings", "dangers"};
    const char *separator = "sparkguard-doctor: ";
    for (int state = FINDING_DANGER; state >= FINDING_FINE; state--) {
        size_t count = finding_count(&doctor->findings, (enum finding_state)state);
        if (count == 0)
            continue;
        enum style_colour colour = colour_of[state];
        fprintf(style->stream, "%s%s%zu %s%s", separator, style_colour_on(style, colour), count,
                count == 1 ? doctor_state_name[state] : many[state], style_colour_off(style, colour));
        separator = ", ";
    }
    fputs("\n\n", style->stream);
}

void doctor_render_text(const struct doctor *doctor, const struct style *style)
{
    size_t id_width = 0;
    bool has_script = false;
    put_summary(doctor, style);
    for (size_t i = 0; i < doctor->findings.count; i++) {
        const struct finding *finding = &doctor->findings.at[i];
        if (finding->state == FINDING_FINE && finding->absent == NULL)
            id_width = bytes_max(id_width, strlen(finding->id));
        has_script = has_script || finding->step != NULL;
    }
    for (int state = FINDING_DANGER; state > FINDING_FINE; state--)
        for (size_t i = 0; i < doctor->findings.count; i++)
            if ((int)doctor->findings.at[i].state == state)
                put_problem(style, &doctor->findings.at[i]);
    for (size_t i = 0; i < doctor->findings.count; i++)
        if (doctor->findings.at[i].state == FINDING_FINE && doctor->findings.at[i].absent == NULL)
            put_fine(style, &doctor->findings.at[i], id_width);
    put_absent(doctor, style);
    if (has_script)
        fputs("\nsparkguard-doctor --fix-script prints a script of the fixes, to read and run.\n", style->stream);
}
