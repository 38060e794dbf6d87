/*
 * edit.c - see runtime.h. What the user or the image has set stays: values are set where there is none, mounts are
 * added where nothing is mounted.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/json.h"
#include "common/text.h"
#include "runtime/runtime.h"
#include "sparkguard_options.h"

static const char library_name[] = "libsparkguard.so";

/* ---- environment ------------------------------------------------------------------------------------------------------ */

/* Returns the place of a variable's last entry, by which runc and crun set it; the array's size if it has none. */
static size_t find_variable(const json_t *variables, const char *name)
{
    size_t length = strlen(name), count = json_array_size(variables);
    for (size_t i = count; i > 0; i--) {
        const char *entry = json_string_value(json_array_get(variables, i - 1));
        if (entry != NULL && strncmp(entry, name, length) == 0 && entry[length] == '=')
            return i - 1;
    }
    return count;
}

const char *runtime_edit_variable(const json_t *process, const char *name)
{
    const json_t *variables = json_object_get(process, "env");
    const char *entry = json_string_value(json_array_get(variables, find_variable(variables, name)));
    return entry != NULL ? entry + strlen(name) + 1 : NULL;
}

void runtime_edit_set_variable(json_t *process, const char *name, const char *value)
{
    json_t *variables = json_object_get(process, "env");
    char *entry = text_format("%s=%s", name, value);
    if (!json_is_array(variables)) {
        variables = json_array();
        json_object_set_new(process, "env", variables);
    }
    size_t at = find_variable(variables, name);
    if (at < json_array_size(variables))
        json_array_set_new(variables, at, json_string(entry));
    else
        json_array_append_new(variables, json_string(entry));
}

char *runtime_edit_own_guard(const json_t *process)
{
    const char *list = runtime_edit_variable(process, "LD_PRELOAD");
    char *all = text_copy(list != NULL ? list : "", SIZE_MAX), *rest = all, *found = NULL;
    for (char *entry; found == NULL && (entry = strsep(&rest, ": ")) != NULL;)
        if (strcmp(basename(entry), library_name) == 0)
            found = text_copy(entry, SIZE_MAX);
    return found != NULL ? found : text_copy("", 1);
}

bool runtime_edit_has_own_guard(const json_t *process)
{
    char *entry = runtime_edit_own_guard(process);
    return entry[0] != '\0' && strcmp(entry, RUNTIME_LIBRARY_INSIDE) != 0;
}

void runtime_edit_preload(json_t *process, bool is_last)
{
    char *entry = runtime_edit_own_guard(process);
    const char *list = runtime_edit_variable(process, "LD_PRELOAD");
    if (entry[0] == '\0') {
        bool has_others = list != NULL && list[strspn(list, ": ")] != '\0';
        char *all = !has_others ? text_copy(RUNTIME_LIBRARY_INSIDE, SIZE_MAX)
                    : is_last   ? text_format("%s:%s", list, RUNTIME_LIBRARY_INSIDE)
                                : text_format("%s:%s", RUNTIME_LIBRARY_INSIDE, list);
        runtime_edit_set_variable(process, "LD_PRELOAD", all);
    }
    if (runtime_edit_variable(process, SG_VARIABLE_COMMIT) == NULL)
        runtime_edit_set_variable(process, SG_VARIABLE_COMMIT, "0");
}

void runtime_edit_add_group(json_t *process, const struct runtime_document *document, uint32_t group)
{
    json_t *user = json_object_get(process, "user"), *one;
    size_t i;
    uint32_t number;
    if (!json_is_object(user)) {
        user = json_object();
        json_object_set_new(process, "user", user);
    }
    json_t *groups = json_object_get(user, "additionalGids");
    if (!json_is_array(groups)) {
        groups = json_array();
        json_object_set_new(user, "additionalGids", groups);
    }
    for (i = 0; (one = json_array_get(groups, i)) != NULL; i++)
        if (runtime_document_number(document, one, &number) && number == group)
            return;
    json_array_append_new(groups, json_integer(group));
}

/* ---- mounts ----------------------------------------------------------------------------------------------------------- */

/* Returns the mount of a configuration at a place; NULL: there is none. */
static const json_t *mount_at(const json_t *config, const char *destination)
{
    size_t i;
    const json_t *mount;
    for (i = 0; (mount = json_array_get(json_object_get(config, "mounts"), i)) != NULL; i++) {
        const char *at = json_string_value(json_object_get(mount, "destination"));
        if (at != NULL && strcmp(at, destination) == 0)
            return mount;
    }
    return NULL;
}

/* How the library and a directory of the host are mounted. */
#define LIBRARY_OPTIONS "bind,ro,nosuid,nodev"
#define DIRECTORY_OPTIONS "bind,rw,nosuid,nodev,noexec"

/* What the runtime mounts. A tmpfs has more options behind these. */
static const struct {
    const char *type, *destination, *options;
} added[] = {
    {"bind", RUNTIME_LIBRARY_INSIDE, LIBRARY_OPTIONS},
    {"bind", RUNTIME_SHARED_INSIDE, DIRECTORY_OPTIONS},
    {"bind", RUNTIME_OWN_INSIDE, DIRECTORY_OPTIONS},
    {"tmpfs", RUNTIME_OWN_INSIDE, "rw,nosuid,nodev,noexec," RUNTIME_OWN_SIZE},
};

enum { ADDED = sizeof added / sizeof added[0] };

/* Returns an array of the words of a list with commas. */
static json_t *options_of(const char *options)
{
    json_t *list = json_array();
    char *all = text_copy(options, SIZE_MAX), *rest = all;
    for (char *option; (option = strsep(&rest, ",")) != NULL;)
        json_array_append_new(list, json_string(option));
    return list;
}

static void add_mount(json_t *config, const char *type, const char *source, const char *destination,
                      const char *options)
{
    json_t *mounts = json_object_get(config, "mounts");
    if (!json_is_array(mounts)) {
        mounts = json_array();
        json_object_set_new(config, "mounts", mounts);
    }
    if (mount_at(config, destination) == NULL)
        json_array_append_new(mounts, json_pack("{ssssssso}", "destination", destination, "type", type, "source",
                                                source, "options", options_of(options)));
}

void runtime_edit_add_mounts(json_t *config, const char *library, const char *inside, const char *source,
                             const char *options)
{
    add_mount(config, "bind", library, RUNTIME_LIBRARY_INSIDE, LIBRARY_OPTIONS);
    if (source != NULL) {
        add_mount(config, "bind", source, inside, DIRECTORY_OPTIONS);
    } else {
        char *all = text_format("rw,nosuid,nodev,noexec," RUNTIME_OWN_SIZE ",%s", options);
        add_mount(config, "tmpfs", "tmpfs", inside, all);
    }
}

/* Returns whether an array begins with the words of a list, and has no more of them unless the list is that of a
 * tmpfs. */
static bool has_options(const json_t *options, const char *list, bool is_open)
{
    json_t *wanted = options_of(list);
    size_t count = json_array_size(wanted), i = 0;
    while (i < count && json_equal(json_array_get(options, i), json_array_get(wanted, i)))
        i++;
    return i == count && (is_open || json_array_size(options) == count);
}

/* Returns whether a mount is as runtime_edit_add_mounts() makes it. A mount of the user's at the same place stays. */
static bool is_added(const json_t *mount)
{
    const char *destination = json_string_value(json_object_get(mount, "destination"));
    const json_t *options = json_object_get(mount, "options");
    bool is_same = false;
    for (size_t i = 0; destination != NULL && !is_same && i < ADDED; i++) {
        if (strcmp(destination, added[i].destination) != 0)
            continue;
        is_same = has_options(options, added[i].options, strcmp(added[i].type, "tmpfs") == 0);
    }
    return is_same;
}

/* Takes a variable's last entry out. */
static void unset_variable(json_t *process, const char *name)
{
    json_t *variables = json_object_get(process, "env");
    json_array_remove(variables, find_variable(variables, name));
}

/* Takes the runtime's library out of LD_PRELOAD. Other entries keep their order and what stands between them. */
static void unpreload(json_t *process)
{
    const size_t length = sizeof RUNTIME_LIBRARY_INSIDE - 1;
    const char *value = runtime_edit_variable(process, "LD_PRELOAD");
    if (value == NULL || strstr(value, RUNTIME_LIBRARY_INSIDE) == NULL)
        return;
    char *list = text_copy(value, SIZE_MAX), *at = list;
    while (*at != '\0') {
        size_t entry = strcspn(at, ": ");
        if (entry == length && strncmp(at, RUNTIME_LIBRARY_INSIDE, length) == 0) {
            if (at[entry] != '\0')
                entry++; /* with the separator behind it */
            else if (at > list)
                at--, entry++; /* the last one, with the separator before it */
            memmove(at, at + entry, strlen(at + entry) + 1);
        } else {
            at += entry + (at[entry] != '\0');
        }
    }
    if (list[0] != '\0')
        runtime_edit_set_variable(process, "LD_PRELOAD", list);
    else
        unset_variable(process, "LD_PRELOAD");
}

void runtime_edit_take_mounts_back(json_t *config)
{
    json_t *mounts = json_object_get(config, "mounts");
    for (size_t i = json_array_size(mounts); i > 0; i--)
        if (is_added(json_array_get(mounts, i - 1)))
            json_array_remove(mounts, i - 1);
}

void runtime_edit_take_back(json_t *config)
{
    json_t *process = json_object_get(config, "process");
    const char *directory = runtime_edit_variable(process, "SPARKGUARD_DIR");
    if (directory != NULL &&
        (strcmp(directory, RUNTIME_SHARED_INSIDE) == 0 || strcmp(directory, RUNTIME_OWN_INSIDE) == 0))
        unset_variable(process, "SPARKGUARD_DIR");
    unpreload(process);
    runtime_edit_take_mounts_back(config);
}

/* Returns whether the next runtime can make a file or folder below the folder `fd`. */
static bool is_writable(const struct runtime_document *config, int fd)
{
    struct stat status;
    struct statvfs system;
    if (fstat(fd, &status) != 0 || !S_ISDIR(status.st_mode) || fstatvfs(fd, &system) != 0 ||
        (system.f_flag & ST_RDONLY) != 0)
        return false;
    char link[64];
    uint32_t ignored;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return runtime_document_map_id(config, "uidMappings", status.st_uid, false, &ignored) &&
           runtime_document_map_id(config, "gidMappings", status.st_gid, false, &ignored) &&
           eaccess(link, W_OK | X_OK) == 0;
}

/* Returns whether something can be mounted at a path: it is there and of the right kind, or can be made. */
static bool has_place(const struct runtime_image *image, const struct runtime_document *config, const char *path,
                      bool is_folder)
{
    char real[PATH_MAX], at[PATH_MAX];
    struct stat status;
    bool is_good = false, is_whole = true;
    snprintf(at, sizeof at, "%s", path);
    for (;;) {
        const struct runtime_mount *mount = runtime_image_mount_of(image, at);
        if (mount != NULL && mount->is_tmpfs)
            return !mount->is_read_only;
        int fd = runtime_image_walk(image, at[0] != '\0' ? at : "/", real);
        if (fd >= 0) {
            if (is_whole)
                is_good = fstat(fd, &status) == 0 && (is_folder ? S_ISDIR(status.st_mode) : S_ISREG(status.st_mode));
            else /* in a mount of the user's nothing is made: it may be a folder of the host */
                is_good = runtime_image_mount_of(image, real) == NULL && is_writable(config, fd);
            close(fd);
            return is_good;
        }
        if (errno != ENOENT || at[0] == '\0')
            return false;
        is_whole = false;
        *strrchr(at, '/') = '\0';
    }
}

/* Returns whether a mount is of a file of the host, by whatever path and options: CDI makes the library's so. */
static bool is_mount_of(const json_t *mount, const char *file)
{
    const char *source = json_string_value(json_object_get(mount, "source"));
    struct stat one, other;
    return source != NULL && stat(source, &one) == 0 && stat(file, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

char *runtime_edit_mount_obstacle(const struct runtime_image *image, const struct runtime_document *config,
                                  const char *file, const char *inside)
{
    const json_t *library = mount_at(config->root, RUNTIME_LIBRARY_INSIDE);
    if (library != NULL && !is_added(library) && !is_mount_of(library, file)) /* it would be preloaded */
        return text_copy("a mount of the user's is at " RUNTIME_LIBRARY_INSIDE, 128);
    bool has_both = (library != NULL || has_place(image, config, RUNTIME_LIBRARY_INSIDE, false)) &&
                    (mount_at(config->root, inside) != NULL || has_place(image, config, inside, true));
    return has_both ? NULL
                    : text_copy("its root file system or its mounts leave no place for " RUNTIME_FOLDER_INSIDE, 128);
}

/* ---- annotations ------------------------------------------------------------------------------------------------------ */

const char *runtime_edit_annotation(const json_t *config, const char *name)
{
    return json_string_value(json_object_get(json_object_get(config, "annotations"), name));
}

void runtime_edit_annotate(json_t *config, const char *name, const char *value)
{
    json_t *annotations = json_object_get(config, "annotations");
    if (!json_is_object(annotations)) {
        annotations = json_object();
        json_object_set_new(config, "annotations", annotations);
    }
    json_object_set_new(annotations, name, json_of_text(value)); /* a path in it may have any bytes */
}
