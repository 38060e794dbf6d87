/*
 * hook_process.c - the calls that begin a thread or a child, enter a namespace, end the process or replace its program.
 *
 * What a forked child is, the handlers of fork tell (lifecycle.c), however it was made. fork itself is ours only for what must
 * not be done in a handler, while other libraries' locks may still be held: giving the child a thread.
 *
 * A return from main and exit(3) reach us through on_exit; _exit, _Exit, quick_exit and daemon only here. exec marks the
 * record "replaced" and takes the mark back if it fails; a vfork child, which shares our memory, marks nothing
 * (sg_segment_is_own compares pids).
 */
#include "compiler.h"
#include "history.h"
#include "lifecycle.h"
#include "real.h"
#include "segment.h"
#include "symbols.h"
#include "syscall.h"
#include "watchdog.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* While there is one thread the record can move into shared memory without losing a count (segment.h). */
SG_EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                             void *argument)
{
    if (sg_lifecycle_enter())
        sg_segment_attach();
    return SG_REAL(pthread_create)(thread, attributes, start, argument);
}

/* `answer` is fork's. Where the parent had no segment, its child is not to try for one before it asks for something. */
static int begin_child(int answer, bool had_segment)
{
    if (answer != 0 || !had_segment)
        return answer;
    int saved_errno = errno;
    if (sg_lifecycle_enter())
        sg_watchdog_begin_child();
    errno = saved_errno;
    return answer;
}

SG_EXPORT pid_t fork(void)
{
    bool had_segment = sg_segment_is_own();
    return begin_child(SG_REAL(fork)(), had_segment);
}

/* What pthread_atfork calls, which is a part of each program and library. */
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *owner);

SG_EXPORT int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *owner)
{
    sg_lifecycle_register_fork();
    void *found = sg_symbols_next("__register_atfork"); /* not kept: every start asks, and has a page less for it */
    __typeof__(&__register_atfork) real;
    memcpy(&real, &found, sizeof real);
    if (real == NULL)
        real = SG_REAL(__register_atfork);
    if (real == NULL) /* the libc lies before us, and this call is our own */
        real = (__typeof__(real))sg_real_dlsym(RTLD_DEFAULT, "__register_atfork");
    return real != NULL ? real(prepare, parent, child, owner) : ENOMEM;
}

/* Some namespaces the kernel gives to processes of one thread only, and says EINVAL to others. The watchdog and the
 * history's helper are none of the program's: told to end, they are gone a moment later, and come back with a request. */
static bool is_worth_another_try(unsigned *tries)
{
    enum { TRIES_MOST = 400 };
    const struct timespec pause = {0, 500000};
    if (errno != EINVAL || sg_options.is_disabled || *tries == TRIES_MOST)
        return false;
    if ((*tries)++ == 0) {
        bool was_watched = sg_watchdog_stop();
        return sg_history_stop() || was_watched;
    }
    (void)sg_syscall(SYS_nanosleep, (long)&pause, 0, 0, 0, 0, 0);
    return true;
}

SG_EXPORT int unshare(int flags)
{
    int answer, saved_errno = errno;
    unsigned tries = 0;
    do
        answer = SG_REAL(unshare)(flags);
    while (answer != 0 && is_worth_another_try(&tries));
    if (answer == 0)
        errno = saved_errno;
    return answer;
}

SG_EXPORT int setns(int fd, int kind)
{
    int answer, saved_errno = errno;
    unsigned tries = 0;
    do
        answer = SG_REAL(setns)(fd, kind);
    while (answer != 0 && is_worth_another_try(&tries));
    if (answer == 0)
        errno = saved_errno;
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
    sg_lifecycle_note_quick_exit(status); /* its handlers come first */
    ((void (*)(int))sg_real_find(SG_HOOK_quick_exit))(status);
    __builtin_unreachable();
}

static void exec_begin(void)
{
    if (sg_options.is_disabled)
        return;
    sg_segment_end(SG_STATE_REPLACED, -1);
    sg_history_end(false);
}

static int came_back(int answer)
{
    int saved_errno = errno;
    if (!sg_options.is_disabled)
        sg_segment_resume();
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

enum { LIST_ROOM = 1024 };

/* The libc's daemon() ends the parent by an _exit that passes no hook. Only a parent that could not fork, and the child,
 * whose record is a new one, come back. */
SG_EXPORT int daemon(int keep_directory, int keep_output)
{
    bool had_segment = sg_segment_is_own();
    if (!sg_options.is_disabled) {
        sg_segment_end(SG_STATE_EXITED, 0);
        sg_history_end(false);
    }
    return begin_child(came_back(SG_REAL(daemon)(keep_directory, keep_output)), had_segment);
}

/* The arguments of execl and its like, which end with a NULL, as an array: false if they are too many. An empty list is
 * against the rules, but the kernel takes it. `listed` then stands behind the NULL. */
static bool collect(char *vector[LIST_ROOM], const char *first, va_list *listed)
{
    size_t count = 0;
    for (const char *argument = first; argument != NULL; argument = va_arg(*listed, const char *)) {
        if (count + 1 == LIST_ROOM) {
            errno = E2BIG;
            return false;
        }
        vector[count++] = (char *)(uintptr_t)argument;
    }
    vector[count] = NULL;
    return true;
}

SG_EXPORT int execl(const char *path, const char *argument, ...)
{
    char *vector[LIST_ROOM];
    va_list listed;
    va_start(listed, argument);
    int answer = collect(vector, argument, &listed) ? execv(path, vector) : -1;
    va_end(listed);
    return answer;
}

SG_EXPORT int execlp(const char *file, const char *argument, ...)
{
    char *vector[LIST_ROOM];
    va_list listed;
    va_start(listed, argument);
    int answer = collect(vector, argument, &listed) ? execvp(file, vector) : -1;
    va_end(listed);
    return answer;
}

SG_EXPORT int execle(const char *path, const char *argument, ...)
{
    char *vector[LIST_ROOM];
    va_list listed;
    va_start(listed, argument);
    int answer = -1;
    if (collect(vector, argument, &listed)) {
        char *const *environment = va_arg(listed, char *const *);
        answer = execve(path, vector, environment);
    }
    va_end(listed);
    return answer;
}
