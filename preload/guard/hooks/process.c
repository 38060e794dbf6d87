/*
 * process.c - the calls that start a thread, enter a namespace, end the process or replace its program.
 *
 * The fork handlers (lifecycle.c) find out what kind of child a process is, however it was made.
 *
 * A return from main and exit(3) reach the library through on_exit; _exit, _Exit, quick_exit and daemon are hooked
 * here. exec marks the record "replaced", and takes the mark back if it fails. A vfork child shares the parent's memory
 * and marks nothing (sg_segment_is_own compares PIDs).
 */
#include "base/compiler.h"
#include "watch/history.h"
#include "hooks/lifecycle.h"
#include "hooks/real.h"
#include "shared/segment.h"
#include "base/syscall.h"
#include "watch/watchdog.h"
#include "watch/lifetime.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* While the process has one thread, its record can move into shared memory without losing a count (segment.h). */
SG_EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                             void *argument)
{
    if (sg_lifecycle_enter())
        sg_segment_attach();
    return SG_REAL(pthread_create)(thread, attributes, start, argument);
}

/* Returns whether unshare or setns may succeed now. The kernel gives some namespaces only to processes of one thread,
 * and fails with EINVAL or EUSERS otherwise. The watchdog and the history thread are not the program's threads. They
 * are told to end, are gone a moment later, and start again with a request. */
static bool is_worth_another_try(void)
{
    if ((errno != EINVAL && errno != EUSERS) || sg_options.is_disabled || !sg_segment_is_own())
        return false;
    return sg_watchdog_end_helpers();
}

SG_EXPORT int unshare(int flags)
{
    int saved_errno = errno, answer = SG_REAL(unshare)(flags);
    if (answer != 0 && is_worth_another_try()) {
        errno = saved_errno;
        answer = SG_REAL(unshare)(flags);
    }
    return answer;
}

SG_EXPORT int setns(int fd, int kind)
{
    int saved_errno = errno, answer = SG_REAL(setns)(fd, kind);
    if (answer != 0 && is_worth_another_try()) {
        errno = saved_errno;
        answer = SG_REAL(setns)(fd, kind);
    }
    return answer;
}

SG_EXPORT void _exit(int status)
{
    sg_lifecycle_end(status & 0xff);
    ((void (*)(int))sg_real_find(SG_HOOK__exit))(status);
    __builtin_unreachable();
}

SG_EXPORT void _Exit(int status)
{
    sg_lifecycle_end(status & 0xff);
    ((void (*)(int))sg_real_find(SG_HOOK__Exit))(status);
    __builtin_unreachable();
}

SG_EXPORT void quick_exit(int status)
{
    sg_lifecycle_note_quick_exit(status); /* the handlers of quick_exit run before the process ends */
    ((void (*)(int))sg_real_find(SG_HOOK_quick_exit))(status);
    __builtin_unreachable();
}

static void exec_begin(void)
{
    if (sg_options.is_disabled)
        return;
    sg_lifetime_end(SG_STATE_REPLACED, -1);
    sg_history_end(false);
}

static int came_back(int answer)
{
    int saved_errno = errno;
    if (!sg_options.is_disabled) {
        sg_lifetime_resume();
        sg_history_ask();
    }
    errno = saved_errno;
    return answer;
}

SG_EXPORT int execve(const char *path, char *const arguments[], char *const environment[])
{
    exec_begin();
    return came_back(SG_REAL(execve)(path, arguments, environment));
}

SG_EXPORT int execv(const char *path, char *const arguments[])
{
    exec_begin();
    return came_back(SG_REAL(execv)(path, arguments));
}

SG_EXPORT int execvp(const char *file, char *const arguments[])
{
    exec_begin();
    return came_back(SG_REAL(execvp)(file, arguments));
}

SG_EXPORT int execvpe(const char *file, char *const arguments[], char *const environment[])
{
    exec_begin();
    return came_back(SG_REAL(execvpe)(file, arguments, environment));
}

SG_EXPORT int fexecve(int fd, char *const arguments[], char *const environment[])
{
    exec_begin();
    return came_back(SG_REAL(fexecve)(fd, arguments, environment));
}

SG_EXPORT int execveat(int directory, const char *path, char *const arguments[], char *const environment[], int flags)
{
    exec_begin();
    return came_back(SG_REAL(execveat)(directory, path, arguments, environment, flags));
}

/* The libc's daemon() ends the parent by an _exit that reaches no hook, so the record is ended before. The call returns
 * only in a parent that could not fork, and in the child, whose record is a new one. */
SG_EXPORT int daemon(int keep_directory, int keep_output)
{
    if (!sg_options.is_disabled) {
        sg_lifetime_end(SG_STATE_EXITED, 0);
        sg_history_end(false);
    }
    return came_back(SG_REAL(daemon)(keep_directory, keep_output));
}

/* The arguments of execl and its like, up to their NULL. An empty list is against the rules, but the kernel accepts
 * it. */
static size_t count_listed(const char *first, va_list *listed)
{
    size_t count = 0;
    for (const char *argument = first; argument != NULL; argument = va_arg(*listed, const char *))
        count++;
    return count;
}

/* Copies the arguments and their NULL to `vector`. `listed` stands behind the NULL afterwards. */
static void collect(char **vector, const char *first, va_list *listed)
{
    for (const char *argument = first; argument != NULL; argument = va_arg(*listed, const char *))
        *vector++ = (char *)(uintptr_t)argument;
    *vector = NULL;
}

/* An array of the arguments on the stack of the hook, as the libc does it: the child of a vfork must not allocate. */
#define COLLECT(vector, first, listed) \
    va_start(listed, first); \
    char **vector = __builtin_alloca((count_listed(first, &(listed)) + 1) * sizeof *vector); \
    va_end(listed); \
    va_start(listed, first); \
    collect(vector, first, &(listed))

SG_EXPORT int execl(const char *path, const char *argument, ...)
{
    va_list listed;
    COLLECT(vector, argument, listed);
    va_end(listed);
    return execv(path, vector);
}

SG_EXPORT int execlp(const char *file, const char *argument, ...)
{
    va_list listed;
    COLLECT(vector, argument, listed);
    va_end(listed);
    return execvp(file, vector);
}

SG_EXPORT int execle(const char *path, const char *argument, ...)
{
    va_list listed;
    COLLECT(vector, argument, listed);
    char *const *environment = va_arg(listed, char *const *);
    va_end(listed);
    return execve(path, vector, environment);
}
