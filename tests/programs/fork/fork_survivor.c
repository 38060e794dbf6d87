/* Holds 32 MiB, forks a child that does nothing but wait for standard input to end, and dies by SIGKILL. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
    char byte;
    void *volatile block = malloc((size_t)32 << 20);
    if (block != NULL && fork() == 0)
        return read(0, &byte, 1) != 0;
    raise(SIGKILL);
}
