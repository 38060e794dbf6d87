/* Holds 24 MiB, becomes a daemon (its parent leaves by _exit), takes 20 MiB more, writes its pid to standard output,
 * which it keeps, and returns 4. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
    int out = dup(1);
    void *volatile first = malloc((size_t)24 << 20);
    if (daemon(1, 0) != 0)
        return 1;
    void *volatile second = malloc((size_t)20 << 20);
    dprintf(out, "%d\n", getpid());
    return first != NULL && second != NULL ? 4 : 1;
}
