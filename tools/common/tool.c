/*
 * tool.c - see tool.h.
 */
#include "common/tool.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <locale.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int tool_memory_status = 125;
void (*tool_without_memory)(void);

void tool_end_without_memory(void)
{
    if (tool_without_memory != NULL)
        tool_without_memory();
    fprintf(stderr, "%s: out of memory\n", program_invocation_short_name);
    exit(tool_memory_status);
}

/* The blocks of the arena, oldest first. Each is a block of malloc(3) of its own, so that sanitizers see where it
 * ends. */
static struct {
    void **block;
    size_t count, capacity;
} arena;

void *tool_adopt(void *block)
{
    if (block == NULL)
        return NULL;
    if (arena.count == arena.capacity) {
        arena.capacity = arena.capacity > 0 ? 2 * arena.capacity : 1024;
        arena.block = reallocarray(arena.block, arena.capacity, sizeof *arena.block);
        if (arena.block == NULL)
            tool_end_without_memory();
    }
    return arena.block[arena.count++] = block;
}

void *tool_allocate(size_t count, size_t bytes_each)
{
    void *block = tool_adopt(calloc(count ? count : 1, bytes_each));
    if (block == NULL)
        tool_end_without_memory();
    return block;
}

static void *allocate_for_json(size_t bytes)
{
    return tool_allocate(bytes, 1);
}

static void free_nothing(void *block)
{
    (void)block;
}

/* Here, and not in json.c, which a tool that only reads JSON does not link. */
__attribute__((constructor)) static void begin_arena(void)
{
    json_set_alloc_funcs(allocate_for_json, free_nothing);
}

void *tool_grow(void *array, size_t count, size_t element_bytes)
{
    if ((count & (count - 1)) != 0)
        return array;
    void *longer = tool_allocate(count > 0 ? 2 * count : 1, element_bytes);
    return count > 0 ? memcpy(longer, array, count * element_bytes) : longer;
}

size_t tool_arena_mark(void)
{
    return arena.count;
}

void tool_arena_release(size_t mark)
{
    while (arena.count > mark)
        free(arena.block[--arena.count]);
}

const char *tool_typed_path;

void tool_set_name(char **argv)
{
    tool_typed_path = argv[0] != NULL && strchr(argv[0], '/') != NULL ? argv[0] : NULL;
    program_invocation_name = program_invocation_short_name;
    if (argv[0] != NULL)
        argv[0] = program_invocation_name;
}

void tool_begin(char **argv, int usage_status)
{
    tool_set_name(argv);
    argp_err_exit_status = usage_status;
    signal(SIGPIPE, SIG_DFL); /* even if the parent process ignores the signal */
    setlocale(LC_ALL, "");
    setlocale(LC_NUMERIC, "C");
}

static bool is_parsing;

/* argp ends the program itself after --help and --version. A refused option has printed nothing here. */
static void check_help(void)
{
    bool has_printed = is_parsing && (__fpending(stdout) > 0 || ferror(stdout) != 0);
    if (has_printed && tool_close_output(program_invocation_short_name, "", 0) != 0)
        _exit(tool_memory_status);
}

int tool_parse(const struct argp *parser, int argc, char **argv, unsigned flags, void *input)
{
    is_parsing = atexit(check_help) == 0;
    int result = argp_parse(parser, argc, argv, flags, NULL, input);
    is_parsing = false;
    return result;
}

int tool_close_output(const char *tool, const char *what, int status)
{
    bool has_failed = ferror(stdout) != 0;
    errno = 0;
    if ((fclose(stdout) == 0 && !has_failed) || errno == EPIPE)
        return status;
    fprintf(stderr, "%s: cannot write%s: %s\n", tool, what, strerror(errno != 0 ? errno : EIO));
    return TOOL_UNWRITTEN;
}

int64_t tool_clock_ns(clockid_t clock)
{
    struct timespec now = {0};
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t tool_now_ns(void)
{
    return tool_clock_ns(CLOCK_REALTIME);
}
