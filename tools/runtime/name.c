/*
 * name.c - see runtime.h. A runtime is told an id. The name is in an annotation, or in a file of the engine beside the
 * files that it mounts. These files are read as hints: whatever is wrong with them, the id serves.
 */
#include <string.h>
#include <sys/stat.h>

#include "common/text.h"
#include "runtime/runtime.h"
#include "sparkguard_options.h"

enum { FILE_MAX = 16 << 20, NAME_CAPACITY = 64, SHORT_ID = 12, LONG_ID = 64 };

static json_t *load(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size > (off_t)FILE_MAX)
        return NULL;
    return json_load_file(path, 0, NULL);
}

static char *copy(const char *text)
{
    return text != NULL && text[0] != '\0' ? text_copy(text, SIZE_MAX) : NULL;
}

/* Of a pod's container: "POD.CONTAINER". */
static char *of_annotations(const json_t *config)
{
    static const char *const pairs[][2] = {
        {"io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.container-name"},
        {"io.kubernetes.pod.name", "io.kubernetes.container.name"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const char *pod = runtime_edit_annotation(config, pairs[i][0]);
        const char *container = runtime_edit_annotation(config, pairs[i][1]);
        if (container != NULL && container[0] != '\0')
            return pod != NULL ? text_format("%s.%s", pod, container) : copy(container);
    }
    return copy(runtime_edit_annotation(config, "nerdctl/name"));
}

/* Docker: the folder of the file that it mounts on /etc/hostname has config.v2.json. */
static char *of_docker(const json_t *config)
{
    size_t i;
    json_t *mount;
    for (i = 0; (mount = json_array_get(json_object_get(config, "mounts"), i)) != NULL; i++) {
        const char *destination = json_string_value(json_object_get(mount, "destination"));
        const char *source = json_string_value(json_object_get(mount, "source"));
        if (destination == NULL || source == NULL || strcmp(destination, "/etc/hostname") != 0 || source[0] != '/')
            continue;
        json_t *known = load(text_format("%.*s/config.v2.json", (int)(strrchr(source, '/') - source), source));
        const char *name = json_string_value(json_object_get(known, "Name"));
        return copy(name != NULL ? name + strspn(name, "/") : NULL);
    }
    return NULL;
}

/* Podman: the bundle is STORAGE/ID/userdata, and STORAGE/containers.json lists ids and names. */
static char *of_podman(const char *bundle, const char *id)
{
    static const char *const files[] = {"containers.json", "volatile-containers.json"};
    char *found = NULL;
    for (size_t f = 0; found == NULL && f < sizeof files / sizeof files[0]; f++) {
        size_t i;
        json_t *one;
        json_t *all = load(text_format("%s/../../%s", bundle, files[f]));
        for (i = 0; (one = json_array_get(all, i)) != NULL; i++) {
            const char *known = json_string_value(json_object_get(one, "id"));
            if (known != NULL && strcmp(known, id) == 0)
                found = copy(json_string_value(json_array_get(json_object_get(one, "names"), 0)));
        }
    }
    return found;
}

/* Makes a name of a text that a job can have; NULL if there is none in it. Takes the text over. */
static char *as_name(char *text)
{
    if (text != NULL && strlen(text) >= NAME_CAPACITY)
        text[NAME_CAPACITY - 1] = '\0';
    for (char *p = text; p != NULL && *p != '\0'; p++)
        if (*p == '/')
            *p = '.';
    if (text != NULL && sg_is_name(text))
        return text;
    return NULL;
}

char *runtime_name_find(const json_t *config, const char *bundle, const char *id)
{
    char *name = as_name(of_annotations(config));
    if (name == NULL)
        name = as_name(of_docker(config));
    if (name == NULL)
        name = as_name(of_podman(bundle, id));
    if (name == NULL) /* engines show the first twelve digits of an id of 64 */
        name = as_name(text_copy(id, strlen(id) == LONG_ID ? SHORT_ID : SIZE_MAX));
    return name != NULL ? name : text_copy("container", SIZE_MAX);
}
