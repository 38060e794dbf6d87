/*
 * grow MODE HELD_MIB RATE MORE_MIB - holds HELD_MIB, then takes MORE_MIB, at most RATE of them a second, by no call
 * that could be refused.
 *
 *     copy      a child asks for a buffer of 2 MiB as any worker would, then writes to what it inherited
 *     silent    the same, but the child makes no call at all after fork
 *     sparse    it writes into a mapping that no hook has seen: a system call of its own made it
 *     deaf      the same, and it ignores SIGTERM
 *
 * Says "ready PID" with the pid of the process that will grow, which begins when a byte arrives on standard input, and
 * "done" when it has written all. Then both wait for standard input to end. Of a child the parent says, as soon as it
 * ends, "ended" and the status that waitpid gave.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PAGE 4096

static void wait_for_input(void)
{
    char byte;
    if (read(0, &byte, 1) < 0)
        _exit(1);
}

/* A machine that is busy slows it down: it never makes up for what it is behind. */
static void write_slowly(volatile char *block, size_t bytes, int64_t rate)
{
    const struct timespec pause = {0, (long)(1000000000 / rate)};
    for (size_t at = 0; at < bytes; at += PAGE) {
        block[at] = 2;
        if (at % MIB == 0)
            nanosleep(&pause, NULL); /* pace: the rate */
    }
}

static void grow(volatile char *block, size_t bytes, int64_t rate)
{
    dprintf(1, "ready %d\n", getpid());
    wait_for_input();
    write_slowly(block, bytes, rate);
    dprintf(1, "done\n");
    wait_for_input();
}

int main(int count, char **arguments)
{
    if (count != 5)
        return 2;
    const char *mode = arguments[1];
    size_t more = (size_t)atoll(arguments[4]) * MIB;
    int64_t rate = atoll(arguments[3]);
    size_t bytes = (size_t)atoll(arguments[2]) * MIB;
    void *held = malloc(bytes);
    if (held == NULL)
        return 9;
    memset(held, 1, bytes);
    if (strcmp(mode, "sparse") == 0 || strcmp(mode, "deaf") == 0) {
        if (*mode == 'd')
            signal(SIGTERM, SIG_IGN);
        long sparse = syscall(SYS_mmap, NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, (off_t)0);
        if (sparse == -1)
            return 9;
        grow((char *)sparse, more, rate);
        return 0;
    }
    pid_t child = fork();
    if (child == 0) {
        void *volatile buffer = strcmp(mode, "copy") == 0 ? malloc(2 * MIB) : NULL;
        if (buffer != NULL)
            memset(buffer, 3, 2 * MIB);
        grow(held, more, rate);
        _exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    dprintf(1, "ended %d\n", status);
    wait_for_input();
    return 0;
}
