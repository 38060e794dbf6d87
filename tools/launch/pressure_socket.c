/*
 * pressure_socket.c - see pressure_socket.h.
 */
#define _GNU_SOURCE
#include "launch/pressure_socket.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"

enum { BACKLOG = 128, PAUSE_US = 100000, READS_MAX = 16, UNNAMED_SECONDS = 60 };

#define FOLDER "sparkguard-XXXXXX"
#define NAME "memory.pressure"

/* Fills the address. Returns false if the path is too long for one. */
static bool set_address(struct sockaddr_un *address, const char *path)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    return snprintf(address->sun_path, sizeof address->sun_path, "%s", path) < (int)sizeof address->sun_path;
}

/* Returns TMPDIR if a folder can be made there and a socket's path fits, else /tmp. */
static const char *parent_folder(void)
{
    struct sockaddr_un address;
    const char *folder = getenv("TMPDIR");
    bool fits =
        folder != NULL && folder[0] == '/' && strlen(folder) + sizeof "/" FOLDER "/" NAME <= sizeof address.sun_path;
    return fits && access(folder, W_OK | X_OK) == 0 ? folder : "/tmp";
}

/* Whether nobody will ever accept a connection at the socket: its helper was killed. */
static bool is_abandoned(const char *path)
{
    struct sockaddr_un address;
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool is_refused = set_address(&address, path) &&
                      connect(probe, (const struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED;
    close(probe);
    return is_refused;
}

/* Removes a folder of this user whose launcher and helper were killed together, with its socket or without one yet. */
static void remove_if_abandoned(const char *folder)
{
    struct stat status;
    if (lstat(folder, &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid())
        return;
    char *path = text_format("%s/" NAME, folder), *unnamed = text_copy(path, strlen(path) - 1);
    bool has_socket = lstat(path, &(struct stat){0}) == 0;
    bool is_old = time(NULL) - status.st_mtime > UNNAMED_SECONDS;
    if (has_socket ? is_abandoned(path) : is_old) {
        (void)unlink(unnamed);
        pressure_socket_remove(path);
    }
}

static void remove_abandoned(const char *parent)
{
    DIR *directory = opendir(parent);
    for (const struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;)
        if (strlen(entry->d_name) == strlen(FOLDER) && strncmp(entry->d_name, FOLDER, strcspn(FOLDER, "X")) == 0) {
            char *folder = text_format("%s/%s", parent, entry->d_name);
            remove_if_abandoned(folder);
        }
    if (directory != NULL)
        closedir(directory);
}

/* The socket gets its name when it listens, so that it never looks abandoned. */
static int listen_at(const char *path)
{
    struct sockaddr_un address;
    char *unnamed = text_copy(path, strlen(path) - 1);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool is_made = listener >= 0 && set_address(&address, unnamed) &&
                   bind(listener, (const struct sockaddr *)&address, sizeof address) == 0 &&
                   listen(listener, BACKLOG) == 0 && rename(unnamed, path) == 0;
    int failure = errno;
    if (!is_made) {
        (void)unlink(unnamed);
        if (listener >= 0)
            close(listener);
        errno = failure;
    }
    return is_made ? listener : -1;
}

int pressure_socket_make(char **path)
{
    const char *parent = parent_folder();
    remove_abandoned(parent);
    char *folder = text_format("%s/" FOLDER, parent);
    *path = NULL;
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    *path = text_format("%s/" NAME, folder);
    int listener = listen_at(*path);
    if (listener < 0) {
        int failure = errno;
        pressure_socket_remove(*path);
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

/* Programs send nothing that matters: what can be read says that the connection has ended, or is thrown away. A program
 * that never stops sending is read again at the next turn. */
static bool is_closed(int fd)
{
    char thrown[4096];
    ssize_t length = 1;
    for (int i = 0; i < READS_MAX && length > 0; i++)
        while ((length = recv(fd, thrown, sizeof thrown, MSG_DONTWAIT)) < 0 && errno == EINTR)
            continue;
    return length == 0 || (length < 0 && errno != EAGAIN);
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
