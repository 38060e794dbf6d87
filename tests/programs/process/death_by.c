/* Holds 640 MiB, gives 128 back, has one request refused if there is a limit, and ends as argv[1] says. Prints what it
 * asked for at most and what it holds at the end, in bytes. */
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "return";
    size_t heap = 0, mapped = 0, passing;
    for (int i = 0; i < 6; i++)
        heap += malloc_usable_size(malloc(64 * MIB));
    for (int i = 0; i < 2; i++)
        mapped += mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED
                      ? 64 * MIB
                      : 0;
    void *block = malloc(128 * MIB);
    passing = malloc_usable_size(block);
    free(block);
    void *volatile refused = malloc(getenv("SPARKGUARD_LIMIT") != NULL ? 4096 * MIB : 1);
    free(refused);
    dprintf(1, "%zu %zu %zu\n", heap + mapped + passing, heap, mapped);
    if (strcmp(how, "sigkill") == 0)
        raise(SIGKILL);
    if (strcmp(how, "sigterm") == 0)
        raise(SIGTERM);
    if (strcmp(how, "abort") == 0)
        abort();
    if (strcmp(how, "segfault") == 0)
        *(volatile char *)8 = 1;
    if (strcmp(how, "_exit") == 0)
        _exit(3);
    if (strcmp(how, "_Exit") == 0)
        _Exit(3);
    if (strcmp(how, "quick_exit") == 0)
        quick_exit(3);
    if (strcmp(how, "exit") == 0)
        exit(3);
    if (strcmp(how, "exit_group") == 0)
        syscall(SYS_exit_group, 3);
    if (strcmp(how, "raw_exec") == 0)
        syscall(SYS_execve, "/bin/true", (char *[]){"true", NULL}, (char *[]){NULL});
    return 3;
}
