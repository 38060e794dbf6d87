/*
 * tool.h - what every tool needs: memory or an end, its name, the time.
 */
#ifndef SG_TOOLS_COMMON_TOOL_H
#define SG_TOOLS_COMMON_TOOL_H

#include <stddef.h>
#include <stdint.h>

/* The exit status of a tool that finds no memory; the launcher's if nobody sets another. */
extern int tool_memory_status;
/* Prints one line on stderr and exits with that status. */
void tool_end_without_memory(void) __attribute__((noreturn));
/* Zeroed memory, never NULL: without memory the tool ends. The caller frees. */
void *tool_allocate(size_t count, size_t bytes_each);

/* Has getopt(3) name the tool as the tool's own lines do, not by the path it was called by. First in main(). */
void tool_set_name(char **argv);
/* The path by which the tool was called, if that was relative ("build/sparkguard-report"): what to type again. Else
 * NULL. */
extern const char *tool_typed_name;

/* CLOCK_REALTIME. */
int64_t tool_now_ns(void);

#endif
