/*
 * container.c - see runtime.h. A configuration is changed only when everything else is known to be in place: a
 * container either gets all of the guard or starts as it would without it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/json.h"
#include "common/text.h"
#include "common/tool.h"
#include "runtime/runtime.h"
#include "sparkguard_options.h"

/* Variables of a guarded container that a process of exec gets as well. */
static const char *const inherited[] = {"SPARKGUARD_DIR", "SPARKGUARD_HISTORY", "SPARKGUARD_JOB", "SPARKGUARD_LIMIT"};

#define VENDOR_LIMIT "NVIDIA_GPU_MEMORY_LIMIT"
#define LIMIT_LEAST_BYTES (UINT64_C(1) << 20) /* "64" was meant as 64G: no program runs in less than a mebibyte */

struct container {
    const struct runtime_settings *settings;
    const struct runtime_arguments *arguments;
    struct runtime_document document;
    json_t *process;
    char *name;
    struct runtime_sharing sharing; /* not usable: the container has a directory of its own */
};

static char *sentence(const char *text)
{
    return text_copy(text, SIZE_MAX);
}

/* Returns why the library cannot be loaded by every process of a container; NULL if it can. */
static char *library_obstacle(const char *library)
{
    struct stat status;
    struct statvfs system;
    if (stat(library, &status) != 0 || access(library, R_OK) != 0)
        return text_format("%s: %s", library, strerror(errno));
    if (!S_ISREG(status.st_mode) || (status.st_mode & S_IROTH) == 0)
        return text_format("%s cannot be read by all users", library);
    if (statvfs(library, &system) == 0 && (system.f_flag & ST_NOEXEC) != 0)
        return text_format("%s is on a file system that is mounted noexec", library);
    return NULL;
}

/* Returns whether a text can be a limit; a number without a unit that is too small for any program cannot. */
static bool is_limit(const char *text)
{
    struct sg_size size;
    return strcmp(text, "none") == 0 ||
           (sg_parse_size(text, &size) == 0 && (size.percent_milli != 0 || size.bytes >= LIMIT_LEAST_BYTES));
}

static void log_text(const struct container *container, const char *text)
{
    runtime_log_add(container->settings, container->arguments, text);
}

/* Returns the size that NVIDIA_GPU_MEMORY_LIMIT means: its unit is MiB, as the vendor's own hook reads it. NULL if it
 * is not a decimal number above zero. */
static char *vendor_limit(const char *value)
{
    char *size = text_format("%sMiB", value);
    if (value[strspn(value, "0123456789")] == '\0' && is_limit(size))
        return size;
    return NULL;
}

/* The annotation is stronger than the image's SPARKGUARD_LIMIT, and that is stronger than the vendor's variable. */
static void set_limit(struct container *container)
{
    const char *annotation = runtime_edit_annotation(container->document.root, RUNTIME_ANNOTATION_LIMIT);
    const char *vendor = runtime_edit_variable(container->process, VENDOR_LIMIT);
    const char *own = runtime_edit_variable(container->process, "SPARKGUARD_LIMIT");
    const char *value = annotation != NULL ? annotation : own == NULL || own[0] == '\0' ? vendor : NULL;
    if (value == NULL || value[0] == '\0')
        return;
    char *size = annotation == NULL ? vendor_limit(value) : is_limit(value) ? text_copy(value, SIZE_MAX) : NULL;
    if (size != NULL) {
        runtime_edit_set_variable(container->process, "SPARKGUARD_LIMIT", size);
        return;
    }
    log_text(container, text_format("%s=%s is not a %s: no limit is set",
                                    annotation != NULL ? RUNTIME_ANNOTATION_LIMIT : VENDOR_LIMIT, value,
                                    annotation != NULL ? "size such as 40G" : "number of MiB such as 40960"));
}

static void set_default(json_t *process, const char *name, const char *value)
{
    const char *own = runtime_edit_variable(process, name);
    if (own == NULL || own[0] == '\0')
        runtime_edit_set_variable(process, name, value);
}

static bool is_object(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_object(value);
}

static bool is_array(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_array(value);
}

/* Returns whether a process is of the kind that OCI prescribes, where it would be changed. Of another kind it is the
 * next runtime's to reject, and nothing here may mend it. */
static bool is_process(const json_t *process)
{
    const json_t *user = json_object_get(process, "user");
    return is_object(process) && is_array(json_object_get(process, "env")) && is_object(user) &&
           is_array(json_object_get(user, "additionalGids"));
}

static bool is_configuration(const json_t *config)
{
    return is_process(json_object_get(config, "process")) && is_array(json_object_get(config, "mounts")) &&
           is_object(json_object_get(config, "annotations"));
}

/* Returns why the container's owner wants no guard; NULL if that is not so. */
static const char *opts_out(const struct container *container)
{
    const char *annotation = runtime_edit_annotation(container->document.root, RUNTIME_ANNOTATION_OFF);
    const char *disable = runtime_edit_variable(container->process, "SPARKGUARD_DISABLE");
    return text_is_one_of(annotation, "off|no|false|0") ? "it opts out (annotation sparkguard)"
           : text_is_one_of(disable, "1")               ? "it opts out (SPARKGUARD_DISABLE)"
                                                        : NULL;
}

/* Returns the id of the sandbox that the annotations of its engine name for a container of this kind; NULL: none. */
static const char *sandbox_of(const struct container *container, const char *kind)
{
    static const char *const known[][2] = {
        {"io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-id"},
        {"io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri-o.SandboxID"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const char *id = runtime_edit_annotation(container->document.root, known[i][1]);
        if (id != NULL && text_is_one_of(runtime_edit_annotation(container->document.root, known[i][0]), kind))
            return id;
    }
    return NULL;
}

/* A pod's sandbox holds namespaces and no work. Its engine names the sandbox by the container's own id. A user who may
 * write annotations does not know the id, so no other container passes for a sandbox. */
static bool is_sandbox(const struct container *container)
{
    const char *id = sandbox_of(container, "sandbox");
    return id != NULL && strcmp(id, container->arguments->id) == 0;
}

/* Decides whether the container shares the host's directory: its annotation and the administrator must both want it. */
static void decide_sharing(struct container *container)
{
    struct stat status;
    const struct runtime_settings *settings = container->settings;
    if (!text_is_one_of(runtime_edit_annotation(container->document.root, RUNTIME_ANNOTATION_SHARE), "yes|true|1"))
        return;
    const char *why = !settings->may_share ? "runtime.conf has no share = yes"
                      : runtime_shared_has_namespace(container->document.root, "ipc", false)
                          ? "it has an IPC namespace of its own, and the ledger is in the host's (--ipc=host)"
                          : runtime_shared_prepare(settings, &status);
    if (why == NULL)
        container->sharing =
            runtime_shared_judge(settings, &status, &container->document, json_object_get(container->process, "user"));
    if (container->sharing.is_usable)
        return;
    log_text(container, text_format("guarded, but it does not share %s: %s", settings->shared,
                                    why != NULL                      ? why
                                    : container->sharing.why != NULL ? container->sharing.why
                                                                     : "its user cannot use it"));
}

static const char *directory_inside(const struct container *container)
{
    return container->sharing.is_usable ? RUNTIME_SHARED_INSIDE : RUNTIME_OWN_INSIDE;
}

/* Looks at what the container will start, and where. Returns why it cannot be guarded; NULL if it can. */
static char *obstacle(struct container *container)
{
    struct runtime_image image;
    const struct runtime_settings *settings = container->settings;
    char *why = library_obstacle(settings->library);
    if (why != NULL)
        return why;
    if (!runtime_image_open(&image, container->document.root, container->arguments->bundle))
        return sentence("its root file system cannot be opened");
    why = runtime_program_obstacle(&image, container->process, settings->library);
    if (why == NULL)
        why = runtime_program_guard_obstacle(&image, container->process, settings->library);
    if (why == NULL && !runtime_edit_has_own_guard(container->process)) {
        decide_sharing(container);
        why = runtime_edit_mount_obstacle(&image, &container->document, settings->library, directory_inside(container));
    }
    runtime_image_close(&image);
    return why;
}

/* Returns the folder that the next runtime keeps for a container; NULL if unknown. crun has it in $XDG_RUNTIME_DIR for
 * root, too. */
static char *state_folder(const struct runtime_settings *settings, const struct runtime_arguments *arguments,
                          const char *id)
{
    const char *name = basename(settings->next), *own = getenv("XDG_RUNTIME_DIR"), *root = arguments->root;
    bool is_crun = strcmp(name, "crun") == 0, has_own = own != NULL && own[0] != '\0';
    char here[PATH_MAX];
    if (root != NULL && root[0] != '/')
        return getcwd(here, sizeof here) != NULL ? text_format("%s/%s/%s", here, root, id) : NULL;
    if (root != NULL)
        return text_format("%s/%s", root, id);
    if (is_crun)
        return text_format("%s/crun/%s", has_own ? own : "/run", id);
    if ((settings->is_rootless && !has_own) ||
        (strcmp(name, "runc") != 0 && strncmp(name, "nvidia-container-runtime", 24) != 0))
        return NULL;
    return text_format("%s/runc/%s", settings->is_rootless ? own : "/run", id);
}

/* Returns the directory of the container's pod; NULL: it is in none whose sandbox this runtime has started for the same
 * engine, or another user has it. A user who may write annotations does not know the id of another's sandbox. */
static char *pods_directory(const struct container *container, const json_t *user)
{
    const struct runtime_settings *settings = container->settings;
    const char *pod = sandbox_of(container, "container");
    if (pod == NULL ||
        runtime_record_bundle(settings->containers, pod, state_folder(settings, container->arguments, pod)) == NULL)
        return NULL;
    return runtime_own_of_pod(settings, &container->document, user, pod);
}

/* Has the host count what the processes of a container's own directory, or of its pod's, promise. The cgroup of a pod
 * is the one above its containers'. */
static void publish(const struct container *container, const char *own, bool is_pods)
{
    char *cgroup = runtime_record_cgroup(container->document.root, container->settings->is_rootless);
    char *slash = cgroup != NULL ? strrchr(cgroup, '/') : NULL;
    if (is_pods && slash != NULL)
        *slash = '\0';
    /* Where that cannot be had, the host counts none of its promises. */
    (void)runtime_own_publish(container->settings, own, cgroup, container->name);
}

/* What is restored needs the mounts that it had. */
static bool is_restored(const struct container *container)
{
    const char *command = container->arguments->command_word;
    return command != NULL && strcmp(command, "restore") == 0;
}

/* Mounts the library, and the directory that is shared, the pod's or the container's own. */
static void mount_both(struct container *container)
{
    const struct runtime_settings *settings = container->settings;
    const struct runtime_arguments *arguments = container->arguments;
    const json_t *user = json_object_get(container->process, "user");
    uint32_t uid = 0, gid = 0;
    char *state = state_folder(settings, arguments, arguments->id), *own = NULL;
    bool is_free = !runtime_record_is_anothers(settings->containers, arguments->id, state);
    if (!container->sharing.is_usable && is_free) {
        int lock = runtime_own_lock(settings->containers);
        char *pods = pods_directory(container, user);
        own = pods != NULL ? pods : runtime_own_prepare(settings, &container->document, user, arguments->id);
        if (own != NULL)
            publish(container, own, pods != NULL);
        if (lock >= 0)
            close(lock);
    }
    (void)runtime_document_number(&container->document, json_object_get(user, "uid"), &uid);
    (void)runtime_document_number(&container->document, json_object_get(user, "gid"), &gid);
    char *options = text_format("mode=0700,uid=%u,gid=%u", (unsigned)uid, (unsigned)gid);
    if (!is_restored(container)) /* the directory may be that of another container, and the library another one */
        runtime_edit_take_mounts_back(container->document.root);
    runtime_edit_add_mounts(container->document.root, settings->library, directory_inside(container),
                            container->sharing.is_usable ? settings->shared : own, options);
}

/* Adds the guard to the configuration. */
static void guard(struct container *container)
{
    const struct runtime_settings *settings = container->settings;
    json_t *process = container->process;
    set_limit(container);
    set_default(process, "SPARKGUARD_JOB", container->name);
    if (runtime_edit_has_own_guard(process))
        return; /* set up by hand: its library, its directory */
    bool has_directory = runtime_edit_variable(process, "SPARKGUARD_DIR") != NULL;
    set_default(process, "SPARKGUARD_HISTORY", "off"); /* the host's report reads the directory, not the image */
    set_default(process, "SPARKGUARD_DIR", directory_inside(container));
    if (container->sharing.needs_group && !has_directory)
        runtime_edit_add_group(process, &container->document, container->sharing.group);
    mount_both(container);
    runtime_edit_preload(process, settings->is_preload_last);
}

static void record(struct container *container, const char *reason)
{
    struct runtime_record one = {.id = container->arguments->id,
                                 .name = container->name,
                                 .bundle = container->arguments->bundle,
                                 .reason = reason};
    char *state = state_folder(container->settings, container->arguments, container->arguments->id);
    one.state = state;
    one.cgroup = runtime_record_cgroup(container->document.root, container->settings->is_rootless);
    const char *why = runtime_record_write(container->settings->containers, &one);
    runtime_own_sweep(container->settings->containers);
    if (why != NULL) {
        char *line = text_format("the host's report will not name it: %s: %s", container->settings->containers, why);
        log_text(container, line);
    }
}

/* Returns whether a container must not be started unguarded. */
static bool requires_guard(const struct container *container)
{
    const json_t *config = container->document.root;
    const char *variable = runtime_edit_variable(container->process, SG_VARIABLE_REQUIRED);
    bool is_asked = container->settings->is_required || text_is_one_of(variable, "1") ||
                    text_is_one_of(runtime_edit_annotation(config, RUNTIME_ANNOTATION_REQUIRED), "1|yes|true");
    return is_asked && !is_sandbox(container);
}

/* Returns whether this runtime guarded the bundle before, and the guard may be another one now. */
static bool is_used_again(const struct container *container)
{
    const char *before = runtime_edit_annotation(container->document.root, RUNTIME_ANNOTATION_GUARDED);
    return text_is_one_of(before, "yes") && !is_restored(container);
}

/* Decides about a configuration that was read. Returns why the container is unguarded. */
static char *decide(struct container *container)
{
    json_t *config = container->document.root;
    const char *out;
    if (is_sandbox(container))
        return sentence("it is a pod's sandbox");
    if (!json_is_object(container->process))
        return sentence("it names no program");
    if (runtime_edit_annotation(config, "run.oci.handler") != NULL) /* of crun: a virtual machine, or WebAssembly */
        return sentence("another kernel or interpreter runs its program (annotation run.oci.handler)");
    if ((out = opts_out(container)) != NULL)
        return sentence(out);
    return obstacle(container);
}

static void use_root(struct container *container, json_t *root)
{
    container->document.root = root;
    container->process = json_object_get(root, "process");
}

/* Changes the configuration. The decision about a bundle that is used again is made without the guard that it had: a
 * guarded bundle then stays as it is, another one loses that guard. Returns why the container is unguarded. */
static char *decide_and_guard(struct container *container)
{
    json_t *whole = NULL, *without = is_used_again(container) ? json_deep_copy(container->document.root) : NULL;
    if (without != NULL) {
        whole = container->document.root;
        runtime_edit_take_back(without);
        use_root(container, without);
    }
    char *why = decide(container);
    if (why == NULL && whole != NULL)
        use_root(container, whole);
    if (why == NULL)
        guard(container);
    return why;
}

/* Writes the configuration with the note of what was done. Returns why it could not be written. */
static char *write_back(struct container *container, const char *reason)
{
    char *note = reason != NULL ? text_format("no: %s", reason) : text_copy("yes", 4);
    runtime_edit_annotate(container->document.root, RUNTIME_ANNOTATION_GUARDED, note);
    const char *why = runtime_document_write(&container->document);
    return why != NULL ? text_format("%s cannot be changed: %s", container->document.path, why) : NULL;
}

char *runtime_container_create(const struct runtime_settings *settings, const struct runtime_arguments *arguments,
                               bool *is_required)
{
    struct container container = {.settings = settings, .arguments = arguments};
    char *path = text_format("%s/%s", arguments->config[0] == '/' ? "" : arguments->bundle, arguments->config);
    const char *why = runtime_document_read(&container.document, path);
    char *reason = why != NULL ? text_format("%s: %s", path, why) : NULL;
    *is_required = settings->is_required;
    if (arguments->id == NULL && reason == NULL)
        reason = sentence("it has no id");
    if (reason == NULL && !is_configuration(container.document.root))
        reason = text_format("%s: it is no configuration of OCI", path);
    if (reason == NULL) {
        container.process = json_object_get(container.document.root, "process");
        *is_required = requires_guard(&container); /* before anything that may fail: the caller's handler reads it */
        container.name = runtime_name_find(container.document.root, arguments->bundle, arguments->id);
        reason = decide_and_guard(&container);
        char *unwritten = reason == NULL || !*is_required ? write_back(&container, reason) : NULL;
        if (reason == NULL)
            reason = unwritten;
        if (reason == NULL || !*is_required)
            record(&container, reason);
    }
    return reason;
}

void runtime_container_delete(const struct runtime_settings *settings, const struct runtime_arguments *arguments)
{
    if (arguments->id == NULL)
        return;
    char *state = state_folder(settings, arguments, arguments->id);
    if (!runtime_record_is_anothers(settings->containers, arguments->id, state))
        runtime_own_keep(settings, arguments->id);
    runtime_record_remove(settings->containers, arguments->id, state, arguments->is_forced);
    runtime_own_unpublish(settings->containers, arguments->id);
}

/* ---- exec ------------------------------------------------------------------------------------------------------------- */

static uint32_t uid_of(const struct runtime_document *document, const json_t *process)
{
    uint32_t uid = 0;
    (void)runtime_document_number(document, json_object_get(json_object_get(process, "user"), "uid"), &uid);
    return uid;
}

/* Decides whether a process that joins may use the shared directory. */
static struct runtime_sharing judge_joined(const struct runtime_settings *settings,
                                           const struct runtime_document *config,
                                           const struct runtime_document *document)
{
    static const char *const ids[] = {"uid", "gid"};
    struct stat shared;
    struct runtime_sharing sharing = {0};
    json_t *user = json_deep_copy(json_object_get(document->root, "user"));
    uint32_t number;
    /* Both documents have marks of their own: the user's numbers are read by the process's. */
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        if (runtime_document_number(document, json_object_get(user, ids[i]), &number))
            json_object_set_new(user, ids[i], json_integer(number));
    json_object_del(user, "additionalGids"); /* runtime_edit_add_group() adds no group twice */
    if (runtime_shared_prepare(settings, &shared) == NULL)
        sharing = runtime_shared_judge(settings, &shared, config, user);
    return sharing;
}

/* Copies the guard of a container to a process that joins it. */
static void guard_process(const struct runtime_settings *settings, const struct runtime_document *config,
                          struct runtime_document *document)
{
    json_t *process = document->root;
    const json_t *first = json_object_get(config->root, "process");
    const char *directory = runtime_edit_variable(first, "SPARKGUARD_DIR");
    bool is_shared = directory != NULL && strcmp(directory, RUNTIME_SHARED_INSIDE) == 0;
    bool is_own = directory != NULL && strcmp(directory, RUNTIME_OWN_INSIDE) == 0;
    const struct runtime_sharing none = {0}, sharing = is_shared ? judge_joined(settings, config, document) : none;
    bool is_usable = is_shared ? sharing.is_usable : !is_own || uid_of(config, first) == uid_of(document, process);
    bool has_directory = runtime_edit_variable(process, "SPARKGUARD_DIR") != NULL;
    for (size_t i = 0; i < sizeof inherited / sizeof inherited[0]; i++) {
        const char *value = runtime_edit_variable(first, inherited[i]);
        if (value != NULL && (value != directory || is_usable))
            set_default(process, inherited[i], value);
    }
    if (sharing.needs_group && !has_directory)
        runtime_edit_add_group(process, document, sharing.group);
    runtime_edit_preload(process, settings->is_preload_last);
}

/* Adds --env options before the container's id. crun gives a program that is started with any no other variables. */
static void guard_words(const struct runtime_settings *settings, const struct runtime_document *config,
                        const struct runtime_arguments *arguments, char ***words)
{
    json_t *process = json_deep_copy(arguments->variables), *variables = json_object_get(process, "env"), *entry;
    const json_t *first = json_object_get(config->root, "process");
    const char *preload = runtime_edit_variable(first, "LD_PRELOAD");
    size_t known = json_array_size(variables), i;
    bool is_crun = strcmp(basename(settings->next), "crun") == 0;
    for (i = 0; i < sizeof inherited / sizeof inherited[0]; i++) {
        const char *value = runtime_edit_variable(first, inherited[i]);
        if (value != NULL && runtime_edit_variable(process, inherited[i]) == NULL)
            runtime_edit_set_variable(process, inherited[i], value);
    }
    const char *given = runtime_edit_variable(process, "LD_PRELOAD");
    char *list = text_copy(given != NULL ? given : is_crun || preload == NULL ? "" : preload, SIZE_MAX);
    json_array_append_new(variables, json_string("LD_PRELOAD="));
    runtime_edit_set_variable(process, "LD_PRELOAD", list);
    runtime_edit_preload(process, settings->is_preload_last);
    size_t added = json_array_size(variables) - known, at = (size_t)arguments->id_at;
    char **longer = tool_allocate((size_t)arguments->count + 2 * added + 1, sizeof longer[0]);
    memcpy(longer, arguments->words, at * sizeof longer[0]);
    for (i = 0; (entry = json_array_get(variables, i)) != NULL; i++) {
        if (i < known)
            continue;
        longer[at++] = text_copy("--env", 8);
        longer[at++] = text_copy(json_string_value(entry), SIZE_MAX);
    }
    memcpy(longer + at, arguments->words + arguments->id_at,
           (size_t)(arguments->count - arguments->id_at) * sizeof longer[0]);
    *words = longer;
}

/* A process that exec starts, and the container that it joins. */
struct joined {
    const struct runtime_settings *settings;
    const struct runtime_arguments *arguments;
    struct runtime_document config; /* of the container */
    struct runtime_document file;   /* of the process; empty: the command line has it */
    char *bundle;
    bool is_required;
};

/* Reads what is known of the container. Returns why it is not guarded. */
static char *read_container(struct joined *joined)
{
    char *state = state_folder(joined->settings, joined->arguments, joined->arguments->id);
    joined->bundle = runtime_record_bundle(joined->settings->containers, joined->arguments->id, state);
    if (joined->bundle == NULL) /* its container may have been started without this runtime */
        return sentence("there is no record of its container");
    char *path = text_format("%s/config.json", joined->bundle);
    const char *why = runtime_document_read(&joined->config, path);
    char *reason = why != NULL ? text_format("%s: %s", path, why) : NULL;
    if (reason != NULL)
        return reason;
    const struct container container = {.settings = joined->settings,
                                        .arguments = joined->arguments,
                                        .document = joined->config,
                                        .process = json_object_get(joined->config.root, "process")};
    joined->is_required = requires_guard(&container);
    const char *guarded = runtime_edit_annotation(joined->config.root, RUNTIME_ANNOTATION_GUARDED);
    return text_is_one_of(guarded, "yes") ? NULL : sentence("its container is not guarded");
}

/* Returns a process as exec would start it by its command line: the words behind the id, and variables. */
static json_t *process_of_words(const struct joined *joined)
{
    const struct runtime_arguments *arguments = joined->arguments;
    json_t *process = json_deep_copy(json_object_get(joined->config.root, "process")), *words = json_array();
    json_t *given = json_object_get(arguments->variables, "env");
    for (int i = arguments->id_at + 1; i < arguments->count; i++)
        if (i > arguments->id_at + 1 || strcmp(arguments->words[i], "--") != 0)
            json_array_append_new(words, json_of_text(arguments->words[i]));
    json_object_set_new(process, "args", words);
    for (size_t i = 0; i < json_array_size(given); i++) {
        char *name = text_copy(json_string_value(json_array_get(given, i)), SIZE_MAX), *equals = strchr(name, '=');
        if (equals != NULL) {
            *equals = '\0';
            runtime_edit_set_variable(process, name, equals + 1);
        }
    }
    return process;
}

/* Where the guard is required, the program of exec is looked at as that of the container was. Returns NULL or why it
 * would run unguarded. */
static char *joined_obstacle(const struct joined *joined, const json_t *process)
{
    struct runtime_image image;
    if (text_is_one_of(runtime_edit_variable(process, "SPARKGUARD_DISABLE"), "1"))
        return sentence("it opts out (SPARKGUARD_DISABLE)");
    if (!runtime_image_open(&image, joined->config.root, joined->bundle))
        return sentence("the root file system of its container cannot be opened");
    char *why = runtime_program_obstacle(&image, process, joined->settings->library);
    if (why == NULL)
        why = runtime_program_guard_obstacle(&image, process, joined->settings->library);
    runtime_image_close(&image);
    return why;
}

/* Reads the process and gives it the container's guard. Returns NULL or why it would run unguarded. */
static char *guard_joined(struct joined *joined, char ***words)
{
    const char *path = joined->arguments->process_file;
    const char *why = path != NULL ? runtime_document_read(&joined->file, path) : NULL;
    if (why == NULL && path != NULL && !is_process(joined->file.root))
        why = "it is no process of OCI";
    if (why != NULL)
        return text_format("%s: %s", path, why);
    json_t *started = path != NULL ? joined->file.root : process_of_words(joined);
    char *reason = joined->is_required ? joined_obstacle(joined, started) : NULL;
    bool has_first_own = runtime_edit_has_own_guard(json_object_get(joined->config.root, "process"));
    bool is_as_wanted = has_first_own || runtime_edit_has_own_guard(started) ||
                        text_is_one_of(runtime_edit_variable(started, "SPARKGUARD_DISABLE"), "1");
    if (reason != NULL || is_as_wanted)
        return reason;
    if (path == NULL && joined->arguments->variables != NULL) {
        guard_words(joined->settings, &joined->config, joined->arguments, words);
    } else if (path != NULL) {
        guard_process(joined->settings, &joined->config, &joined->file);
        why = runtime_document_write(&joined->file);
    }
    return why != NULL ? text_format("%s: %s", path, why) : NULL;
}

char *runtime_container_exec(const struct runtime_settings *settings, const struct runtime_arguments *arguments,
                             char ***words, bool *is_required)
{
    struct joined joined = {.settings = settings, .arguments = arguments, .is_required = settings->is_required};
    *is_required = settings->is_required;
    if (arguments->id == NULL)
        return *is_required ? sentence("it has no id") : NULL;
    char *reason = read_container(&joined);
    *is_required = joined.is_required;          /* before anything that may fail: the caller's handler reads it */
    bool is_known = joined.config.root != NULL; /* it then left a note of why it is not guarded */
    bool is_inherited = arguments->process_file == NULL && arguments->variables == NULL; /* by the next runtime */
    if (reason == NULL) {
        reason = guard_joined(&joined, words);
    } else if (!joined.is_required && (is_known || is_inherited)) {
        reason = NULL;
    }
    return reason;
}
