/* Prints whether the preload of test_transparent.py, which wraps malloc by dlsym(RTLD_NEXT), saw this program's calls,
 * and whether dlsym(RTLD_DEFAULT) and a direct call agree. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    int *seen = dlsym(RTLD_DEFAULT, "wrapper_calls");
    void *(*by_name)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "malloc");
    int before = seen != NULL ? *seen : -1;
    void *volatile direct = malloc(100), *volatile looked_up = by_name(3 << 20);
    int after = seen != NULL ? *seen : -1;
    free(direct);
    free(looked_up);
    printf("%d %d\n", after - before, (void *)by_name == (void *)malloc);
    return 0;
}
