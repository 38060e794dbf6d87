/* Holds 32 MiB and becomes `echo one two` by the member of the exec family that argv[1] names; argv[2] is echo's
 * path. "many" has 4096 empty arguments behind them. "twice" becomes itself with "again", which holds 48 MiB and
 * returns 5; "unguarded" becomes echo without LD_PRELOAD; "fails" finds nothing to become, says so, waits for its
 * standard input to close and returns 6. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

#define FOUR(list) list, list, list, list
#define MANY FOUR(FOUR(FOUR(FOUR(FOUR(FOUR(""))))))

int main(int count, char **arguments)
{
    const char *how = arguments[1];
    char *echo = count > 2 ? arguments[2] : "/bin/echo", *vector[] = {"echo", "one", "two", NULL}, *none[] = {NULL};
    char *again[] = {arguments[0], "again", NULL}, byte;
    void *volatile block = malloc((size_t)(strcmp(how, "again") == 0 ? 48 : 32) << 20);
    if (block == NULL || strcmp(how, "again") == 0)
        return 5;
    if (strcmp(how, "execl") == 0)
        execl(echo, "echo", "one", "two", NULL);
    if (strcmp(how, "execlp") == 0)
        execlp("echo", "echo", "one", "two", NULL);
    if (strcmp(how, "execle") == 0)
        execle(echo, "echo", "one", "two", NULL, environ);
    if (strcmp(how, "execv") == 0)
        execv(echo, vector);
    if (strcmp(how, "execvp") == 0)
        execvp("echo", vector);
    if (strcmp(how, "execvpe") == 0)
        execvpe("echo", vector, environ);
    if (strcmp(how, "execve") == 0)
        execve(echo, vector, environ);
    if (strcmp(how, "fexecve") == 0)
        fexecve(open(echo, O_RDONLY | O_CLOEXEC), vector, environ);
    if (strcmp(how, "execveat") == 0)
        execveat(AT_FDCWD, echo, vector, environ, 0);
    if (strcmp(how, "many") == 0) /* more than a fixed array of 1024 holds */
        execl(echo, "echo", "one", "two", MANY, NULL);
    if (strcmp(how, "twice") == 0)
        execv(arguments[0], again);
    if (strcmp(how, "unguarded") == 0)
        execve(echo, vector, none);
    execl("/nonexistent", "nonexistent", NULL);
    perror("exec");
    fflush(stderr);
    while (read(0, &byte, 1) > 0)
        ;
    return 6;
}
