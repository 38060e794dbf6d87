/*
 * engines.c - see setup.h: the runtime for Podman and containerd, and sparkguard-runtime's own file.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "common/toml.h"
#include "doctor/setup/setup.h"

#define ENGINE "/etc/containers/containers.conf.d/60-sparkguard.conf"

/* Returns the runtime that Podman's files name last, "" for none. */
static char *podman_runtime(const struct setup *setup)
{
    static const char *const files[] = {"/usr/share/containers/containers.conf", "/etc/containers/containers.conf"};
    char *runtime = text_copy("", 1), *text;
    size_t length;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (setup_read(setup->doctor, files[i], &text, &length) == SETUP_READ) {
            char *value = toml_value(text, "engine", "runtime");
            if (value != NULL) {
                free(runtime);
                runtime = value;
            }
        }
        free(text);
    }
    return runtime;
}

char *setup_podman(struct setup *setup)
{
    char *name = podman_runtime(setup), *next = setup_wrapped(setup, "podman");
    if (next == NULL && name[0] != '\0')
        next = setup_find_program(setup->doctor, name);
    else if (next == NULL) {
        next = setup_find_program(setup->doctor, "crun");
        next = next != NULL ? next : setup_find_program(setup->doctor, "runc");
    }
    if (next == NULL) {
        setup_leave(setup, "Podman: its runtime, %s, is not installed", name[0] != '\0' ? name : "crun or runc");
    } else if (setup_is_own(setup->doctor, next)) {
        setup_leave(setup, "Podman: its runtime, %s, is sparkguard-runtime already; that stays", next);
        free(next);
        next = NULL;
    } else if (setup_wrap(setup, "podman", next)) {
        const char *more = strcmp(strrchr(next, '/') + 1, "crun") == 0 ? ", \"sparkguard\"" : "";
        char *text = text_format(
            "# Made by sparkguard-doctor --setup.\n"
            "[engine]\n"
            "runtime = \"sparkguard\"\n"
            "runtime_supports_json = [\"crun\", \"runc\", \"kata\", \"runsc\", \"youki\", \"krun\", \"sparkguard\"]\n"
            "# Podman 4.3 reads the second name, its manual and later ones the first.\n"
            "runtime_supports_nocgroups = [\"crun\", \"krun\"%s]\n"
            "runtime_supports_nocgroup = [\"crun\", \"krun\"%s]\n"
            "\n"
            "[engine.runtimes]\n"
            "sparkguard = [\"%s/podman-runtime\"]\n",
            more, more, SETUP_WRAPPERS);
        setup_comment(setup, "Podman: a runtime for all new containers. Containers that exist keep theirs.");
        (void)setup_put(setup, ENGINE, "644", text);
        setup_wrap_end(setup, "podman");
        free(text);
    }
    free(name);
    return next;
}

/* Returns the runtime that containerd's default runtime executes. */
static char *containerd_runtime(const struct setup *setup, const char *text, const char *plugin)
{
    char *section = text_format("%s.containerd", plugin);
    char *name = toml_value(text, section, "default_runtime_name");
    free(section);
    section = text_format("runtimes.%s.options", name != NULL && name[0] != '\0' ? name : "runc");
    char *program = toml_value(text, section, "BinaryName");
    char *next = setup_find_program(setup->doctor, program != NULL && program[0] != '\0' ? program : "runc");
    free(program);
    free(section);
    free(name);
    return next;
}

static void add_containerd(struct setup *setup, const char *text, const char *plugin)
{
    char *cgroup = toml_value(text, "runtimes.runc.options", "SystemdCgroup");
    char *block = text_format("%s[plugins.\"%s\".containerd.runtimes.sparkguard]\n"
                              "  runtime_type = \"io.containerd.runc.v2\"\n"
                              "  [plugins.\"%s\".containerd.runtimes.sparkguard.options]\n"
                              "    BinaryName = \"%s/containerd-runtime\"\n%s",
                              text[0] == '\0' ? "version = 2\n" : "", plugin, plugin, SETUP_WRAPPERS,
                              cgroup != NULL && strcmp(cgroup, "true") == 0 ? "    SystemdCgroup = true\n" : "");
    setup_comment(setup,
                  "containerd: a runtime that pods name by a RuntimeClass. Its restart is left to you, because Docker "
                  "may depend on it.");
    (void)setup_put(setup, "/etc/sparkguard/runtimeclass.yaml", "644",
                    "# Made by sparkguard-doctor --setup. Once for the cluster: kubectl apply -f runtimeclass.yaml;\n"
                    "# then, in each pod to be guarded: runtimeClassName: sparkguard\n"
                    "apiVersion: node.k8s.io/v1\n"
                    "kind: RuntimeClass\n"
                    "metadata:\n"
                    "  name: sparkguard\n"
                    "handler: sparkguard\n");
    setup_add(setup, "/etc/containerd/config.toml", block);
    fputs("later 'systemctl restart containerd'\n", setup->stream);
    free(block);
    free(cgroup);
}

char *setup_containerd(struct setup *setup)
{
    char *text, *next = NULL;
    size_t length;
    enum setup_file file = setup_read(setup->doctor, "/etc/containerd/config.toml", &text, &length);
    if (file == SETUP_ABSENT)
        text = text_copy("", 1);
    else if (file == SETUP_READ)
        setup_cut_block(text);
    char *version = text != NULL ? toml_value(text, "", "version") : NULL;
    char *disabled = text != NULL ? toml_value(text, "", "disabled_plugins") : NULL;
    bool is_third = version != NULL && strcmp(version, "3") == 0;
    const char *plugin = is_third ? "io.containerd.cri.v1.runtime" : "io.containerd.grpc.v1.cri";
    if (text == NULL)
        setup_leave(setup, "containerd, /etc/containerd/config.toml: it is no regular file, or cannot be read");
    else if (disabled != NULL && strstr(disabled, "cri\"") != NULL)
        setup_comment(setup, "containerd serves no Kubernetes here: its CRI plugin is disabled.");
    else if (text[0] != '\0' && (version == NULL || (!is_third && strcmp(version, "2") != 0)))
        setup_leave(setup, "containerd, /etc/containerd/config.toml: only versions 2 and 3 of it are known");
    else if (strstr(text, "runtimes.sparkguard") != NULL)
        setup_comment(setup, "containerd has a runtime of this name, not from here.");
    else if ((next = containerd_runtime(setup, text, plugin)) == NULL)
        setup_leave(setup, "containerd: its default runtime is not installed");
    else if (setup_is_own(setup->doctor, next)) {
        setup_leave(setup, "containerd: its default runtime, %s, is sparkguard-runtime already; that stays", next);
        free(next);
        next = NULL;
    } else if (setup_wrap(setup, "containerd", next)) {
        add_containerd(setup, text, plugin);
        setup_wrap_end(setup, "containerd");
    }
    free(version);
    free(disabled);
    free(text);
    return next;
}

static void put_configuration(struct setup *setup, const char *next)
{
    char *text = text_format("# Made by sparkguard-doctor --setup.\n"
                             "%s%s%slibrary = %s\nshared = %s\n",
                             next != NULL ? "next = " : "", next != NULL ? next : "", next != NULL ? "\n" : "",
                             setup->library, SETUP_SHARED);
    setup_comment(setup, "sparkguard-runtime: the runtime behind it, and what it brings into containers.");
    (void)setup_put(setup, SETUP_CONFIGURATION, "644", text);
    free(text);
}

void setup_engines(struct setup *setup)
{
    static const struct {
        const char *name, *program;
        char *(*print)(struct setup *setup);
    } engines[] = {{"Docker", "dockerd", setup_docker},
                   {"Podman", "podman", setup_podman},
                   {"containerd", "containerd", setup_containerd}};
    char *first = NULL;
    bool has_engine = false;
    for (size_t i = 0; i < sizeof engines / sizeof engines[0]; i++) {
        char *program = setup_find_program(setup->doctor, engines[i].program), *next = NULL;
        fputc('\n', setup->stream);
        has_engine = has_engine || program != NULL;
        if (program == NULL)
            setup_comment(setup, "%s is not installed.", engines[i].name);
        else if (setup->runtime == NULL)
            setup_leave(setup, "%s: sparkguard-runtime is not installed", engines[i].name);
        else
            next = engines[i].print(setup);
        free(program);
        if (first == NULL)
            first = next;
        else
            free(next);
    }
    if (has_engine && setup->runtime != NULL) {
        fputc('\n', setup->stream);
        put_configuration(setup, first);
    }
    free(first);
}
