/*
 * image.c - see runtime.h. An image may be hostile: a symbolic link in it could name any file of the host. So each
 * component of a path is opened by itself, without following links, and links are followed here, from the container's
 * root.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"
#include "runtime/runtime.h"

enum { LINKS_MAX = 40, MOUNTS_MAX = 4096 };

static bool has_option(const json_t *mount, const char *wanted)
{
    size_t i;
    json_t *option;
    const json_t *options = json_object_get(mount, "options");
    for (i = 0; (option = json_array_get(options, i)) != NULL; i++)
        if (json_is_string(option) && strcmp(json_string_value(option), wanted) == 0)
            return true;
    return false;
}

/* Writes an absolute path without "//" and without a slash at its end ("" for the root). */
static void write_path(char path[PATH_MAX], const char *text)
{
    size_t length = 0;
    while (*text != '\0' && length + 2 < PATH_MAX) {
        text += strspn(text, "/");
        size_t part = strcspn(text, "/");
        if (part == 0 || length + part + 2 > PATH_MAX)
            break;
        path[length++] = '/';
        memcpy(path + length, text, part);
        length += part;
        text += part;
    }
    path[length] = '\0';
}

static void add_mount(struct runtime_image *image, const json_t *mount, const char *bundle)
{
    const char *destination = json_string_value(json_object_get(mount, "destination"));
    const char *source = json_string_value(json_object_get(mount, "source"));
    const char *type = json_string_value(json_object_get(mount, "type"));
    if (destination == NULL)
        return;
    struct runtime_mount *one = &image->mounts[image->count++];
    write_path(one->destination, destination);
    snprintf(one->source, sizeof one->source, "%s%s%s", source != NULL && source[0] == '/' ? "" : bundle,
             source != NULL && source[0] == '/' ? "" : "/", source != NULL ? source : "");
    one->is_bind =
        has_option(mount, "bind") || has_option(mount, "rbind") || (type != NULL && strcmp(type, "bind") == 0);
    one->is_tmpfs = !one->is_bind && type != NULL && strcmp(type, "tmpfs") == 0;
    one->is_read_only = has_option(mount, "ro") || has_option(mount, "rro");
}

/* Replaces links in the destinations of mounts: with /sbin -> usr/sbin in the image, a mount on /sbin/init is on
 * /usr/sbin/init. */
static void resolve_destinations(struct runtime_image *image)
{
    size_t count = image->count;
    for (image->count = 0; image->count < count; image->count++) {
        struct runtime_mount *mount = &image->mounts[image->count]; /* those before it are mounted already */
        char above[PATH_MAX], real[PATH_MAX], *slash;
        int fd = -1;
        snprintf(above, sizeof above, "%s", mount->destination);
        while (above[0] != '\0' && (fd = runtime_image_walk(image, above, real)) < 0 &&
               (slash = strrchr(above, '/')) != NULL)
            *slash = '\0';
        if (fd < 0)
            continue;
        close(fd);
        char *whole = text_format("%s%s", real, mount->destination + strlen(above));
        snprintf(mount->destination, sizeof mount->destination, "%s", whole);
    }
}

bool runtime_image_open(struct runtime_image *image, const json_t *config, const char *bundle)
{
    size_t i;
    json_t *mount;
    const json_t *mounts = json_object_get(config, "mounts");
    const char *root = json_string_value(json_object_get(json_object_get(config, "root"), "path"));
    char path[PATH_MAX];
    *image = (struct runtime_image){.root = -1};
    if (root == NULL || json_array_size(mounts) > MOUNTS_MAX)
        return false;
    int length =
        root[0] == '/' ? snprintf(path, sizeof path, "%s", root) : snprintf(path, sizeof path, "%s/%s", bundle, root);
    if (length >= (int)sizeof path)
        return false;
    image->root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (image->root < 0)
        return false;
    image->mounts = tool_allocate(json_array_size(mounts) + 1, sizeof image->mounts[0]);
    for (i = 0; (mount = json_array_get(mounts, i)) != NULL; i++)
        add_mount(image, mount, bundle);
    resolve_destinations(image);
    return true;
}

void runtime_image_close(struct runtime_image *image)
{
    if (image->root >= 0)
        close(image->root);
    *image = (struct runtime_image){.root = -1};
}

const struct runtime_mount *runtime_image_mount_of(const struct runtime_image *image, const char *path)
{
    const struct runtime_mount *found = NULL;
    size_t longest = 0;
    for (size_t i = 0; i < image->count; i++) {
        const char *destination = image->mounts[i].destination;
        size_t length = strlen(destination);
        if (strncmp(path, destination, length) == 0 && (path[length] == '/' || path[length] == '\0') &&
            (found == NULL || length >= longest)) {
            found = &image->mounts[i];
            longest = length;
        }
    }
    return found;
}

/* Opens a path whose folders are no links. Its last component may be one, which is then opened itself. */
static int open_real(const struct runtime_image *image, const char *path)
{
    const struct runtime_mount *mount = runtime_image_mount_of(image, path);
    if (mount != NULL && !mount->is_bind) {
        errno = ENOENT; /* empty, or the kernel's */
        return -1;
    }
    int fd = mount != NULL ? open(mount->source, O_PATH | O_CLOEXEC) : fcntl(image->root, F_DUPFD_CLOEXEC, 3);
    const char *rest = mount != NULL ? path + strlen(mount->destination) : path;
    while (fd >= 0 && *(rest += strspn(rest, "/")) != '\0') {
        char name[NAME_MAX + 1];
        size_t length = strcspn(rest, "/");
        int next = -1;
        errno = ENAMETOOLONG;
        if (length < sizeof name) {
            memcpy(name, rest, length);
            name[length] = '\0';
            next = openat(fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        }
        int error = errno;
        close(fd);
        errno = error;
        fd = next;
        rest += length;
    }
    return fd;
}

/* Returns whether a folder is not there yet because the runtime makes it on the way to a mount. */
static bool is_above_mount(const struct runtime_image *image, const char *path)
{
    size_t length = strlen(path);
    for (size_t i = 0; i < image->count; i++)
        if (image->mounts[i].is_bind && strncmp(image->mounts[i].destination, path, length) == 0 &&
            image->mounts[i].destination[length] == '/')
            return true;
    return false;
}

/* Puts a link's text before what is left of a path. */
static bool follow(int fd, char pending[PATH_MAX], char real[PATH_MAX])
{
    char link[PATH_MAX], rest[PATH_MAX];
    ssize_t length = readlinkat(fd, "", link, sizeof link - 1);
    if (length <= 0)
        return false;
    link[length] = '\0';
    snprintf(rest, sizeof rest, "%s", pending);
    if (link[0] == '/')
        real[0] = '\0';
    return (size_t)snprintf(pending, PATH_MAX, "%s/%s", link, rest) < PATH_MAX;
}

/* Cuts the first component off a path. Returns false at its end. */
static bool cut_component(char pending[PATH_MAX], char name[NAME_MAX + 1])
{
    const char *from = pending + strspn(pending, "/");
    size_t length = strcspn(from, "/");
    snprintf(name, NAME_MAX + 1, "%.*s", length <= NAME_MAX ? (int)length : NAME_MAX, from);
    memmove(pending, from + length, strlen(from + length) + 1);
    return length > 0;
}

int runtime_image_walk(const struct runtime_image *image, const char *path, char real[PATH_MAX])
{
    char pending[PATH_MAX], name[NAME_MAX + 1];
    int fd = fcntl(image->root, F_DUPFD_CLOEXEC, 3), links = 0;
    real[0] = '\0';
    bool is_good = fd >= 0 && (size_t)snprintf(pending, sizeof pending, "%s", path) < sizeof pending;
    while (is_good && cut_component(pending, name)) {
        struct stat status;
        size_t length = strlen(real);
        if (strcmp(name, ".") == 0)
            continue;
        if (strcmp(name, "..") == 0)
            *(strrchr(real, '/') != NULL ? strrchr(real, '/') : real) = '\0';
        else if ((size_t)snprintf(real + length, PATH_MAX - length, "/%s", name) >= PATH_MAX - length)
            real[length] = '\0'; /* no path of this length exists: its folder is no file that anybody asks for */
        int error = ELOOP;
        close(fd);
        fd = open_real(image, real);
        if (fd < 0 && errno == ENOENT && is_above_mount(image, real))
            fd = fcntl(image->root, F_DUPFD_CLOEXEC, 3);
        is_good = fd >= 0 && fstat(fd, &status) == 0;
        if (!is_good)
            error = errno;
        if (is_good && S_ISLNK(status.st_mode)) {
            real[length] = '\0';
            is_good = links++ < LINKS_MAX && follow(fd, pending, real);
        }
        errno = error;
    }
    if (is_good)
        return fd;
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return -1;
}

int runtime_image_read(const struct runtime_image *image, const char *path, char real[PATH_MAX], struct stat *status)
{
    char link[64];
    int fd = -1, place = runtime_image_walk(image, path, real);
    if (place < 0)
        return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", place);
    errno = EACCES;
    if (fstat(place, status) == 0 && S_ISREG(status->st_mode))
        fd = open(link, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int error = errno;
    close(place);
    errno = error;
    return fd;
}
