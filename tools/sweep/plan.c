/*
 * plan.c - makes configurations and commands from parameters.
 *
 * The first parameter varies fastest: first the batch, then the accumulation. {NAME} stands for a value anywhere in the
 * command; other braces belong to the program.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sparkguard_options.h"
#include "sweep/sweep.h"
#include "common/text.h"
#include "common/tool.h"

const char *const sweep_status_name[SWEEP_STATUS_COUNT] = {
    [SWEEP_PENDING] = "pending",       [SWEEP_UNDER_WAY] = "under way", [SWEEP_OK] = "ok",
    [SWEEP_REFUSED] = "refused",       [SWEEP_FAILED] = "failed",       [SWEEP_KILLED] = "killed",
    [SWEEP_TIMED_OUT] = "timed out",   [SWEEP_LOST] = "lost",           [SWEEP_INTERRUPTED] = "interrupted",
    [SWEEP_TOO_LARGE] = "not started", [SWEEP_SKIPPED] = "skipped",
};

static char *join(char *text, const char *more, size_t length)
{
    return text_format("%s%s", text, text_copy(more, length));
}

/* Returns the parameter that "{NAME}" at the start of a text names, or NULL. */
static const struct sweep_parameter *parameter_at(const struct sweep *sweep, const char *text)
{
    const char *end = text[0] == '{' ? strchr(text, '}') : NULL;
    for (size_t i = 0; end != NULL && i < sweep->parameter_count; i++) {
        const char *name = sweep->parameter[i].name;
        if (strlen(name) == (size_t)(end - text - 1) && strncmp(name, text + 1, strlen(name)) == 0)
            return &sweep->parameter[i];
    }
    return NULL;
}

static char *expand(const struct sweep *sweep, const struct sweep_run *run, const char *template)
{
    char *text = text_copy("", 0);
    while (template[0] != '\0') {
        const struct sweep_parameter *parameter = parameter_at(sweep, template);
        if (parameter != NULL) {
            const char *value = parameter->value[run->place[parameter - sweep->parameter]];
            text = join(text, value, strlen(value));
            template += strlen(parameter->name) + 2;
            continue;
        }
        size_t plain = 1 + strcspn(template + 1, "{");
        text = join(text, template, plain);
        template += plain;
    }
    return text;
}

char **sweep_command_of(const struct sweep *sweep, const struct sweep_run *run)
{
    size_t count = 0;
    while (sweep->command[count] != NULL)
        count++;
    char **command = tool_allocate(count + 1, sizeof *command);
    for (size_t i = 0; i < count; i++)
        command[i] = expand(sweep, run, sweep->command[i]);
    return command;
}

static char *quote(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%{}";
    char *text;
    if (word[0] != '\0' && word[strspn(word, plain)] == '\0')
        return text_copy(word, SIZE_MAX);
    text = text_copy("'", 1);
    for (const char *end; (end = strchr(word, '\'')) != NULL; word = end + 1) {
        text = join(text, word, (size_t)(end - word));
        text = join(text, "'\\''", 4);
    }
    text = join(text, word, strlen(word));
    return join(text, "'", 1);
}

char *sweep_command_text(char *const *command)
{
    char *text = text_copy("", 0);
    for (size_t i = 0; command[i] != NULL; i++) {
        char *word = quote(command[i]);
        if (i > 0)
            text = join(text, " ", 1);
        text = join(text, word, strlen(word));
    }
    return text_printable(text, false);
}

char *sweep_run_text(const struct sweep *sweep, const struct sweep_run *run)
{
    char *text = text_copy("", 0);
    for (size_t i = 0; i < sweep->parameter_count; i++) {
        char *piece = text_format("%s%s=%s", i > 0 ? " " : "", sweep->parameter[i].name,
                                  sweep->parameter[i].value[run->place[i]]);
        text = join(text, piece, strlen(piece));
    }
    return text_printable(text, false);
}

void sweep_set_note(struct sweep_run *run, char *note)
{
    run->note = text_printable(note, false);
}

/* Appends an option of the guard, if it is set: with another limit or reserve other values fit. */
static char *join_option(char *text, enum sg_option option)
{
    const char *name = sg_option_table[option].variable, *value = getenv(name);
    if (value == NULL || value[0] == '\0')
        return text;
    char *piece = text_format(" %s=%s", name, value);
    text = join(text, piece, strlen(piece));
    return text;
}

/* Returns a text that is equal if a record belongs to the same sweep. */
static char *identify(const struct sweep *sweep)
{
    char *folder = tool_adopt(getcwd(NULL, 0)), *command = sweep_command_text(sweep->command);
    char *text = text_format("%s:", folder != NULL ? folder : "?");
    text = join_option(text, SG_OPTION_LIMIT);
    text = join_option(text, SG_OPTION_RESERVE);
    for (size_t i = 0; i < sweep->parameter_count; i++) {
        const struct sweep_parameter *parameter = &sweep->parameter[i];
        for (size_t j = 0; j < parameter->count; j++) {
            char *piece = j == 0 ? text_format(" %s=%s", parameter->name, parameter->value[j])
                                 : text_format(",%s", parameter->value[j]);
            text = join(text, piece, strlen(piece));
        }
    }
    return text_printable(text_format("%s: %s", text, command), false);
}

static bool is_in_command(const struct sweep *sweep, const struct sweep_parameter *parameter)
{
    for (char *const *word = sweep->command; *word != NULL; word++)
        for (const char *at = *word; (at = strchr(at, '{')) != NULL; at++)
            if (parameter_at(sweep, at) == parameter)
                return true;
    return false;
}

const char *sweep_plan(struct sweep *sweep)
{
    static char *none[] = {NULL};
    size_t count = 1;
    if (sweep->command == NULL)
        sweep->command = none;
    for (size_t i = 0; i < sweep->parameter_count; i++) {
        count *= sweep->parameter[i].count;
        if (count > SWEEP_CONFIGURATIONS)
            return "more than 4096 configurations";
        if (sweep->command[0] != NULL && !is_in_command(sweep, &sweep->parameter[i]))
            return text_format("{%s} does not occur in the command, so its values would make no difference; for "
                               "example: python3 train.py --%s {%s}",
                               sweep->parameter[i].name, sweep->parameter[i].name, sweep->parameter[i].name);
    }
    sweep->run = tool_allocate(count, sizeof *sweep->run);
    sweep->run_count = count;
    for (size_t i = 0; i < count; i++) {
        struct sweep_run *run = &sweep->run[i];
        *run = sweep_new_run();
        for (size_t j = 0, rest = i; j < sweep->parameter_count; j++) {
            run->place[j] = rest % sweep->parameter[j].count;
            rest /= sweep->parameter[j].count;
        }
    }
    sweep->identity = identify(sweep);
    return NULL;
}
