/*
 * arguments.c - the command line of an OCI runtime, as runc, crun and nvidia-container-runtime read it: global options,
 * a command, its options, the container's id. An option may have one dash or two, and its value behind "=" or in the
 * next word.
 */
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/text.h"
#include "runtime/runtime.h"

/* Options that take a value. All others are taken for flags. */
static const char global_values[] = "root|log|log-format|log-level|criu|rootless|cgroup-manager";
static const char global_flags[] = "debug|systemd-cgroup|help|h|version|v|V|usage|?";
static const char create_values[] =
    "bundle|b|config|f|pid-file|preserve-fds|console-socket|image-path|work-path|parent-path|page-server|"
    "manage-cgroups-mode|empty-ns|lsm-profile|lsm-mount-context|status-fd|pidfd-socket";
static const char exec_values[] =
    "process|p|pid-file|console-socket|cwd|env|e|user|u|cgroup|preserve-fds|apparmor|cap|c|process-label|"
    "pidfd-socket|additional-gids|g";

struct words {
    int count, at;
    char *const *word;
};

struct option {
    char name[32];
    const char *value; /* NULL: a flag */
};

/* A short option with its value in the same word: "-b/path", "-p=file". */
static bool parse_joined_option(struct option *option, const char *word, const char *values)
{
    const char letter[] = {word[1], '\0'};
    if (word[1] == '-' || word[1] == '\0' || !text_is_one_of(letter, values) || text_is_one_of(word + 1, values))
        return false;
    snprintf(option->name, sizeof option->name, "%s", letter);
    option->value = word + 2 + (word[2] == '=');
    return true;
}

/* Takes the next option. Returns false at the first other word, and behind "--". */
static bool parse_next_option(struct words *words, const char *values, struct option *option)
{
    const char *word = words->at < words->count ? words->word[words->at] : "";
    *option = (struct option){0};
    if (word[0] != '-' || word[1] == '\0')
        return false;
    words->at++;
    if (strcmp(word, "--") == 0)
        return false;
    const char *name = word + 1 + (word[1] == '-'), *equals = strchr(name, '=');
    size_t length = equals != NULL ? (size_t)(equals - name) : strlen(name);
    snprintf(option->name, sizeof option->name, "%.*s", (int)length, name);
    if (text_is_one_of(option->name, values)) {
        option->value = equals != NULL ? equals + 1 : words->at < words->count ? words->word[words->at++] : "";
        return true;
    }
    (void)parse_joined_option(option, word, values);
    return true;
}

static enum runtime_command command_called(const char *word)
{
    static const char others[] =
        "checkpoint|events|features|h|help|init|kill|list|mounts|pause|ps|resume|spec|start|state|"
        "update|version";
    return text_is_one_of(word, "create|run|restore") ? RUNTIME_CREATE
           : text_is_one_of(word, "exec")             ? RUNTIME_EXEC
           : text_is_one_of(word, "delete")           ? RUNTIME_DELETE
           : text_is_one_of(word, others)             ? RUNTIME_OTHER
                                                      : RUNTIME_UNKNOWN;
}

static void set_global_option(struct runtime_arguments *arguments, const struct option *option)
{
    if (option->value == NULL || option->value[0] == '\0')
        return;
    if (strcmp(option->name, "root") == 0)
        arguments->root = option->value;
    else if (strcmp(option->name, "log") == 0)
        arguments->log = option->value;
    else if (strcmp(option->name, "log-format") == 0)
        arguments->is_log_json = strcmp(option->value, "json") == 0;
}

static void parse_variable(struct runtime_arguments *arguments, const char *entry)
{
    if (arguments->variables == NULL) {
        arguments->variables = json_object();
        json_object_set_new(arguments->variables, "env", json_array());
    }
    json_array_append_new(json_object_get(arguments->variables, "env"), json_of_text(entry));
}

static void set_command_option(struct runtime_arguments *arguments, const struct option *option)
{
    if (arguments->command == RUNTIME_DELETE)
        arguments->is_forced =
            arguments->is_forced || strcmp(option->name, "force") == 0 || strcmp(option->name, "f") == 0;
    if (option->value == NULL || option->value[0] == '\0')
        return;
    if (strcmp(option->name, "bundle") == 0 || strcmp(option->name, "b") == 0)
        arguments->bundle = option->value;
    else if (strcmp(option->name, "config") == 0 || strcmp(option->name, "f") == 0)
        arguments->config = option->value;
    else if (strcmp(option->name, "process") == 0 || strcmp(option->name, "p") == 0)
        arguments->process_file = option->value;
    else if (strcmp(option->name, "env") == 0 || strcmp(option->name, "e") == 0)
        parse_variable(arguments, option->value);
}

void runtime_arguments_read(struct runtime_arguments *arguments, int count, char *const *words_given)
{
    struct words words = {.count = count, .at = 1, .word = words_given};
    struct option option;
    *arguments =
        (struct runtime_arguments){.count = count, .words = words_given, .bundle = ".", .config = "config.json"};
    bool is_clear = true;
    while (parse_next_option(&words, global_values, &option)) {
        set_global_option(arguments, &option);
        is_clear =
            is_clear && (text_is_one_of(option.name, global_values) || text_is_one_of(option.name, global_flags) ||
                         strchr(words_given[words.at - 1], '=') != NULL);
    }
    if (words.at >= count)
        return;
    arguments->command_word = words_given[words.at++];
    arguments->command = command_called(arguments->command_word);
    if (!is_clear && arguments->command == RUNTIME_OTHER)
        arguments->command = RUNTIME_UNKNOWN; /* "state" may be the value of the unknown option */
    const char *values = arguments->command == RUNTIME_CREATE ? create_values
                         : arguments->command == RUNTIME_EXEC ? exec_values
                                                              : NULL;
    while (parse_next_option(&words, values, &option))
        set_command_option(arguments, &option);
    arguments->id_at = words.at;
    arguments->id = words.at < count ? words_given[words.at++] : NULL;
    if (arguments->command == RUNTIME_UNKNOWN)
        arguments->id = NULL; /* which word it is cannot be told */
    /* crun finds its options behind the id as well, except those of the program that exec names. */
    while ((arguments->command == RUNTIME_CREATE || arguments->command == RUNTIME_DELETE) && words.at < count)
        if (parse_next_option(&words, values, &option))
            set_command_option(arguments, &option);
        else
            words.at++;
}
