/*
 * undo.c - see setup.h: from the list that a set-up has left, prints the script that takes all of it back, last step
 * first.
 *
 * A file that is as the set-up left it becomes what it was before, byte for byte, with its mode and owner. Out of a
 * file that somebody has edited since, only our part is taken. A file that was ours alone and was edited is left.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "common/tool.h"
#include "doctor/setup/setup.h"
#include "sparkguard_abi.h"

enum { WORDS_MAX = 5 };

/* The functions of the script, each printed where a step uses it: shellcheck reports those that none uses. */
static const struct {
    const char *name, *text;
} functions[] = {
    {"back", "back() { # FILE KIND BEFORE AFTER NOW: as it was before\n"
             "    has \"file $1 $2 $3 $4\" && is \"$1\" \"$5\" || return 0\n"
             "    new=$root$1.sparkguard-new\n"
             "    { cp -p \"$root$state/before$1\" \"$new\" && [ \"$(sum \"$1.sparkguard-new\")\" = \"$3\" ] && mv "
             "\"$new\" \"$root$1\" &&\n"
             "        forget \"file $1 $2 $3 $4\" && say \"restored $1\"; } || {\n"
             "        rm -f \"$new\"\n"
             "        miss \"$1 could not be restored\"\n"
             "    }\n"
             "}\n"},
    {"drop", "drop() { # FILE KIND BEFORE AFTER NOW: there was none before\n"
             "    has \"file $1 $2 $3 $4\" && is \"$1\" \"$5\" || return 0\n"
             "    { rm \"$root$1\" && forget \"file $1 $2 $3 $4\" && say \"removed $1\"; } || miss \"$1 "
             "could not be removed\"\n"
             "}\n"},
    {"idle",
     "idle() { # ENGINE: whether no container runs that was started by its wrapper; else its part must stay\n"
     "    wrapper=" SETUP_WRAPPERS "/$1-runtime\n"
     "    case $busy in *\" $1 \"*) return 1 ;; esac\n"
     "    if ! grep -qsF -e \"$wrapper\" \"$root\"/run/containerd/io.containerd.runtime.v2.task/*/*/options.json \\\n"
     "        \"$root\"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*/options.json; then\n"
     "        for each in \"$root\"/proc/[0-9]*; do\n"
     "            name=$(cat \"$each/comm\" 2>/dev/null) || continue\n"
     "            [ \"$name\" != conmon ] || ! grep -qsaF -e \"$wrapper\" \"$each/cmdline\" || break\n"
     "            name=\n"
     "        done\n"
     "        [ \"$name\" = conmon ] || return 0\n"
     "    fi\n"
     "    busy=\"$busy $1 \"\n"
     "    miss \"$1: containers run by $wrapper; end them, then do --setup=undo again\"\n"
     "    return 1\n"
     "}\n"
     "busy='' name=''\n"},
    {"cut", "cut_out() { # FILE KIND BEFORE AFTER NOW: our block alone\n"
            "    has \"file $1 $2 $3 $4\" && is \"$1\" \"$5\" && is_whole \"$1\" || return 0\n"
            "    new=$root$1.sparkguard-new\n"
            "    { cp -p \"$root$1\" \"$new\" && without_block \"$1\" >\"$new\" && { if [ -s \"$new\" ] || [ \"$3\" != "
            "none ]; then\n"
            "        mv \"$new\" \"$root$1\"\n"
            "    else\n"
            "        rm \"$new\" \"$root$1\"\n"
            "    fi; } && forget \"file $1 $2 $3 $4\" && say \"took our lines out of $1\"; } || {\n"
            "        rm -f \"$new\"\n"
            "        miss \"$1 could not be written\"\n"
            "    }\n"
            "}\n"},
    {"unnamed", "unnamed() { # WRAPPER FILE: whether the engine's file does not name the wrapper any more\n"
                "    if grep -qF -e \"file $2 \" \"$list\" || grep -qsF -e \"$1\" \"$root$2\"; then\n"
                "        miss \"$1: $2 still names it\"\n"
                "        return 1\n"
                "    fi\n"
                "}\n"},
    {"rewrite", "rewrite() { # FILE KIND BEFORE AFTER NOW THEN: without our part, which is the input\n"
                "    has \"file $1 $2 $3 $4\" && is \"$1\" \"$5\" || return 0\n"
                "    new=$root$1.sparkguard-new\n"
                "    { cp -p \"$root$1\" \"$new\" && cat >\"$new\" && [ \"$(sum \"$1.sparkguard-new\")\" = \"$6\" ] && "
                "mv \"$new\" \"$root$1\" &&\n"
                "        forget \"file $1 $2 $3 $4\" && say \"took our part out of $1\"; } || {\n"
                "        rm -f \"$new\"\n"
                "        miss \"$1 could not be written\"\n"
                "    }\n"
                "}\n"},
    {"undefault", "undefault() { # SUM: dockerd keeps a default that its file stops to name; a file that names one, "
                  "the input, is there once\n"
                  "    file=/etc/docker/daemon.json\n"
                  "    docker_pid >/dev/null && [ -z \"$root\" ] && [ \"$(sum \"$file\")\" = \"$1\" ] || return 0\n"
                  "    { cp -p \"$file\" \"$file.sparkguard-now\" && cp -p \"$file\" \"$file.sparkguard-new\" && cat "
                  ">\"$file.sparkguard-new\" &&\n"
                  "        mv \"$file.sparkguard-new\" \"$file\"; } || miss 'dockerd must be restarted before a "
                  "container can be started'\n"
                  "    reload_docker\n"
                  "    for each in 1 2 3 4 5 6 7 8 9 10; do\n"
                  "        [ \"$(docker info --format '{{.DefaultRuntime}}' 2>/dev/null)\" = sparkguard ] || [ "
                  "\"$each\" -lt 4 ] || break\n"
                  "        sleep 0.5\n"
                  "    done\n"
                  "    mv \"$file.sparkguard-now\" \"$file\"\n"
                  "}\n"},
    {"look", "look() { # FILE KIND BEFORE AFTER WHY: for a person\n"
             "    ! has \"file $1 $2 $3 $4\" || miss \"$1 $5\"\n"
             "}\n"},
    {"already", "already() { # FILE KIND BEFORE AFTER: as it was before\n"
                "    ! has \"file $1 $2 $3 $4\" || forget \"file $1 $2 $3 $4\"\n"
                "}\n"},
    {"gone", "gone() { # WORD FOLDER: unless somebody else has put something there\n"
             "    has \"$1 $2\" && [ -z \"$missed\" ] || return 0\n"
             "    if [ ! -d \"$root$2\" ] || rmdir \"$root$2\" 2>/dev/null; then say \"removed $2\"; else say \"kept "
             "$2, which is not empty\"; fi\n"
             "    forget \"$1 $2\"\n"
             "}\n"},
    {"release", "release() { # FOLDER: with what guarded programs have left in it\n"
                "    has \"shared $1\" && [ -z \"$missed\" ] || return 0\n"
                "    { rm -rf \"$root${1:?}\" && forget \"shared $1\" && say \"removed $1\"; } || miss \"$1 could not "
                "be removed\"\n"
                "}\n"},
    {"ungroup",
     "ungroup() { # SUM: of /etc/group before; what groupadd had kept beside it is put back, unless other "
     "groups have changed\n"
     "    has \"group $1\" && [ -z \"$missed\" ] || return 0\n"
     "    if [ -d \"$root" SETUP_HISTORY "\" ]; then\n"
     "        say 'kept the group sparkguard, which owns " SETUP_HISTORY "'\n"
     "        forget \"group $1\"\n"
     "        return 0\n"
     "    fi\n"
     "    for each in \"$root\"/etc/systemd/system/*.d/*.conf; do\n"
     "        if grep -qs -e '^[[:space:]]*\\(Supplementary\\)\\{0,1\\}Groups\\{0,1\\}=.*sparkguard' \"$each\"; "
     "then\n"
     "            say \"kept the group sparkguard, which ${each#\"$root\"} names\"\n"
     "            forget \"group $1\"\n"
     "            return 0\n"
     "        fi\n"
     "    done\n"
     "    groupdel ${root:+-P \"$root\"} sparkguard || [ $? -eq 6 ] || { # 6: there is none\n"
     "        miss 'the group sparkguard could not be removed'\n"
     "        return 0\n"
     "    }\n"
     "    if [ \"$(sum /etc/group)\" = \"$1\" ]; then\n"
     "        for each in /etc/group- /etc/gshadow-; do\n"
     "            if [ -f \"$root$state/before$each\" ]; then cp -p \"$root$state/before$each\" "
     "\"$root$each\"; else rm -f \"$root$each\"; fi\n"
     "        done\n"
     "    fi\n"
     "    forget \"group $1\" && say 'removed the group sparkguard'\n"
     "}\n"},
    {"expel", "expel() { # NAME\n"
              "    has \"member $1\" || return 0\n"
              "    act gpasswd -d \"$1\" sparkguard\n"
              "    forget \"member $1\"\n"
              "}\n"},
};

enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

struct undo {
    struct setup setup;
    FILE *stream; /* the steps, printed behind the functions that they use */
    bool uses[FUNCTIONS];
};

static void call(struct undo *undo, const char *name, const char *words)
{
    for (size_t i = 0; i < FUNCTIONS; i++)
        undo->uses[i] = undo->uses[i] || strcmp(functions[i].name, name) == 0;
    fprintf(undo->stream, "%s %s", strcmp(name, "cut") == 0 ? "cut_out" : name, words);
}

/* Prints the step for daemon.json after others have edited it. */
static void undo_json(struct undo *undo, const char *line, const char *before_sum, const char *text, const char *sum)
{
    char *before_text, *fault = NULL, *ignored = NULL;
    size_t length;
    enum setup_file file =
        setup_read(undo->setup.doctor, SETUP_STATE "/before" SETUP_DAEMON_JSON, &before_text, &length);
    json_t *now = setup_docker_parse(text, &fault);
    json_t *before = file == SETUP_READ ? setup_docker_parse(before_text, &ignored) : NULL;
    bool is_known = strcmp(before_sum, "none") == 0 || before != NULL;
    if (now == NULL || !is_known) {
        call(undo, "look", line);
        fputc(' ', undo->stream);
        setup_quote(undo->stream, now == NULL ? "was edited and is no JSON: take \"sparkguard\" out of it"
                                              : "was edited; run sparkguard-doctor --setup=undo as root");
        fputc('\n', undo->stream);
    } else if (setup_docker_without(now, before) == NULL) {
        call(undo, "drop", line);
        fprintf(undo->stream, " %s\n", sum);
    } else {
        char then[SETUP_SUM_CAPACITY], *content = setup_json_text(now, text);
        setup_sum(then, content, strlen(content));
        call(undo, "rewrite", line);
        fprintf(undo->stream, " %s %s", sum, then);
        setup_document(undo->stream, content);
        free(content);
    }
    json_decref(now);
    json_decref(before);
    free(fault);
    free(ignored);
    free(before_text);
}

static bool begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Prints the step that has dockerd forget the runtime: a file that still names a default one, for a moment. */
static void undo_default(struct undo *undo, const char *text, const char *sum)
{
    char *before_text, *ignored = NULL, *fault = NULL;
    size_t length;
    json_t *now = setup_docker_parse(text, &fault), *before = NULL;
    if (setup_read(undo->setup.doctor, SETUP_STATE "/before" SETUP_DAEMON_JSON, &before_text, &length) == SETUP_READ)
        before = setup_docker_parse(before_text, &ignored);
    if (now != NULL) {
        (void)setup_docker_without(now, before);
        if (json_object_get(now, "default-runtime") == NULL)
            json_object_set_new(now, "default-runtime", json_string("runc"));
        char *content = setup_json_text(now, text);
        call(undo, "undefault", sum);
        setup_document(undo->stream, content);
        free(content);
    }
    json_decref(now);
    json_decref(before);
    free(before_text);
    free(ignored);
    free(fault);
}

/* The parts of an engine: its own file, which names the wrapper. */
static const struct part {
    const char *engine, *file, *wrapper;
} parts[] = {{"docker", SETUP_DAEMON_JSON, SETUP_WRAPPERS "/docker-runtime"},
             {"podman", "/etc/containers/containers.conf.d/60-sparkguard.conf", SETUP_WRAPPERS "/podman-runtime"},
             {"containerd", "/etc/containerd/config.toml", SETUP_WRAPPERS "/containerd-runtime"}};

/* Prints the condition for the step of an engine's file, if it is one. Returns whether it is. A running container needs
 * its engine's part to be ended, and an engine that names a wrapper which is not there starts none. */
static bool print_condition(struct undo *undo, const char *path)
{
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        bool is_wrapper = strcmp(path, parts[i].wrapper) == 0;
        if (!is_wrapper && strcmp(path, parts[i].file) != 0)
            continue;
        fputs("if ", undo->stream);
        call(undo, "idle", parts[i].engine);
        if (is_wrapper) {
            fputs(" && ", undo->stream);
            call(undo, "unnamed", parts[i].wrapper);
            fprintf(undo->stream, " %s", parts[i].file);
        }
        fputs("; then\n", undo->stream);
        return true;
    }
    return false;
}

/* word: "file" PATH KIND BEFORE AFTER; line: these without the first. */
static void undo_file(struct undo *undo, char *word[WORDS_MAX], const char *line)
{
    char sum[SETUP_SUM_CAPACITY] = "none", *text;
    size_t length;
    const char *path = word[1], *kind = word[2], *before = word[3], *after = word[4];
    if (path == NULL || kind == NULL || before == NULL || after == NULL)
        return; /* is_trusted() has counted them, which the analyzer does not see */
    enum setup_file file = setup_read(undo->setup.doctor, path, &text, &length);
    bool is_conditional = print_condition(undo, path);
    if (file == SETUP_READ)
        setup_sum(sum, text, length);
    if (file == SETUP_READ && strcmp(path, SETUP_DAEMON_JSON) == 0 && strcmp(sum, before) != 0)
        undo_default(undo, text, sum);
    if (file == SETUP_ABSENT || (file == SETUP_READ && strcmp(sum, before) == 0)) {
        call(undo, "already", line);
        fputc('\n', undo->stream);
    } else if (file != SETUP_READ) {
        call(undo, "look", line);
        fputs(" 'cannot be read, or is no regular file any more; run sparkguard-doctor --setup=undo as root'\n",
              undo->stream);
    } else if (strcmp(sum, after) == 0) {
        call(undo, strcmp(before, "none") != 0 ? "back" : "drop", line);
        fprintf(undo->stream, " %s\n", sum);
    } else if (strcmp(kind, "json") == 0 && strlen(text) == length) {
        undo_json(undo, line, before, text, sum);
    } else if (strcmp(kind, "block") == 0) {
        call(undo, "cut", line);
        fprintf(undo->stream, " %s\n", sum);
    } else {
        call(undo, "look", line);
        fputs(" 'was edited since; remove it, or keep it, and remove its line from " SETUP_STATE "/manifest'\n",
              undo->stream);
    }
    if (is_conditional)
        fputs("fi\n", undo->stream);
    free(text);
}

/* Returns whether a line is one that the set-up's script writes: the steps hold its words as they are. */
static bool is_trusted(char *word[WORDS_MAX], size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (word[i][strspn(word[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@_.:/+-")] != '\0' ||
            word[i][0] == '-' || strstr(word[i], "..") != NULL)
            return false;
    if (count == 5)
        return strcmp(word[0], "file") == 0 && word[1][0] == '/';
    if (count != 2)
        return false;
    return strcmp(word[0], "group") == 0 || strcmp(word[0], "member") == 0 ||
           ((strcmp(word[0], "dir") == 0 || strcmp(word[0], "shared") == 0) && word[1][0] == '/');
}

/* Prints the step of one line. Returns false if the line cannot be trusted. */
static bool undo_line(struct undo *undo, const char *line, char **state_folders)
{
    char *word[WORDS_MAX] = {NULL}, *copy = text_copy(line, SIZE_MAX), *rest = copy, *next;
    size_t count = 0;
    bool is_good = true;
    while ((next = strsep(&rest, " ")) != NULL && (is_good = count < WORDS_MAX && next[0] != '\0'))
        word[count++] = next;
    is_good = is_good && is_trusted(word, count);
    if (!is_good || word[1] == NULL)
        goto end;
    if (strcmp(word[0], "file") == 0) {
        undo_file(undo, word, line + 5);
    } else if (strcmp(word[0], "dir") == 0 && begins_with(SETUP_STATE "/", word[1]) &&
               (SETUP_STATE "/")[strlen(word[1])] == '/') {
        char *longer = text_format("%s %s", *state_folders, word[1]);
        free(*state_folders);
        *state_folders = longer;
    } else if (strcmp(word[0], "shared") == 0 && begins_with(word[1], "/run/sparkguard/")) {
        call(undo, "release", word[1]);
        fputc('\n', undo->stream);
    } else {
        const char *name = strcmp(word[0], "group") == 0    ? "ungroup"
                           : strcmp(word[0], "member") == 0 ? "expel"
                                                            : "gone";
        call(undo, name, strcmp(name, "gone") == 0 ? line : word[1]);
        fputc('\n', undo->stream);
    }
end:
    free(copy);
    return is_good;
}

/* Prints the steps, the last line's first. Lines that no set-up has written are named at the end, and nothing is done
 * for them. Returns how many these are. */
static unsigned undo_all(struct undo *undo, char *manifest)
{
    char *state_folders = text_copy("", 1);
    size_t length = strlen(manifest), odd_length;
    char *odd = NULL;
    FILE *named = open_memstream(&odd, &odd_length);
    unsigned count = 0;
    if (named == NULL)
        tool_end_without_memory();
    while (length > 0) {
        if (manifest[length - 1] == '\n')
            manifest[--length] = '\0';
        char *start = memrchr(manifest, '\n', length);
        start = start != NULL ? start + 1 : manifest;
        if (start[0] != '\0' && !undo_line(undo, start, &state_folders)) {
            struct setup setup = {.stream = named};
            setup_leave(&setup, SETUP_STATE "/manifest: no set-up has written this; remove it: %s", start);
            count++;
        }
        length = (size_t)(start - manifest);
    }
    if (fclose(named) != 0)
        tool_end_without_memory();
    fprintf(undo->stream,
            "%s"
            "if [ -z \"$missed\" ]; then\n"
            "    rm -rf \"$root$state/before\" \"$list\"\n"
            "    remove_folders%s\n"
            "fi\n",
            odd, state_folders[0] != '\0' ? state_folders : " " SETUP_STATE);
    free(odd);
    free(state_folders);
    return count;
}

/* Names the containers that no longer start: an engine keeps the name of the runtime with each. Podman has it in a
 * database, root's or a user's, from which only the presence is read. */
static void print_warning(const char *manifest, FILE *stream)
{
    if (strstr(manifest, SETUP_WRAPPERS "/") != NULL)
        fputs("# Containers keep the name of their runtime: those that exist cannot be started after this, only made "
              "anew.\n"
              "bound=$(grep -ls '\"Runtime\":\"sparkguard\"' \"$root\"/var/lib/docker/containers/*/hostconfig.json | "
              "wc -l)\n"
              "if [ \"$bound\" -gt 0 ]; then say \"make anew, for they no longer start: $bound containers of Docker\"; "
              "fi\n"
              "for each in \"$root\"/var/lib/containers/storage \"$root\"/root/.local/share/containers/storage \\\n"
              "    \"$root\"/home/*/.local/share/containers/storage; do\n"
              "    if cat \"$each/db.sql\" \"$each/libpod/bolt_state.db\" 2>/dev/null | grep -qaF "
              "'\"runtime\":\"sparkguard\"'; then\n"
              "        say \"make anew, for they no longer start: containers of Podman in $each (podman ps --all)\"\n"
              "    fi\n"
              "done\n",
              stream);
}

int setup_print_undo(struct doctor *doctor, FILE *stream)
{
    char *manifest, *steps = NULL;
    size_t length, steps_length = 0;
    enum setup_file file = setup_read(doctor, SETUP_STATE "/manifest", &manifest, &length);
    if (file == SETUP_UNREADABLE || file == SETUP_ODD || (file == SETUP_READ && strlen(manifest) != length)) {
        fprintf(stderr, "sparkguard-doctor: " SETUP_STATE "/manifest %s\n",
                file == SETUP_UNREADABLE ? "cannot be read; run it as root" : "is no list of a set-up");
        free(manifest);
        return SETUP_NONE;
    }
    fputs("#!/bin/sh\n# Made by sparkguard-doctor --setup=undo, version " SG_VERSION_TEXT ".\n", stream);
    if (file == SETUP_ABSENT) {
        fputs("echo 'nothing is set up here'\n", stream);
        return SETUP_WHOLE;
    }
    struct undo undo = {.setup = {.doctor = doctor}, .stream = open_memstream(&steps, &steps_length)};
    if (undo.stream == NULL)
        tool_end_without_memory();
    print_warning(manifest, undo.stream);
    unsigned odd_lines = undo_all(&undo, manifest);
    if (fclose(undo.stream) != 0)
        tool_end_without_memory();
    fputs(setup_undo_begin, stream);
    fputs(setup_script_common, stream);
    fputs(setup_undo_functions, stream);
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (undo.uses[i])
            fputs(functions[i].text, stream);
    fputs("\nmain() {\nif [ ! -e \"$list\" ]; then\n    say 'nothing is set up here'\n    exit 0\nfi\n", stream);
    fputs(steps, stream);
    fputs(setup_undo_end, stream);
    free(steps);
    free(manifest);
    return odd_lines > 0 ? SETUP_PARTIAL : SETUP_WHOLE;
}
