/*
 * inside.h - the launcher as a process under the library: it executes itself with the library loaded, and calls what
 * the library exports for it (sparkguard_abi.h).
 */
#ifndef SG_TOOLS_LAUNCH_INSIDE_H
#define SG_TOOLS_LAUNCH_INSIDE_H

#include <stddef.h>
#include <stdint.h>

/* Returns the path of this program, or its name where the path is unknown. */
char *launch_own_path(void);

/* Finds a function that the library exports. *function, a pointer to a function of `size` bytes, becomes NULL in a
 * process without the library: the launcher does not link it. */
void launch_find_export(const char *name, void *function, size_t size);

/* Becomes a shell that runs a command, unguarded: it must not be refused memory now. */
void launch_become_shell(const char *command) __attribute__((noreturn));

#endif
