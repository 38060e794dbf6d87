/* Starts `/bin/echo spawned` the way argv[1] says while it holds 32 MiB, waits for it, says "ready" and waits for its
 * standard input to end: it must still be running in the report, whatever its children became. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "vfork";
    char *vector[] = {"echo", "spawned", NULL}, byte;
    void *volatile block = malloc((size_t)32 << 20);
    int status = -1;
    pid_t child = -1;
    (void)block;
    if (strcmp(how, "vfork") == 0 && (child = vfork()) == 0) {
        execv("/bin/echo", vector);
        _exit(1);
    }
    if (strcmp(how, "vfork-fails") == 0 && (child = vfork()) == 0) {
        execv("/nonexistent", vector);
        _exit(0);
    }
    if (strcmp(how, "posix_spawn") == 0 && posix_spawn(&child, "/bin/echo", NULL, NULL, vector, environ) != 0)
        return 1;
    if (strcmp(how, "system") == 0)
        status = system("echo spawned");
    else if (waitpid(child, &status, 0) != child)
        return 2;
    dprintf(1, "ready\n");
    return status != 0 || read(0, &byte, 1) != 0;
}
