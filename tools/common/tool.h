/*
 * tool.h - basics of every tool: allocation that ends the tool on failure, the tool's name, the time.
 */
#ifndef SG_TOOLS_COMMON_TOOL_H
#define SG_TOOLS_COMMON_TOOL_H

#include <stddef.h>
#include <stdint.h>

/* Exit status of a tool that is out of memory. The default, 125, serves sparkguard and sparkguard-sweep. */
extern int tool_memory_status;
/* What a tool does instead of that, if it must not end; NULL: nothing. Does not return. */
extern void (*tool_without_memory)(void);
/* Prints "out of memory" on stderr and exits with tool_memory_status. */
void tool_end_without_memory(void) __attribute__((noreturn));
/* Returns zeroed memory, never NULL: the tool exits if out of memory. The caller frees. */
void *tool_allocate(size_t count, size_t bytes_each);

/* Makes getopt(3) print the base name of the tool instead of the path in argv[0], as the tool's own messages do. Call
 * this function first in main(). */
void tool_set_name(char **argv);
/* The path in argv[0], "build/sparkguard-report"; NULL: a name alone, which PATH has. */
extern const char *tool_typed_path;

/* Returns the time of CLOCK_REALTIME. */
int64_t tool_now_ns(void);

#endif
