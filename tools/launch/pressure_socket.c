/*
 * pressure_socket.c - see pressure_socket.h.
 */
#define _GNU_SOURCE
#include "launch/pressure_socket.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"

enum { BACKLOG = 128, PAUSE_US = 100000 };

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        return -1;
    if (bind(listener, (const struct sockaddr *)&address, sizeof address) == 0 && listen(listener, BACKLOG) == 0)
        return listener;
    int failure = errno;
    close(listener);
    errno = failure;
    return -1;
}

int pressure_socket_make(char **path)
{
    char folder[] = "/tmp/sparkguard-XXXXXX";
    *path = NULL;
    if (mkdtemp(folder) == NULL)
        return -1;
    *path = text_format("%s/memory.pressure", folder);
    int listener = listen_at(*path);
    if (listener < 0) {
        int failure = errno;
        pressure_socket_remove(*path);
        free(*path);
        *path = NULL;
        errno = failure;
    }
    return listener;
}

void pressure_socket_remove(const char *path)
{
    char *folder = text_copy(path, (size_t)(strrchr(path, '/') - path));
    (void)unlink(path);
    (void)rmdir(folder);
    free(folder);
}

static void accept_all(struct pressure_listeners *listeners)
{
    const int listener = listeners->of[listeners->own_count - 1].fd;
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
        struct pollfd *larger = reallocarray(listeners->of, listeners->count + 1, sizeof *larger);
        if (larger == NULL)
            tool_end_without_memory();
        larger[listeners->count++] = (struct pollfd){fd, POLLIN, 0};
        listeners->of = larger;
    }
    if (errno == EMFILE || errno == ENFILE)
        (void)usleep(PAUSE_US); /* the rest waits until a connection is closed */
}

/* Programs send nothing that matters: what can be read says that the connection has ended, or is thrown away. */
static bool is_closed(int fd)
{
    char thrown[256];
    ssize_t length;
    while ((length = recv(fd, thrown, sizeof thrown, MSG_DONTWAIT)) > 0 || (length < 0 && errno == EINTR))
        continue;
    return length == 0 || errno != EAGAIN;
}

void pressure_socket_serve(struct pressure_listeners *listeners)
{
    size_t kept = listeners->own_count;
    for (size_t i = listeners->own_count; i < listeners->count; i++) {
        const struct pollfd connection = listeners->of[i];
        if (connection.revents != 0 && is_closed(connection.fd))
            close(connection.fd);
        else
            listeners->of[kept++] = connection;
    }
    listeners->count = kept;
    if (listeners->of[listeners->own_count - 1].revents != 0)
        accept_all(listeners);
}

/* A program that has not read the last byte yet needs no other one: its buffer may be full. */
void pressure_socket_tell(const struct pressure_listeners *listeners)
{
    for (size_t i = listeners->own_count; i < listeners->count; i++)
        (void)send(listeners->of[i].fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}
