/*
 * torch_blocks LIBC10 MIB COUNT - takes COUNT blocks of MIB MiB each as PyTorch does for its CPU tensors, writes to all
 * of each, and says after each how many MiB it has. Exit 1: a block was refused (c10 throws, and the program ends by
 * SIGABRT, or NULL came).
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments)
{
    void *library = count == 4 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    void *(*take)(size_t) = NULL;
    if (library != NULL)
        *(void **)&take = dlsym(library, "_ZN3c109alloc_cpuEm");
    if (take == NULL) {
        fprintf(stderr, "torch_blocks: %s\n", count == 4 ? dlerror() : "usage");
        return 2;
    }
    const size_t mib = strtoul(arguments[2], NULL, 10), blocks = strtoul(arguments[3], NULL, 10);
    for (size_t i = 1; i <= blocks; i++) {
        char *block = take(mib << 20);
        if (block == NULL)
            return 1;
        memset(block, 1, mib << 20);
        printf("%zu\n", i * mib);
        fflush(stdout);
    }
    return 0;
}
