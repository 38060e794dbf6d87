/*
 * style.c - how text for people looks where it goes: width, colour, characters; and the words that the overview and the
 * view of one process share.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <langinfo.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "report/render.h"
#include "common/text.h"

struct report_style report_style_of(FILE *stream)
{
    struct winsize size;
    const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");
    struct report_style style = {.stream = stream, .columns = 80, .is_terminal = isatty(fileno(stream)) == 1};
    if (style.is_terminal && ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        style.columns = size.ws_col < 40 ? 40 : size.ws_col;
    style.has_colour = style.is_terminal && (no_colour == NULL || no_colour[0] == '\0') && terminal != NULL &&
                       strcmp(terminal, "dumb") != 0;
    style.is_utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    return style;
}

const char *report_colour_on(const struct report_style *style, enum report_colour colour)
{
    static const char *const sequences[] = {
        [REPORT_PLAIN] = "",        [REPORT_BOLD] = "\033[1m",   [REPORT_DIM] = "\033[2m",
        [REPORT_RED] = "\033[31m",  [REPORT_GREEN] = "\033[32m", [REPORT_YELLOW] = "\033[33m",
        [REPORT_CYAN] = "\033[36m",
    };
    return style->has_colour ? sequences[colour] : "";
}

const char *report_colour_off(const struct report_style *style, enum report_colour colour)
{
    return style->has_colour && colour != REPORT_PLAIN ? "\033[0m" : "";
}

static size_t columns_of(const char *text)
{
    size_t count = 0;
    for (; *text != '\0'; text++)
        count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

void report_flow(const struct report_style *style, size_t *column, const char *separator, enum report_colour colour,
                 const char *piece)
{
    static const char indent[] = "  ";
    size_t length = columns_of(piece);
    if (*column > 0 && *column + strlen(separator) + length > style->columns) {
        fprintf(style->stream, "%s\n%s", separator[0] == ',' ? "," : "", indent);
        *column = strlen(indent);
    } else if (*column > 0) {
        fputs(separator, style->stream);
        *column += strlen(separator);
    }
    fprintf(style->stream, "%s%s%s", report_colour_on(style, colour), piece, report_colour_off(style, colour));
    *column += length;
}

void report_words(const struct report_style *style, size_t indent, enum report_colour colour, const char *text)
{
    size_t column = indent;
    fputs(report_colour_on(style, colour), style->stream);
    while (*text != '\0') {
        size_t bytes = strspn(text, " ") + strcspn(text + strspn(text, " "), " ");
        char *word = report_text_copy(text, bytes); /* with the blanks before it */
        if (style->is_terminal && column > indent && column + columns_of(word) > style->columns) {
            fprintf(style->stream, "\n%*s%s", (int)indent, "", word + strspn(word, " "));
            column = indent + columns_of(word + strspn(word, " "));
        } else {
            fputs(word, style->stream);
            column += columns_of(word);
        }
        text += bytes;
        free(word);
    }
    fprintf(style->stream, "%s\n", report_colour_off(style, colour));
}

const char *report_room_word(enum sg_reason reason)
{
    return reason == SG_REASON_LIMIT ? "left" : "usable";
}

enum report_colour report_state_colour(enum sg_state state)
{
    switch (state) {
    case SG_STATE_RUNNING:
        return REPORT_GREEN;
    case SG_STATE_KILLED:
        return REPORT_RED;
    case SG_STATE_EXITED:
    case SG_STATE_REPLACED:
        return REPORT_DIM;
    }
    return REPORT_PLAIN;
}

const char *report_end_text(const struct report_process *process, char text[REPORT_END_TEXT])
{
    static const char *const after[] = {
        [REPORT_NO_WATCHDOG] = "",
        [REPORT_SENT_TERM] = " after its own watchdog sent SIGTERM",
        [REPORT_SENT_KILL] = " after its own watchdog sent SIGKILL",
        [REPORT_ENDED_IT] = ": ended by its own watchdog",
    };
    static const int sent[] = {[REPORT_SENT_TERM] = SIGTERM, [REPORT_SENT_KILL] = SIGKILL, [REPORT_ENDED_IT] = 0};
    char word[48], signal_text[REPORT_TIME_TEXT];
    bool is_exited = process->state == SG_STATE_EXITED;
    bool is_its_signal = !is_exited && process->signal != 0 && process->signal == sent[process->watchdog];
    if (process->state == SG_STATE_RUNNING)
        return "running";
    if (process->state == SG_STATE_REPLACED)
        return "replaced by another program";
    if (is_exited && process->exit_code >= 0)
        snprintf(word, sizeof word, "exited with status %d", process->exit_code);
    else if (!is_exited && process->signal != 0 && process->watchdog != REPORT_ENDED_IT)
        snprintf(word, sizeof word, "killed by %s", report_signal_text(signal_text, process->signal));
    else if (!is_exited && process->watchdog == REPORT_NO_WATCHDOG)
        snprintf(word, sizeof word, "killed (signal not recorded)");
    else
        snprintf(word, sizeof word, "%s", report_state_name[process->state]);
    snprintf(text, REPORT_END_TEXT, "%s%s", word, is_its_signal ? " from its own watchdog" : after[process->watchdog]);
    return text;
}

char *report_fate_text(const struct report_process *process, bool is_utf8)
{
    char room[REPORT_END_TEXT], clock[REPORT_TIME_TEXT];
    bool is_ended = process->watchdog == REPORT_ENDED_IT;
    const char *end = is_ended ? "ended by its own watchdog" : report_end_text(process, room);
    char *detail = report_text_printable(process->fate_detail, is_utf8);
    char *text =
        report_text_format("%" PRIu32 " %s at %s%s%s", process->pid, end,
                           report_clock_local(clock, process->fate->time_ns), detail[0] != '\0' ? ": " : "", detail);
    free(detail);
    return text;
}

char *report_peak_text(const struct report_process *process)
{
    char *text = report_text_copy("", 0);
    bool is_taken[SG_DOMAIN_COUNT] = {false};
    for (;;) {
        int largest = -1;
        for (int i = 0; i < SG_DOMAIN_COUNT; i++)
            if (!is_taken[i] && process->domain[i].at_peak_bytes > 0 &&
                (largest < 0 || process->domain[i].at_peak_bytes > process->domain[largest].at_peak_bytes))
                largest = i;
        if (largest < 0)
            return text;
        is_taken[largest] = true;
        char size[REPORT_SIZE_TEXT];
        char *longer = report_text_format("%s%s%s %s", text, text[0] ? ", " : "", report_domain_name[largest],
                                          report_size_text(size, process->domain[largest].at_peak_bytes));
        free(text);
        text = longer;
    }
}
