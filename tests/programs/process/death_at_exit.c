/* Its last exit handler takes 32 MiB more: what a program does while it ends still counts. Ends with status 256 + 7. */
#include <stdlib.h>

static void last_handler(void)
{
    void *volatile block = malloc((size_t)32 << 20);
    (void)block;
}

int main(void)
{
    void *volatile block = malloc((size_t)32 << 20);
    (void)block;
    atexit(last_handler);
    exit(256 + 7);
}
