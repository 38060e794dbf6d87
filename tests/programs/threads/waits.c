/*
 * waits WHAT - a thread waits with a lock of the C library or the loader, or in a handler of fork, another one forks
 * and has to wait for it, and a third asks for all kinds of memory meanwhile: "worked". Then the first goes on:
 * "forked".
 *
 * WHAT: none; stdio (fflush(NULL) into a full pipe has the list of streams); arena (malloc_stats into a full pipe
 * has the heap of the first thread); loader (a library's constructor waits: its path is in WAITS_LIBRARY); prepare,
 * parent (a handler of fork that was registered before the guard's).
 */
#include "program.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *what = "none";
static int full_pipe[2];
static int is_holding, is_over, is_prepared, is_waiting, has_worked, may_work, may_fork, is_warm; /* (atomic) */
static int holder_tid, forker_tid;
static void *volatile kept;

static void set(int *word)
{
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
}

static void wait_for(const int *word)
{
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == 0)
        usleep(1000); /* poll: the word */
}

/* Without the heap or a stream: they may be what is waited for. */
static void wait_until_asleep(int tid)
{
    char path[32] = "/proc/self/task/", digits[12], content[256];
    size_t count = 0;
    for (int rest = tid; rest != 0; rest /= 10)
        digits[count++] = (char)('0' + rest % 10);
    for (size_t length = strlen(path); count > 0; path[length] = '\0')
        path[length++] = digits[--count];
    strcat(path, "/stat");
    for (const char *behind = NULL; behind == NULL || behind[2] != 'S'; usleep(1000)) { /* poll: it sleeps */
        int fd = open(path, O_RDONLY);
        ssize_t length = read(fd, content, sizeof content - 1);
        NEED(fd >= 0 && length > 0);
        close(fd);
        content[length] = '\0';
        behind = strrchr(content, ')');
    }
}

static void say(const char *line)
{
    NEED(write(1, line, strlen(line)) == (ssize_t)strlen(line));
}

/* ---- handlers of fork: before the guard's ---- */

static void wait_in(const char *handler)
{
    if (strcmp(what, handler) == 0) {
        set(&is_waiting);
        wait_for(&is_over);
    }
}

static void prepare(void)
{
    wait_in("prepare");
    set(&is_prepared); /* the guard's own, registered later, has run */
}

static void parent(void)
{
    wait_in("parent");
}

/* Its parent's threads go on meanwhile; of those of its own there are none. WAITS_CHILD=no: an emulator does not wipe
 * the page by which the guard knows a child whose handlers, registered before its own, ask for memory. */
static void child(void)
{
    const char *asks = getenv("WAITS_CHILD");
    if (asks != NULL && strcmp(asks, "no") == 0)
        return;
    free(kept);
    kept = malloc(3 * MIB);
    munmap(mmap(NULL, 3 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 3 * MIB);
}

/* The library that the test preloads has registered three handlers before the guard's, which call these. */
static void begin_handlers(void)
{
    static void (*const handlers[3])(void) = {prepare, parent, child};
    void *list = dlsym(RTLD_DEFAULT, "waits_handlers");
    NEED(list != NULL);
    memcpy(list, handlers, sizeof handlers);
}

/* ---- the threads ---- */

static void fill_pipe(void)
{
    char block[4096] = {0};
    NEED(pipe2(full_pipe, O_NONBLOCK) == 0);
    while (write(full_pipe[1], block, sizeof block) > 0)
        ;
    while (write(full_pipe[1], block, 1) > 0)
        ;
    NEED(fcntl(full_pipe[1], F_SETFL, 0) == 0);
}

static void *drain(void *unused)
{
    char block[4096];
    wait_for(&is_over);
    while (read(full_pipe[0], block, sizeof block) > 0)
        ;
    return unused;
}

/* The constructor of the library that the test has made calls this. */
static void waits_in_constructor(void)
{
    set(&is_holding);
    wait_for(&has_worked);
}

static void *hold(void *unused)
{
    FILE *stream = fdopen(full_pipe[1], "w");
    NEED(stream != NULL && fputs("x", stream) == 1);
    wait_for(&is_warm);
    if (strcmp(what, "loader") == 0) {
        char address[32];
        snprintf(address, sizeof address, "%p", (void *)(uintptr_t)waits_in_constructor);
        NEED(setenv("WAITS_FUNCTION", address, 1) == 0);
        NEED(dlopen(getenv("WAITS_LIBRARY"), RTLD_NOW) != NULL);
        return unused;
    }
    set(&is_holding);
    if (strcmp(what, "stdio") == 0) {
        fflush(NULL);
    } else if (strcmp(what, "arena") == 0) {
        NEED(dup2(full_pipe[1], 2) == 2);
        malloc_stats(); /* has the lock of a heap while it writes */
    } else {
        wait_for(&is_over);
    }
    return unused;
}

static void ask_for_everything(void)
{
    for (size_t size = 16; size <= 8 * MIB; size *= 2) {
        char *block = malloc(size);
        NEED(block != NULL);
        memset(block, 1, size);
        block = realloc(block, 2 * size);
        NEED(block != NULL);
        free(block);
    }
    for (int i = 0; i < 20; i++) {
        char *map = mmap(NULL, 8 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        NEED(map != MAP_FAILED && mprotect(map, 8 * MIB, PROT_READ | PROT_WRITE) == 0);
        map = mremap(map, 8 * MIB, 16 * MIB, MREMAP_MAYMOVE);
        NEED(map != MAP_FAILED && madvise(map, 8 * MIB, MADV_DONTNEED) == 0 && munmap(map, 16 * MIB) == 0);
    }
}

static void *work(void *unused)
{
    ask_for_everything(); /* now it has a heap of its own */
    set(&is_warm);
    wait_for(&may_work);
    ask_for_everything();
    set(&has_worked);
    return unused;
}

static void *fork_one(void *unused)
{
    __atomic_store_n(&forker_tid, (int)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    wait_for(&may_fork);
    pid_t pid = fork();
    int status = 1;
    if (pid == 0) {
        ask_for_everything();
        _exit(0);
    }
    NEED(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    return unused;
}

static void *note_and_hold(void *unused)
{
    __atomic_store_n(&holder_tid, (int)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    return hold(unused);
}

int main(int count, char **arguments)
{
    pthread_t thread[4];
    what = count > 1 ? arguments[1] : what;
    int is_pipe = strcmp(what, "stdio") == 0 || strcmp(what, "arena") == 0;
    begin_handlers();
    kept = malloc(300 * MIB); /* there is a watchdog */
    fill_pipe();
    NEED(pthread_create(&thread[0], NULL, work, NULL) == 0);
    NEED(pthread_create(&thread[1], NULL, note_and_hold, NULL) == 0);
    NEED(pthread_create(&thread[2], NULL, fork_one, NULL) == 0);
    NEED(pthread_create(&thread[3], NULL, drain, NULL) == 0); /* all now: the heap may be what is waited for */
    wait_for(&is_holding);
    if (is_pipe)
        wait_until_asleep(holder_tid);
    set(&may_fork);
    wait_for(strcmp(what, "prepare") == 0 || strcmp(what, "parent") == 0 ? &is_waiting : &is_prepared);
    if (is_pipe)
        wait_until_asleep(forker_tid); /* in the libc, for what the holder has */
    set(&may_work);
    wait_for(&has_worked);
    say("worked\n");
    set(&is_over);
    for (int i = 0; i < 3; i++)
        NEED(pthread_join(thread[i], NULL) == 0);
    say("forked\n");
    _exit(0);
}
