/*
 * docker.c - see setup.h: merges the runtime into Docker's daemon.json, and takes it out again.
 *
 * The runtime becomes the default: whoever runs a container without a thought gets a guarded one. A file that is not
 * JSON, or that does what we cannot follow, is left as it is.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "doctor/setup/setup.h"

#define WRAPPER SETUP_WRAPPERS "/docker-runtime"

json_t *setup_docker_parse(const char *text, char **fault)
{
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    *fault = NULL;
    if (text[0] == '\0')
        *fault = text_copy("it is empty", 64);
    else if (strncmp(text, "\xef\xbb\xbf", 3) == 0)
        *fault = text_copy("it begins with a byte order mark", 64);
    else if (root == NULL)
        *fault = text_format("it is not JSON: line %d: %s", error.line, error.text);
    else if (!json_is_object(root))
        *fault = text_copy("it is no JSON object", 64);
    else if (json_object_get(root, "runtimes") != NULL && !json_is_object(json_object_get(root, "runtimes")))
        *fault = text_copy("its \"runtimes\" are no object", 64);
    else if (json_object_get(root, "default-runtime") != NULL &&
             !json_is_string(json_object_get(root, "default-runtime")))
        *fault = text_copy("its \"default-runtime\" is no text", 64);
    if (*fault == NULL)
        return root;
    json_decref(root);
    return NULL;
}

/* Returns the path of the runtime that containers get now; NULL with the fault. */
static char *find_next(const struct setup *setup, const json_t *root, char **fault)
{
    const char *name = json_string_value(json_object_get(root, "default-runtime"));
    const char *program = "runc";
    if (name != NULL && strcmp(name, "sparkguard") == 0) {
        char *next = setup_wrapped(setup, "docker");
        if (next == NULL)
            *fault = text_copy("\"sparkguard\" is its default runtime already, and not from here", 80);
        return next;
    }
    if (name != NULL && strcmp(name, "runc") != 0) {
        const json_t *runtime = json_object_get(json_object_get(root, "runtimes"), name);
        const char *path = json_string_value(json_object_get(runtime, "path"));
        bool has_more = json_object_get(runtime, "runtimeType") != NULL ||
                        json_array_size(json_object_get(runtime, "runtimeArgs")) > 0;
        if (path == NULL || has_more) {
            *fault = text_format("its default runtime, %s, has no path or more than a path", name);
            return NULL;
        }
        program = path;
    }
    char *next = setup_find_program(setup->doctor, program);
    if (next == NULL) {
        *fault = text_format("its default runtime, %s, is not installed", program);
    } else if (setup_is_own(setup->doctor, next)) {
        *fault = text_format("its default runtime, %s, is sparkguard-runtime already; that stays", program);
        free(next);
        next = NULL;
    }
    return next;
}

/* Returns the option of dockerd's command line that daemon.json must not repeat: dockerd would not start. */
static const char *find_flag(const struct doctor *doctor)
{
    static const char *const flags[] = {"--default-runtime", "--add-runtime", "--config-file", NULL};
    size_t length;
    for (int i = 0; flags[i] != NULL; i++) {
        char *text;
        (void)setup_read(doctor, "/etc/default/docker", &text, &length);
        bool is_there = doctor_unit_mentions(doctor, "docker.service", flags[i]) ||
                        (text != NULL && strstr(text, flags[i]) != NULL);
        free(text);
        if (is_there)
            return flags[i];
    }
    return NULL;
}

static void merge(struct setup *setup, json_t *root, const char *before)
{
    json_t *runtimes = json_object_get(root, "runtimes");
    if (runtimes == NULL) {
        runtimes = json_object();
        json_object_set_new(root, "runtimes", runtimes);
    }
    json_object_set_new(runtimes, "sparkguard", json_pack("{s:s}", "path", WRAPPER));
    json_object_set_new(root, "default-runtime", json_string("sparkguard"));
    char *after = setup_json_text(root, before);
    setup_comment(setup, "Docker: a runtime for all containers that name none. Running containers stay as they are; "
                         "dockerd takes the file without a restart.");
    setup_put_json(setup, SETUP_DAEMON_JSON, before, after);
    fputs("[ -z \"$changed\" ] || reload_docker\n", setup->stream);
    free(after);
}

/* Prints what the script says of containers that name another runtime: dockerd starts them by that one. */
static void print_others(const struct setup *setup, const json_t *root)
{
    json_t *runtimes = json_object_get(root, "runtimes"), *runtime;
    const char *name;
    json_object_foreach(runtimes, name, runtime)
    {
        if (strcmp(name, "sparkguard") == 0)
            continue;
        char *sentence =
            text_format("Docker: containers with --runtime=%s are not guarded; leave the option out", name);
        char *printable = text_printable(sentence, false);
        fputs("say ", setup->stream);
        setup_quote(setup->stream, printable);
        fputc('\n', setup->stream);
        free(printable);
        free(sentence);
    }
}

/* Returns whether the file has all of our part already. */
static bool is_merged(const json_t *root)
{
    const json_t *runtime = json_object_get(json_object_get(root, "runtimes"), "sparkguard");
    const char *path = json_string_value(json_object_get(runtime, "path"));
    const char *name = json_string_value(json_object_get(root, "default-runtime"));
    return path != NULL && strcmp(path, WRAPPER) == 0 && name != NULL && strcmp(name, "sparkguard") == 0;
}

char *setup_docker(struct setup *setup)
{
    char *text, *fault = NULL, *next = NULL;
    size_t length;
    const char *flag = find_flag(setup->doctor);
    enum setup_file file = setup_read(setup->doctor, SETUP_DAEMON_JSON, &text, &length);
    json_t *root = NULL;
    if (flag != NULL)
        fault = text_format("dockerd is started with %s, which must not be in both; take it to %s", flag,
                            SETUP_DAEMON_JSON);
    else if (file == SETUP_ODD)
        fault = text_copy("it is a symbolic link, or no regular file", 64);
    else if (file == SETUP_UNREADABLE)
        fault = text_copy("it cannot be read; run sparkguard-doctor --setup as root", 80);
    else if (file == SETUP_READ && strlen(text) != length)
        fault = text_copy("it is not JSON: there is a zero byte in it", 64);
    else
        root = file == SETUP_READ ? setup_docker_parse(text, &fault) : json_object();
    if (root != NULL)
        next = find_next(setup, root, &fault);
    if (next != NULL && setup_wrap(setup, "docker", next)) {
        if (is_merged(root))
            setup_comment(setup, "%s has the runtime.", SETUP_DAEMON_JSON);
        else
            merge(setup, root, text);
        setup_wrap_end(setup, "docker");
        print_others(setup, root);
    }
    if (fault != NULL)
        setup_leave(setup, "Docker, %s: %s", SETUP_DAEMON_JSON, fault);
    json_decref(root);
    free(fault);
    free(text);
    return next;
}

json_t *setup_docker_without(json_t *now, const json_t *before)
{
    json_t *runtimes = json_object_get(now, "runtimes");
    const char *name = json_string_value(json_object_get(now, "default-runtime"));
    json_object_del(runtimes, "sparkguard");
    if (runtimes != NULL && json_object_size(runtimes) == 0 && json_object_get(before, "runtimes") == NULL)
        json_object_del(now, "runtimes");
    if (name != NULL && strcmp(name, "sparkguard") == 0) {
        json_t *earlier = json_object_get(before, "default-runtime");
        if (earlier != NULL)
            json_object_set(now, "default-runtime", earlier);
        else
            json_object_del(now, "default-runtime");
    }
    return json_object_size(now) == 0 && before == NULL ? NULL : now;
}
