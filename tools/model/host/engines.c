/*
 * engines.c - looks a container's name up in the files of Docker and Podman. Only root and, without root, the user of
 * Podman can read them; anybody else gets no name.
 *
 * Docker:  /var/lib/docker/containers/ID/config.v2.json, "Name": "/serve"
 * Podman:  overlay-containers/containers.json and volatile-containers.json below /var/lib/containers/storage or
 *          ~/.local/share/containers/storage, [{"id": ID, "names": ["serve"]}]
 */
#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/procfs.h"
#include "common/text.h"
#include "model/host/host.h"

/* A container's configuration has some 10 KiB; Podman's list has about 1 KiB for each container. */
enum { FILE_MAX = 8 << 20, NAME_MAX_BYTES = 256 };

/* Read through a stream: json_loadfd makes a system call for each byte (jansson 2.14). */
static json_t *parse(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    bool is_fit = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size <= FILE_MAX &&
                  (status.st_uid == 0 || status.st_uid == geteuid());
    FILE *stream = is_fit ? fdopen(fd, "r") : NULL;
    if (stream == NULL) {
        close(fd);
        return NULL;
    }
    json_t *root = json_loadf(stream, 0, NULL);
    fclose(stream);
    return root;
}

static char *name_in(const json_t *text)
{
    const char *name = json_string_value(text);
    if (name == NULL)
        return NULL;
    name += name[0] == '/';
    return name[0] != '\0' ? text_copy(name, NAME_MAX_BYTES) : NULL;
}

static char *docker_name(const char *id)
{
    glob_t found = {0};
    char *name = NULL;
    char *pattern = text_format("%s/var/lib/docker/containers/%s*/config.v2.json", procfs_live_root, id);
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0 && found.gl_pathc == 1) /* several: the ID is too short */
        name = name_in(json_object_get(parse(found.gl_pathv[0]), "Name"));
    globfree(&found);
    return name;
}

static char *podman_name_in(const char *storage, const char *file, const char *id)
{
    size_t index;
    json_t *container;
    char *path = text_format("%s/overlay-containers/%s", storage, file), *name = NULL;
    json_t *root = parse(path);
    json_array_foreach(root, index, container)
    {
        const char *said = json_string_value(json_object_get(container, "id"));
        if (name == NULL && said != NULL && strncmp(said, id, strlen(id)) == 0)
            name = name_in(json_array_get(json_object_get(container, "names"), 0));
    }
    return name;
}

static char *podman_name(const char *storage, const char *id)
{
    char *name = podman_name_in(storage, "containers.json", id);
    return name != NULL ? name : podman_name_in(storage, "volatile-containers.json", id);
}

char *host_engine_name(const char *id)
{
    size_t digits = strspn(id, "0123456789abcdef");
    if (id[digits] != '\0' || (digits != HOST_ID_DIGITS && digits != HOST_SHORT_DIGITS))
        return NULL;
    char *name = docker_name(id);
    char *storage = text_format("%s/var/lib/containers/storage", procfs_live_root);
    const char *home = getenv("HOME");
    if (name == NULL)
        name = podman_name(storage, id);
    if (name == NULL && home != NULL && home[0] == '/' && geteuid() != 0) {
        storage = text_format("%s/.local/share/containers/storage", home);
        name = podman_name(storage, id);
    }
    return name;
}
