/*
 * cgroup.c - finds the container in the name of a cgroup.
 *
 * Docker, Podman, containerd, CRI-O and their drivers put the ID of 64 digits into the last component that is theirs:
 * docker-ID.scope, /docker/ID, libpod-ID.scope/container, cri-containerd-ID.scope, crio-ID.scope, kubepods/.../ID. The
 * monitor of a Podman or CRI-O container runs beside it, in a cgroup whose name says conmon. systemd-nspawn has
 * machine-NAME.scope or systemd-nspawn@NAME.service, LXC lxc.payload.NAME or lxc/NAME.
 */
#include <stdio.h>
#include <string.h>

#include "model/host/host.h"

static bool is_hex(char digit)
{
    return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
}

/* Finds a run of exactly 64 digits in a component of `length` bytes. */
static bool find_id(const char *component, size_t length, char id[HOST_ID_CAPACITY])
{
    if (memmem(component, length, "conmon", strlen("conmon")) != NULL)
        return false;
    for (size_t i = 0; i < length;) {
        size_t digits = 0;
        while (i + digits < length && is_hex(component[i + digits]))
            digits++;
        if (digits == HOST_ID_DIGITS) {
            memcpy(id, component + i, digits);
            id[digits] = '\0';
            return true;
        }
        i += digits + (digits == 0);
    }
    return false;
}

/* Copies a name in which systemd has written bytes as \x2d. */
static bool unescape_name(const char *name, size_t length, char id[HOST_ID_CAPACITY])
{
    size_t out = 0;
    for (size_t i = 0; i < length && out + 1 < HOST_ID_CAPACITY; i++) {
        unsigned code;
        if (i + 4 <= length && sscanf(name + i, "\\x%2x", &code) == 1 && code != 0) {
            id[out++] = (char)code;
            i += 3;
        } else {
            id[out++] = name[i];
        }
    }
    id[out] = '\0';
    return out > 0;
}

/* Finds the name of a machine of systemd-nspawn or of a container of LXC. `is_below_lxc`: the component above is "lxc".
 */
static bool find_machine_name(const char *component, size_t length, bool is_below_lxc, char id[HOST_ID_CAPACITY])
{
    static const struct {
        const char *prefix, *suffix;
    } shapes[] = {{"machine-", ".scope"}, {"systemd-nspawn@", ".service"}, {"lxc.payload.", ""}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        size_t prefix = strlen(shapes[i].prefix), suffix = strlen(shapes[i].suffix);
        if (length > prefix + suffix && memcmp(component, shapes[i].prefix, prefix) == 0 &&
            memcmp(component + length - suffix, shapes[i].suffix, suffix) == 0)
            return unescape_name(component + prefix, length - prefix - suffix, id);
    }
    return is_below_lxc && unescape_name(component, length, id);
}

/* Looks at the components of one path, the innermost container is the last. */
static bool find_in_path(const char *path, size_t length, char id[HOST_ID_CAPACITY])
{
    bool is_found = false, is_below_lxc = false;
    const char *end = path + length;
    while (path < end) {
        const char *slash = memchr(path, '/', (size_t)(end - path));
        size_t bytes = (size_t)((slash != NULL ? slash : end) - path);
        char candidate[HOST_ID_CAPACITY];
        bool is_one = find_id(path, bytes, candidate) || find_machine_name(path, bytes, is_below_lxc, candidate);
        if (is_one) {
            memcpy(id, candidate, sizeof candidate);
            is_found = true;
        }
        is_below_lxc =
            (bytes == 3 && memcmp(path, "lxc", 3) == 0) || (bytes == 11 && memcmp(path, "lxc.payload", 11) == 0);
        path += bytes + 1;
    }
    return is_found;
}

/* Calls `visit` with each path of a text of /proc/PID/cgroup until it returns true. */
static bool each_path(const char *text, bool (*visit)(const char *path, size_t length, const void *in, void *out),
                      const void *in, void *out)
{
    for (const char *line = text; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        const char *colon = memchr(line, ':', length);
        const char *path = colon != NULL ? memchr(colon + 1, ':', length - (size_t)(colon + 1 - line)) : NULL;
        if (path != NULL && visit(path + 1, length - (size_t)(path + 1 - line), in, out))
            return true;
        line += length + (line[length] == '\n');
    }
    return false;
}

static bool look_for_container(const char *path, size_t length, const void *in, void *out)
{
    (void)in;
    return find_in_path(path, length, out);
}

bool host_container_of_cgroup(const char *text, char id[HOST_ID_CAPACITY])
{
    return each_path(text, look_for_container, NULL, id);
}

static bool look_for_scope(const char *path, size_t length, const void *in, void *out)
{
    const char *scope = in;
    size_t bytes = strlen(scope);
    (void)out;
    for (const char *at = path; (at = memmem(at, length - (size_t)(at - path), scope, bytes)) != NULL; at++) {
        const char *end = at + bytes;
        if (at > path && at[-1] == '/' && (end == path + length || *end == '/'))
            return true;
    }
    return false;
}

static bool look_for_path(const char *path, size_t length, const void *in, void *out)
{
    const char *cgroup = in;
    size_t bytes = strlen(cgroup);
    (void)out;
    return length >= bytes && memcmp(path, cgroup, bytes) == 0 && (length == bytes || path[bytes] == '/');
}

bool host_is_in_cgroup(const char *text, const char *cgroup)
{
    char scope[2 * HOST_ID_CAPACITY + 8], prefix[HOST_ID_CAPACITY], name[HOST_ID_CAPACITY];
    if (sscanf(cgroup, "%*[^:/]:%127[^:/]:%127[^:/]", prefix, name) == 2) {
        snprintf(scope, sizeof scope, "%s-%s.scope", prefix, name);
        return each_path(text, look_for_scope, scope, NULL);
    }
    if (cgroup[0] == '/' && cgroup[1] != '\0')
        return each_path(text, look_for_path, cgroup, NULL);
    return false;
}
