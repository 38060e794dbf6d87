/*
 * daemon_json.c - see setup.h: edits Docker's daemon.json for the script of the set-up.
 *
 * The text is edited and not written anew: numbers that no program can hold, the order, the blanks stay as they are.
 * The edited text is parsed again and compared with what the edit is to come to; a file where that differs is left.
 */
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"
#include "doctor/setup/setup.h"

#define NAME "sparkguard"
#define DEFAULT "default-runtime"
#define RUNTIME "{\"path\": \"" SETUP_WRAPPERS "/docker-runtime\"}"

enum { FILE_MOST = 1 << 20 };

struct document {
    char *text;
    size_t length;
    json_t *root;
};

struct part {
    size_t begin, end;
};

/* A member of an object in the text. */
struct member {
    struct part key, value;
    size_t before; /* where the member before it ends, or behind the brace */
    size_t after;  /* where the next one begins, or where it ends */
    bool is_first, is_last;
};

/* Reads a file of at most 1 MiB. Returns false after a message on stderr. */
static bool load(int fd, struct document *document)
{
    json_error_t error;
    const char *fault = NULL;
    ssize_t got = 1;
    *document = (struct document){.text = tool_allocate(FILE_MOST + 2, 1)};
    while (document->length <= FILE_MOST && got > 0) {
        got = read(fd, document->text + document->length, FILE_MOST + 1 - document->length);
        document->length += got > 0 ? (size_t)got : 0;
    }
    if (got < 0 || document->length > FILE_MOST)
        fault = got < 0 ? "it cannot be read" : "it is larger than 1 MiB";
    else if (document->length == 0)
        fault = "it is empty";
    else if (strlen(document->text) != document->length)
        fault = "it is not JSON: there is a zero byte in it";
    else if (strncmp(document->text, "\xef\xbb\xbf", 3) == 0)
        fault = "it begins with a byte order mark";
    if (fault == NULL) {
        document->root =
            json_loads(document->text, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &error);
        if (document->root == NULL)
            fprintf(stderr, "it is not JSON: line %d: %s\n", error.line, error.text);
        const json_t *runtimes = json_object_get(document->root, "runtimes");
        const json_t *name = json_object_get(document->root, DEFAULT);
        if (document->root == NULL)
            return false;
        fault = !json_is_object(document->root)                 ? "it is no JSON object"
                : runtimes != NULL && !json_is_object(runtimes) ? "its \"runtimes\" are no object"
                : name != NULL && !json_is_string(name)         ? "its \"default-runtime\" is no text"
                                                                : NULL;
    }
    if (fault != NULL)
        fprintf(stderr, "%s\n", fault);
    return fault == NULL;
}

static size_t skip_blanks(const char *text, size_t at)
{
    return at + strspn(text + at, " \t\r\n");
}

/* Returns the place behind a value of a text that is JSON. */
static size_t skip_value(const char *text, size_t at)
{
    size_t depth = 0;
    do {
        at = skip_blanks(text, at);
        if (text[at] == '"') {
            for (at++; text[at] != '"' && text[at] != '\0'; at++)
                at += text[at] == '\\' && text[at + 1] != '\0';
            at += text[at] == '"';
        } else if (strchr("{[", text[at]) != NULL && text[at] != '\0') {
            depth++;
            at++;
        } else if (strchr("}]", text[at]) != NULL && text[at] != '\0') {
            depth--;
            at++;
        } else if (text[at] == ',' || text[at] == ':') {
            at++;
        } else {
            at += strcspn(text + at, " \t\r\n,:{}[]\"");
        }
    } while (depth > 0 && text[at] != '\0');
    return at;
}

/* Finds a member of the object whose brace is at `brace`, by its key as it is written. Without one, `out` is the end of
 * the last member. Returns whether it is there. */
static bool find_member(const char *text, size_t brace, const char *name, struct member *out)
{
    char *quoted = text_format("\"%s\"", name);
    size_t at = skip_blanks(text, brace + 1);
    *out = (struct member){.before = brace + 1, .is_first = true};
    bool is_found = false;
    while (!is_found && text[at] == '"') {
        out->key = (struct part){at, skip_value(text, at)};
        out->value.begin = skip_blanks(text, skip_blanks(text, out->key.end) + 1);
        out->value.end = skip_value(text, out->value.begin);
        at = skip_blanks(text, out->value.end);
        out->is_last = text[at] != ',';
        out->after = out->is_last ? out->value.end : skip_blanks(text, at + 1);
        is_found = out->key.end - out->key.begin == strlen(quoted) &&
                   strncmp(text + out->key.begin, quoted, strlen(quoted)) == 0;
        if (!is_found) {
            out->before = out->value.end;
            out->is_first = false;
        }
        at = out->is_last ? at : out->after;
    }
    return is_found;
}

static void replace(struct document *document, size_t begin, size_t end, const char *with)
{
    char *text = text_format("%.*s%s%s", (int)begin, document->text, with, document->text + end);
    document->text = text;
}

/* Sets a member of an object, as its last one where it is new, on a line of its own where the others are. */
static void set_member(struct document *document, size_t brace, const char *name, const char *value)
{
    struct member member;
    if (find_member(document->text, brace, name, &member)) {
        replace(document, member.value.begin, member.value.end, value);
        return;
    }
    size_t first = skip_blanks(document->text, brace + 1);
    bool is_empty = member.is_first;
    char *added = text_format("%s%.*s\"%s\": %s", is_empty ? "" : ",", is_empty ? 0 : (int)(first - brace - 1),
                              document->text + brace + 1, name, value);
    if (!is_empty)
        replace(document, member.before, member.before, added);
    else
        replace(document, brace + 1, first, added);
}

static void remove_member(struct document *document, size_t brace, const char *name)
{
    struct member member;
    if (!find_member(document->text, brace, name, &member))
        return;
    if (member.is_first && !member.is_last)
        replace(document, member.key.begin, member.after, "");
    else
        replace(document, member.before,
                member.is_first ? skip_blanks(document->text, member.value.end) : member.value.end, "");
}

static size_t top(const struct document *document)
{
    return skip_blanks(document->text, 0);
}

/* Returns the brace of "runtimes", 0 where there is none. */
static size_t runtimes_brace(const struct document *document)
{
    struct member member;
    return find_member(document->text, top(document), "runtimes", &member) ? member.value.begin : 0;
}

/* What names the program of a runtime: a member of an object in the text. */
struct program {
    json_t *object;
    const char *key;
    size_t brace;
};

/* Finds the program of a runtime that works as runc does. Returns false where there is none, or where the text spells
 * its keys in another way. */
static bool find_runtime_program(const struct document *document, const char *name, struct program *out)
{
    const char *text = document->text;
    struct member member;
    json_t *runtime = json_object_get(json_object_get(document->root, "runtimes"), name);
    const char *type = json_string_value(json_object_get(runtime, "runtimeType"));
    if (runtimes_brace(document) == 0 || !find_member(text, runtimes_brace(document), name, &member))
        return false;
    *out = (struct program){runtime, "path", member.value.begin};
    if (type != NULL && strcmp(type, "io.containerd.runc.v2") == 0) {
        if (text[out->brace] != '{' || !find_member(text, out->brace, "options", &member))
            return false;
        *out = (struct program){json_object_get(runtime, "options"), "BinaryName", member.value.begin};
    } else if (json_object_get(runtime, "runtimeType") != NULL) {
        return false;
    }
    return text[out->brace] == '{' && json_is_string(json_object_get(out->object, out->key)) &&
           find_member(text, out->brace, out->key, &member);
}

/* Names another program for a runtime, if it has the one that is expected. */
static void change_program(struct document *document, const char *name, const char *from, const char *to)
{
    struct program program;
    if (!find_runtime_program(document, name, &program) ||
        strcmp(json_string_value(json_object_get(program.object, program.key)), from) != 0)
        return;
    json_object_set_new(program.object, program.key, json_string(to));
    set_member(document, program.brace, program.key, text_format("\"%s\"", to));
}

/* Has each runtime of the list, "NAME=PROGRAM,...", started by its wrapper; or `is_back` by its program again. */
static void change_programs(struct document *document, const char *list, bool is_back)
{
    char *rest = text_copy(list, SIZE_MAX);
    for (char *name; (name = strsep(&rest, ",")) != NULL;) {
        char *program = name + strcspn(name, "=");
        if (*program == '\0')
            continue;
        *program++ = '\0';
        char *wrapper = text_format(SETUP_WRAPPERS "/docker-runtime-%s", name);
        change_program(document, name, is_back ? wrapper : program, is_back ? program : wrapper);
    }
}

static void add(struct document *document)
{
    json_t *runtimes = json_object_get(document->root, "runtimes");
    if (runtimes == NULL) {
        runtimes = json_object();
        json_object_set_new(document->root, "runtimes", runtimes);
        set_member(document, top(document), "runtimes", "{\"" NAME "\": " RUNTIME "}");
    } else if (runtimes_brace(document) > 0) {
        set_member(document, runtimes_brace(document), NAME, RUNTIME);
    }
    json_object_set_new(runtimes, NAME, json_pack("{s:s}", "path", SETUP_WRAPPERS "/docker-runtime"));
    json_object_set_new(document->root, DEFAULT, json_string(NAME));
    set_member(document, top(document), DEFAULT, "\"" NAME "\"");
}

static bool is_default(const struct document *document)
{
    const char *name = json_string_value(json_object_get(document->root, DEFAULT));
    return name != NULL && strcmp(name, NAME) == 0;
}

/* Whether it has a runtime of our name that somebody else has made. */
static bool has_another(const struct document *document)
{
    const json_t *runtime = json_object_get(json_object_get(document->root, "runtimes"), NAME);
    const char *path = json_string_value(json_object_get(runtime, "path"));
    return runtime != NULL && (path == NULL || strcmp(path, SETUP_WRAPPERS "/docker-runtime") != 0);
}

/* Takes our part out. What was the default before is it again. */
static void take_out(struct document *document, const struct document *earlier)
{
    json_t *runtimes = json_object_get(document->root, "runtimes");
    if (has_another(document))
        return;
    json_object_del(runtimes, NAME);
    if (runtimes_brace(document) > 0)
        remove_member(document, runtimes_brace(document), NAME);
    if (runtimes != NULL && json_object_size(runtimes) == 0 && json_object_get(earlier->root, "runtimes") == NULL) {
        json_object_del(document->root, "runtimes");
        remove_member(document, top(document), "runtimes");
    }
    if (!is_default(document))
        return;
    json_t *name = json_object_get(earlier->root, DEFAULT);
    if (name == NULL) {
        json_object_del(document->root, DEFAULT);
        remove_member(document, top(document), DEFAULT);
        return;
    }
    json_object_set(document->root, DEFAULT, name);
    set_member(document, top(document), DEFAULT, json_dumps(name, JSON_ENCODE_ANY));
}

/* Prints the edited text. Returns an exit code. */
static int print(const struct document *document, FILE *stream)
{
    json_t *edited =
        json_loads(document->text, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    bool is_right = json_equal(edited, document->root) == 1;
    if (is_right)
        fputs(document->text, stream);
    if (!is_right)
        fputs("it spells its keys in another way than others do\n", stderr);
    return is_right ? SETUP_DONE : SETUP_NONE;
}

/* Prints the name or path of the runtime that containers get now. */
static int print_next(const struct document *document, FILE *stream)
{
    const char *name = json_string_value(json_object_get(document->root, DEFAULT)), *path = name;
    if (name == NULL || strcmp(name, "runc") == 0)
        path = "runc";
    else if (strcmp(name, NAME) != 0) {
        const json_t *runtime = json_object_get(json_object_get(document->root, "runtimes"), name);
        path = json_string_value(json_object_get(runtime, "path"));
        if (path == NULL || json_object_get(runtime, "runtimeType") != NULL ||
            json_array_size(json_object_get(runtime, "runtimeArgs")) > 0) {
            fprintf(stderr, "its default runtime, %s, has no path or more than a path\n", name);
            return SETUP_NONE;
        }
    }
    fprintf(stream, "%s\n", path);
    return SETUP_DONE;
}

/* Prints the program of each further runtime and its name; "-": it has none that a wrapper can start. */
static int print_others(const struct document *document, FILE *stream)
{
    json_t *runtimes = json_object_get(document->root, "runtimes"), *runtime;
    const char *name;
    json_object_foreach(runtimes, name, runtime)
    {
        struct program program;
        const char *path = NULL;
        char *printable = text_printable(name, false);
        if (find_runtime_program(document, name, &program))
            path = json_string_value(json_object_get(program.object, program.key));
        if (path == NULL || path[0] == '\0' || strpbrk(path, " \t\r\n") != NULL)
            path = "-";
        if (strcmp(name, NAME) != 0)
            fprintf(stream, "%s %s\n", path, printable);
    }
    return SETUP_DONE;
}

/* Edits the text. `list`: behind the first comma of what is to be done. Returns an exit code. */
static int edit(struct document *document, const struct document *earlier, const char *what, const char *list,
                FILE *stream)
{
    if (strcmp(what, "add") == 0) {
        add(document);
        change_programs(document, list, false);
    } else if (strcmp(what, "take") == 0) {
        change_programs(document, list, true);
        take_out(document, earlier);
    } else if (json_object_get(document->root, DEFAULT) == NULL) { /* name: a default for dockerd to forget ours by */
        json_object_set_new(document->root, DEFAULT, json_string("runc"));
        set_member(document, top(document), DEFAULT, "\"runc\"");
    }
    return print(document, stream);
}

int setup_daemon_json(const char *what, int fd, int earlier_fd, FILE *stream)
{
    struct document document, earlier = {.text = NULL};
    char *list = text_copy(what, SIZE_MAX), *task = strsep(&list, ",");
    if (!load(fd, &document) || (strcmp(task, "take") == 0 && !load(earlier_fd, &earlier)))
        return SETUP_NONE;
    if (strcmp(task, "next") == 0 && has_another(&document)) {
        fputs("it has a runtime \"" NAME "\" that is not from here; give it another name\n", stderr);
        return SETUP_NONE;
    }
    if (strcmp(task, "next") == 0)
        return print_next(&document, stream);
    if (strcmp(task, "others") == 0)
        return print_others(&document, stream);
    return edit(&document, &earlier, task, list != NULL ? list : "", stream);
}
