/* The parent holds 64 MiB. Its child gives half of it back and takes 48 MiB; the grandchild takes 16 more and ends.
 * Each prints its pid when it has done so; all but the grandchild wait for standard input to end. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void *take(size_t bytes)
{
    void *volatile block = malloc(bytes);
    if (block == NULL)
        _exit(9);
    return block;
}

/* By write: dprintf has a buffer on the heap, which a reader of the line may still find. */
static void say(const char *who)
{
    char line[64];
    int length = snprintf(line, sizeof line, "%s %d\n", who, getpid());
    if (write(1, line, (size_t)length) != length)
        _exit(8);
}

int main(void)
{
    char byte;
    void *volatile first = take(32 * MIB), *volatile second = take(32 * MIB);
    (void)second;
    if (fork() == 0) {
        free(first);
        take(48 * MIB);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            take(16 * MIB);
            say("grandchild");
            _exit(0);
        }
        waitpid(grandchild, NULL, 0);
        say("child");
        _exit(read(0, &byte, 1) != 0);
    }
    return read(0, &byte, 1) != 0 || wait(NULL) < 0;
}
