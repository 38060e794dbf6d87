/*
 * host_run [COMMAND... [\; COMMAND...]...] - runs one after the other, as a shell does. Exit: 0 if all of them did,
 * else 1.
 */
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

static int run(char **vector)
{
    pid_t child;
    int status;
    return posix_spawn(&child, vector[0], NULL, NULL, vector, environ) != 0 || waitpid(child, &status, 0) != child ||
           status != 0;
}

int main(int count, char **arguments)
{
    int begin = 1, result = 0;
    for (int i = 1; i <= count; i++) {
        if (i < count && strcmp(arguments[i], ";") != 0)
            continue;
        arguments[i] = NULL;
        result |= begin < i && run(arguments + begin);
        begin = i + 1;
    }
    return result;
}
