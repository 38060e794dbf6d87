/*
 * pressure_socket.h - the socket of --pressure-socket: tells programs of memory pressure by the protocol of systemd
 * (https://systemd.io/MEMORY_PRESSURE). A program that speaks it connects to the socket that MEMORY_PRESSURE_WATCH
 * names, and frees what it can when there is something to read. There is no answer.
 */
#ifndef SG_TOOLS_LAUNCH_PRESSURE_SOCKET_H
#define SG_TOOLS_LAUNCH_PRESSURE_SOCKET_H

#include <poll.h>
#include <stddef.h>

/* Makes the socket in a new folder of TMPDIR, or of /tmp, that only this user can enter. Removes sockets of this user
 * that a killed launcher has left there. Returns a descriptor that listens, close-on-exec, and
 * the socket's path in *path; or -1, and errno. The caller frees *path. */
int pressure_socket_make(char **path);

/* Removes the socket and its folder. */
void pressure_socket_remove(const char *path);

/* The connections of a helper. `of` has those of the caller first, the listening socket as the last of them. */
struct pressure_listeners {
    struct pollfd *of;
    size_t own_count, count;
};

/* Takes new connections and forgets closed ones; call it after poll(2) of `of`. */
void pressure_socket_serve(struct pressure_listeners *listeners);

/* Sends one byte to each connection. */
void pressure_socket_tell(const struct pressure_listeners *listeners);

#endif
