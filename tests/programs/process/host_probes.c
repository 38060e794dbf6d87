/* Looks for CUDA where there is none, in the ways programs do: every answer must be "not there". */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

extern int cuInit(unsigned) __attribute__((weak));
extern void *sparkguard_nothing(void) __attribute__((weak));

static int is_absent(void *handle, const char *name)
{
    (void)dlerror();
    void *found = dlsym(handle, name);
    const char *error = dlerror();
    int good = found == NULL && error != NULL && strstr(error, name) != NULL;
    if (!good)
        printf("%s: %p, %s\n", name, found, error != NULL ? error : "no error");
    return good && dlerror() == NULL;
}

int main(void)
{
    static const char *const names[] = {"cuInit",
                                        "cuMemAlloc",
                                        "cuMemAlloc_v2",
                                        "cuMemFree_v2",
                                        "cuGetProcAddress",
                                        "cuMemCreate",
                                        "cudaMalloc",
                                        "cudaMallocAsync",
                                        "nvmlInit_v2",
                                        "nvmlDeviceGetMemoryInfo",
                                        "nvmlDeviceGetMemoryInfo_v2"};
    int bad = cuInit != NULL || sparkguard_nothing != NULL;
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        bad += !is_absent(RTLD_DEFAULT, names[i]);
        bad += !is_absent(dlopen(NULL, RTLD_LAZY), names[i]);
    }
    return bad;
}
