/*
 * step.c - see setup.h: prints steps of the script.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "common/tool.h"
#include "doctor/setup/setup.h"

/* Prints words as comment lines of at most 100 columns. */
static void print_comment(FILE *stream, char *words)
{
    enum { COLUMNS = 100 };
    size_t column = 0;
    char *word;
    while ((word = strsep(&words, " ")) != NULL) {
        size_t length = strlen(word);
        if (column == 0 || column + 1 + length > COLUMNS) {
            fputs(column == 0 ? "#" : "\n#", stream);
            column = 1;
        }
        fprintf(stream, " %s", word);
        column += 1 + length;
    }
    fputc('\n', stream);
}

/* Returns the text with what could control a terminal replaced; the caller frees. */
static __attribute__((format(printf, 1, 0))) char *format_printable(const char *format, va_list arguments)
{
    char *text;
    if (vasprintf(&text, format, arguments) < 0)
        tool_end_without_memory();
    char *printable = text_printable(text, false);
    free(text);
    return printable;
}

void setup_comment(const struct setup *setup, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *printable = format_printable(format, arguments);
    va_end(arguments);
    print_comment(setup->stream, printable);
    free(printable);
}

void setup_quote(FILE *stream, const char *word)
{
    fputc('\'', stream);
    for (; *word != '\0'; word++)
        if (*word == '\'')
            fputs("'\\''", stream);
        else
            fputc(*word, stream);
    fputc('\'', stream);
}

void setup_leave(struct setup *setup, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *printable = format_printable(format, arguments);
    va_end(arguments);
    fputs("miss ", setup->stream);
    setup_quote(setup->stream, printable);
    fputc('\n', setup->stream);
    setup->left++;
    free(printable);
}

/* Returns whether a line of the text is this word. */
static bool has_line(const char *text, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        if ((at == text || at[-1] == '\n') && (at[length] == '\n' || at[length] == '\0'))
            return true;
    return false;
}

void setup_document(FILE *stream, const char *content)
{
    char end[64] = "END";
    size_t length = strlen(content);
    for (size_t at = 3; at + 1 < sizeof end && has_line(content, end); at++)
        end[at] = '_'; /* the array is zeroed */
    fprintf(stream, " <<'%s'\n%s%s%s\n", end, content, length > 0 && content[length - 1] != '\n' ? "\n" : "", end);
}

/* Returns whether the list of an earlier set-up has the file with this sum. */
static bool is_noted(const struct setup *setup, const char *path, const char *sum)
{
    char *start = text_format("file %s ", path), *end = text_format(" %s", sum);
    bool is_found = false;
    for (const char *line = setup->manifest; line != NULL && !is_found; line = strchr(line, '\n')) {
        line += *line == '\n';
        size_t length = strcspn(line, "\n"), end_length = strlen(end);
        is_found = strncmp(line, start, strlen(start)) == 0 && length > end_length &&
                   strncmp(line + length - end_length, end, end_length) == 0;
    }
    free(start);
    free(end);
    return is_found;
}

bool setup_put(struct setup *setup, const char *path, const char *mode, const char *content)
{
    char before[SETUP_SUM_CAPACITY] = "none", after[SETUP_SUM_CAPACITY], *text;
    size_t length;
    enum setup_file file = setup_read(setup->doctor, path, &text, &length);
    bool is_same = file == SETUP_READ && strlen(content) == length && memcmp(text, content, length) == 0;
    if (file == SETUP_READ)
        setup_sum(before, text, length);
    free(text);
    if (is_same) {
        setup_comment(setup, "%s is as it should be.", path);
        return true;
    }
    if (file == SETUP_ODD || file == SETUP_UNREADABLE || (file == SETUP_READ && !is_noted(setup, path, before))) {
        setup_leave(setup, "%s: %s", path,
                    file == SETUP_ODD          ? "is no regular file"
                    : file == SETUP_UNREADABLE ? "cannot be read; run sparkguard-doctor --setup as root"
                                               : "is there already and not from here, or was edited");
        return false;
    }
    setup_sum(after, content, strlen(content));
    fprintf(setup->stream, "put %s %s whole %s %s", path, mode, before, after);
    setup_document(setup->stream, content);
    return true;
}

void setup_put_json(struct setup *setup, const char *path, const char *before, const char *content)
{
    char first[SETUP_SUM_CAPACITY] = "none", after[SETUP_SUM_CAPACITY];
    if (before != NULL)
        setup_sum(first, before, strlen(before));
    setup_sum(after, content, strlen(content));
    fprintf(setup->stream, "put %s 644 json %s %s", path, first, after);
    setup_document(setup->stream, content);
}

void setup_add(const struct setup *setup, const char *path, const char *block)
{
    fprintf(setup->stream, "add %s", path);
    setup_document(setup->stream, block);
}

char *setup_json_text(const json_t *json, const char *example)
{
    size_t indent = 4;
    const char *line = example != NULL ? strstr(example, "\n ") : NULL;
    if (line != NULL && strspn(line + 1, " ") <= 8)
        indent = strspn(line + 1, " ");
    char *dumped = json_dumps(json, JSON_INDENT(indent) | JSON_REAL_PRECISION(17));
    if (dumped == NULL)
        tool_end_without_memory();
    char *text = text_format("%s\n", dumped);
    free(dumped);
    return text;
}

void setup_cut_block(char *text)
{
    char *begin, *end;
    while ((begin = strstr(text, SETUP_BLOCK_BEGIN "\n")) != NULL &&
           (end = strstr(begin, "\n" SETUP_BLOCK_END "\n")) != NULL) {
        end += sizeof "\n" SETUP_BLOCK_END "\n" - 1;
        memmove(begin, end, strlen(end) + 1);
    }
}
