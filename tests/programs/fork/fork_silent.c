/*
 * fork_silent HOW MIB - holds MIB and makes a child that asks for nothing: it says its pid and waits for standard input
 * to end, as its parent does.
 *
 *     fork      by fork; the parent says its own pid after it
 *     daemon    by daemon(3); the parent is gone
 *     twice     the child forks at once, and its child is the one
 *     execs     by fork; then it becomes `/bin/echo PID`, after it could not become something else
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int say_and_wait(void)
{
    char line[24], byte;
    int length = snprintf(line, sizeof line, "%d\n", getpid());
    return write(1, line, (size_t)length) != length || read(0, &byte, 1) != 0;
}

int main(int count, char **arguments)
{
    const char *how = count == 3 ? arguments[1] : "";
    void *volatile block = count == 3 ? malloc((size_t)atoi(arguments[2]) << 20) : NULL;
    if (block == NULL)
        return 2;
    if (strcmp(how, "daemon") == 0)
        return daemon(1, 1) != 0 || say_and_wait();
    pid_t child = fork();
    if (child == 0 && strcmp(how, "twice") == 0)
        child = fork();
    if (child == 0 && strcmp(how, "execs") == 0) {
        char pid[16], *vector[] = {"echo", pid, NULL};
        snprintf(pid, sizeof pid, "%d", getpid());
        execv("/nonexistent", vector);
        execv("/bin/echo", vector);
        return 1;
    }
    if (child == 0)
        return say_and_wait();
    int status = 0;
    if (strcmp(how, "execs") == 0)
        return waitpid(child, &status, 0) != child || status != 0 || say_and_wait();
    return waitpid(child, &status, 0) != child || status != 0;
}
