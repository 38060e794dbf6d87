/*
 * tool.h - basics of every tool: memory, the tool's name, the time.
 *
 * Memory of the tools is in one arena, and nothing frees a part of it: a tool ends soon. What repeats without end, as a
 * frame of --watch does, releases at each turn what that turn has allocated. What outlives a turn comes from malloc(3).
 * For the main thread alone.
 */
#ifndef SG_TOOLS_COMMON_TOOL_H
#define SG_TOOLS_COMMON_TOOL_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Exit status of a tool that is out of memory. The default, 125, serves sparkguard and sparkguard-sweep. */
extern int tool_memory_status;
/* What a tool does instead of that, if it must not end; NULL: nothing. Does not return. */
extern void (*tool_without_memory)(void);
/* Prints "out of memory" on stderr and exits with tool_memory_status. */
void tool_end_without_memory(void) __attribute__((noreturn));
/* Returns zeroed memory of the arena, never NULL: the tool exits if out of memory. */
void *tool_allocate(size_t count, size_t bytes_each);
/* Returns an array with space for one more than its `count` elements: the array itself, or a copy of it with twice the
 * space. Every element must have been added so. Without elements the array is NULL. */
void *tool_grow(void *array, size_t count, size_t element_bytes);
/* Adds to the arena a block of malloc(3), which a function of the C library returned. Returns the block; NULL stays
 * NULL. */
void *tool_adopt(void *block);
/* Returns where the arena ends at present. */
size_t tool_arena_mark(void);
/* Frees what was allocated since that mark. */
void tool_arena_release(size_t mark);

/* Begins a tool that prints: its name, the exit status of bad usage, the locale, and a quiet end by a closed pipe. */
void tool_begin(char **argv, int usage_status);
/* argp_parse(3). Where argp ends the program after --help or --version, and that could not be written, the status is
 * tool_memory_status. */
struct argp;
int tool_parse(const struct argp *parser, int argc, char **argv, unsigned flags, void *input);
/* Closes stdout. Returns `status`, or TOOL_UNWRITTEN after "TOOL: cannot write WHAT: ..." on stderr. */
enum { TOOL_UNWRITTEN = 3 };
int tool_close_output(const char *tool, const char *what, int status);

/* Makes getopt(3) print the base name of the tool instead of the path in argv[0], as the tool's own messages do. Call
 * this function first in main(). */
void tool_set_name(char **argv);
/* The path in argv[0], "build/sparkguard-report"; NULL: a name alone, which PATH has. */
extern const char *tool_typed_path;

/* Returns the time of a clock; for any thread. tool_now_ns: of CLOCK_REALTIME. */
int64_t tool_clock_ns(clockid_t clock);
int64_t tool_now_ns(void);

#endif
