/*
 * container.c - commands that start a container: docker run, podman run. The program of such a command is a client,
 * and the memory is the container's. So each run's job gets its name and its settings by options that are put behind
 * the word "run", and nothing is preloaded into the client.
 *
 * A container must bring the guard: by the runtime that sparkguard-doctor --setup makes the default, by a CDI device,
 * or by variables of its own. Without it a sweep would take the machine down, so it is refused before anything is
 * started.
 */
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/procfs.h"
#include "common/text.h"
#include "common/toml.h"
#include "common/tool.h"
#include "sweep/sweep.h"

#define SETUP "sparkguard-doctor --setup | sudo sh"
enum { FILE_CAPACITY = 1 << 18 };

struct options {
    size_t image;                /* index of the image's word; 0: none */
    const char *name, *runtime;  /* values, NULL if not given */
    bool is_detached, is_remote; /* the client ends before the container, or is not on its machine */
    bool has_guard, has_job, is_off;
};

/* Returns the index of the client behind sudo, env, nice and assignments; of the first word that is none of these. */
static size_t find_client(char *const *words)
{
    static const char before[] = "sudo|env|nice|ionice|time|nohup", with_value[] = "-u|-g|-n|-c";
    size_t at = 0;
    bool is_behind = false; /* behind one of `before`, where options and assignments may stand */
    while (words[at] != NULL) {
        bool is_sudo = text_is_one_of(basename(words[at]), before);
        if (!is_sudo && !(is_behind && (words[at][0] == '-' || strchr(words[at], '=') != NULL)))
            break;
        bool has_value =
            is_behind && text_is_one_of(words[at], with_value) && words[at + 1] != NULL && words[at + 1][0] != '-';
        is_behind = is_behind || is_sudo;
        /* sudo's -n has no value, nice's has: a number. */
        if (has_value && strcmp(words[at], "-n") == 0 && words[at + 1][strspn(words[at + 1], "0123456789")] != '\0')
            has_value = false;
        at += has_value ? 2 : 1;
    }
    return at;
}

/* Returns the word behind an option, with its value in *value, "" where it has none. `flags` take no value. */
static size_t skip_option(char *const *words, size_t at, const char *flags, const char *letters, const char **value)
{
    const char *word = words[at], *equals = strchr(word, '=');
    size_t used = strspn(word + 1, letters);
    *value = "";
    if (word[1] == '-') {
        if (equals != NULL)
            *value = equals + 1;
        else if (!text_is_one_of(word + 2, flags) && words[at + 1] != NULL)
            *value = words[++at];
    } else if (word[1 + used] != '\0') { /* the first letter that takes a value */
        if (word[2 + used] != '\0')
            *value = word + 2 + used + (word[2 + used] == '=');
        else if (words[at + 1] != NULL)
            *value = words[++at];
    }
    return at + 1;
}

/* Returns whether a word is the long option, with or without "=VALUE", or has the letter in front of its value. */
static bool is_option(const char *word, const char *name, char letter, const char *letters)
{
    size_t length = strlen(name);
    if (word[1] == '-')
        return strncmp(word + 2, name, length) == 0 && (word[2 + length] == '=' || word[2 + length] == '\0');
    size_t used = strspn(word + 1, letters);
    return letter != '\0' && (memchr(word + 1, letter, used) != NULL || word[1 + used] == letter);
}

static void note_option(struct options *options, const char *word, const char *value, const char *letters)
{
    bool is_environment = is_option(word, "env", 'e', letters);
    if (is_option(word, "detach", 'd', letters))
        options->is_detached = strcmp(value, "false") != 0;
    if (is_option(word, "name", '\0', letters))
        options->name = value;
    if (is_option(word, "runtime", '\0', letters))
        options->runtime = value;
    if (is_option(word, "device", '\0', letters) && strncmp(value, "sparkguard/", 11) == 0)
        options->has_guard = true;
    if (is_environment && strncmp(value, "LD_PRELOAD=", 11) == 0 && strstr(value, "libsparkguard.so") != NULL)
        options->has_guard = true;
    if (is_environment && strncmp(value, "SPARKGUARD_JOB", 14) == 0)
        options->has_job = true;
    if ((is_environment && strcmp(value, "SPARKGUARD_DISABLE=1") == 0) ||
        (is_environment && strcmp(value, "SPARKGUARD_MODE=observe") == 0) ||
        (is_option(word, "annotation", '\0', letters) && strcmp(value, "sparkguard=off") == 0))
        options->is_off = true;
}

static bool is_elsewhere(const char *address)
{
    return address != NULL && (strncmp(address, "tcp:", 4) == 0 || strncmp(address, "ssh:", 4) == 0);
}

/* Reads the options before "run". Returns its index, 0 if the client is told to do something else. */
static size_t find_run(char *const *words, size_t at, struct options *options)
{
    static const char flags[] = "debug|tls|tlsverify|remote|syslog|noout|trace|transient-store";
    const char *value;
    while (words[at] != NULL && words[at][0] == '-') {
        const char *word = words[at];
        at = skip_option(words, at, flags, "Drv", &value);
        bool is_named = is_option(word, "context", 'c', "Drv") || is_option(word, "connection", '\0', "Drv");
        bool is_address = is_option(word, "host", 'H', "Drv") || is_option(word, "url", '\0', "Drv");
        options->is_remote = options->is_remote || is_named || is_option(word, "remote", 'r', "Drv") ||
                             (is_address && is_elsewhere(value));
        if (is_option(word, "runtime", '\0', "Drv"))
            options->runtime = value;
    }
    if (words[at] != NULL && strcmp(words[at], "container") == 0)
        at++;
    return words[at] != NULL && strcmp(words[at], "run") == 0 ? at : 0;
}

/* Reads the options behind "run", up to the image. */
static void read_options(char *const *words, size_t at, struct options *options)
{
    static const char letters[] = "ditPq";
    static const char flags[] =
        "detach|disable-content-trust|env-host|http-proxy|init|interactive|no-healthcheck|no-hostname|no-hosts|"
        "oom-kill-disable|passwd|privileged|publish-all|quiet|read-only|replace|read-only-tmpfs|rm|rmi|rootfs|"
        "sig-proxy|tls-verify|tty|unsetenv-all|use-api-socket";
    const char *value;
    while (words[at] != NULL && words[at][0] == '-' && words[at][1] != '\0') {
        const char *word = words[at];
        if (strcmp(word, "--") == 0) {
            at++;
            break;
        }
        at = skip_option(words, at, flags, letters, &value);
        note_option(options, word, value, letters);
    }
    options->image = words[at] != NULL ? at : 0;
}

/* Returns a path below SPARKGUARD_SYSTEM_ROOT. */
static char *below_root(const char *path)
{
    const char *root = getenv(sg_option_table[SG_OPTION_SYSTEM_ROOT].variable);
    return text_format("%s%s", root != NULL && strcmp(root, "/") != 0 ? root : "", path);
}

/* Reads a file below the root. Returns "" if it cannot be read. */
static char *read_below_root(const char *path)
{
    char *full = below_root(path), *text = tool_allocate(FILE_CAPACITY, 1);
    if (procfs_read_text(full, text, FILE_CAPACITY) < 0)
        text[0] = '\0';
    return text;
}

static bool is_there(const char *path)
{
    return access(below_root(path), F_OK) == 0;
}

static bool is_dockers_default(void)
{
    json_t *root = json_loads(read_below_root("/etc/docker/daemon.json"), 0, NULL);
    const char *name = json_string_value(json_object_get(root, "default-runtime"));
    return name != NULL && strcmp(name, "sparkguard") == 0;
}

static bool is_podmans_default(void)
{
    static const char *const files[] = {"/etc/containers/containers.conf.d/60-sparkguard.conf",
                                        "/etc/containers/containers.conf"};
    bool is_ours = false;
    for (size_t i = 0; i < sizeof files / sizeof files[0] && !is_ours; i++) {
        char *text = read_below_root(files[i]), *name = toml_value(text, "engine", "runtime");
        is_ours = name != NULL && strcmp(name, "sparkguard") == 0;
    }
    return is_ours;
}

/* Returns whether a container that names no runtime gets sparkguard's. */
static bool is_default(const char *client)
{
    if (strcmp(client, "docker") == 0)
        return is_dockers_default() || (!is_there("/usr/bin/dockerd") && !is_there("/usr/sbin/dockerd") &&
                                        is_podmans_default()); /* Podman's "docker" */
    return strcmp(client, "podman") == 0 && is_podmans_default();
}

/* Returns why a container of these options cannot be measured, as the rest of a sentence; NULL if it can. */
static const char *find_obstacle(const char *client, const struct options *options)
{
    if (options->is_remote || is_elsewhere(getenv(strcmp(client, "podman") == 0 ? "CONTAINER_HOST" : "DOCKER_HOST")))
        return "the container may run on another machine";
    if (options->image == 0)
        return "no image is named";
    if (options->is_detached)
        return "with --detach the client ends before the container; leave it out";
    if (options->has_job)
        return "it sets SPARKGUARD_JOB, which the sweep sets for each run; leave it out";
    if (options->is_off)
        return "it turns the guard off, and a sweep without the guard would take the machine down";
    bool has_runtime = options->runtime != NULL && strstr(options->runtime, "sparkguard") != NULL;
    if (!options->has_guard && options->runtime != NULL && !has_runtime)
        return "its --runtime does not guard the container; leave it out after " SETUP;
    if (!options->has_guard && !has_runtime && !is_default(client))
        return "the container would not be guarded: " SETUP ", or sparkguard-doctor --print-cdi for --device";
    return NULL;
}

/* Returns the directory of this host that guarded containers share. */
static char *find_shared(void)
{
    char *text = read_below_root("/etc/sparkguard/runtime.conf"), *shared = toml_value(text, "", "shared");
    if (shared != NULL && shared[0] == '/')
        return shared;
    return text_copy("/run/sparkguard/shared", 64);
}

/* Makes the shared directory this tool's own. Returns false after a message. */
static bool use_shared(void)
{
    const char *variable = sg_option_table[SG_OPTION_DIR].variable;
    if (getenv(variable) != NULL)
        return true;
    char *shared = find_shared();
    const char *fault = launch_directory_fault(shared);
    if (fault == NULL)
        setenv(variable, shared, 1);
    else
        fprintf(stderr,
                "sparkguard-sweep: the container's figures would be in %s: %s; be a member of the group sparkguard, or "
                "set %s\n",
                shared, fault, variable);
    return fault == NULL;
}

enum sweep_container sweep_container_judge(char *const *words, struct sweep_client *client)
{
    static const char others[] = "ctr|crictl|kubectl|docker-compose|podman-compose|podman-remote";
    struct options options = {.image = 0};
    size_t at = find_client(words);
    const char *name = words[at] != NULL ? basename(words[at]) : "", *obstacle;
    *client = (struct sweep_client){.run_at = 0};
    if (text_is_one_of(name, others)) {
        obstacle = "the sweep follows containers of docker run, podman run and nerdctl run only";
    } else if (!text_is_one_of(name, "docker|podman|nerdctl")) {
        return SWEEP_NO_CONTAINER;
    } else if ((client->run_at = find_run(words, at + 1, &options)) == 0) {
        obstacle = "of a container client only \"run\" is measured";
    } else {
        read_options(words, client->run_at + 1, &options);
        obstacle = find_obstacle(name, &options);
        client->has_name = options.name != NULL;
    }
    if (obstacle != NULL) {
        fprintf(stderr, "sparkguard-sweep: %s would be measured, and not its container: %s\n", name, obstacle);
        return SWEEP_CONTAINER_REFUSED;
    }
    return use_shared() ? SWEEP_CONTAINER : SWEEP_CONTAINER_REFUSED;
}

char **sweep_container_command(char **words, const struct sweep_client *client, const char *job, const char *name)
{
    size_t count = 0, at = 0;
    while (words[count] != NULL)
        count++;
    char **all = tool_allocate(count + SG_OPTION_COUNT + 3, sizeof *all);
    for (; at <= client->run_at; at++)
        all[at] = words[at];
    size_t to = at;
    all[to++] = text_format("--env=%s=%s", sg_option_table[SG_OPTION_JOB].variable, job);
    if (!client->has_name)
        all[to++] = text_format("--name=%s", name);
    for (int i = 0; i < SG_OPTION_COUNT; i++) {
        const char *value = getenv(sg_option_table[i].variable);
        if (value != NULL && i != SG_OPTION_JOB && i != SG_OPTION_DIR && i != SG_OPTION_HISTORY &&
            i != SG_OPTION_SYSTEM_ROOT && i != SG_OPTION_REPORT)
            all[to++] = text_format("--env=%s=%s", sg_option_table[i].variable, value);
    }
    while (at < count)
        all[to++] = words[at++];
    return all;
}

void sweep_container_kill(char *const *words, const struct sweep_client *client, const char *name)
{
    struct options options = {.image = 0};
    size_t at = client->run_at;
    read_options(words, at + 1, &options);
    at -= strcmp(words[at - 1], "container") == 0;
    char **kill_words = tool_allocate(at + 3, sizeof *kill_words);
    for (size_t i = 0; i < at; i++)
        kill_words[i] = words[i];
    kill_words[at] = (char[]){"kill"};
    kill_words[at + 1] = text_copy(options.name != NULL ? options.name : name, SIZE_MAX);
    if (fork() == 0) {
        int nothing = open("/dev/null", O_RDWR);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        for (int fd = STDIN_FILENO; fd <= STDERR_FILENO && nothing >= 0; fd++)
            dup2(nothing, fd);
        execvp(kill_words[0], kill_words);
        _exit(LAUNCH_NOT_FOUND);
    }
}
