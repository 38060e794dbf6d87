/*
 * find_name LIBRARY [FAMILY] - looks up each name of a family of hooks.def (libc, driver, runtime, nvml) by each way
 * there is, and prints lines of three words: the name, the way, and the file of the function that was found; "-" for
 * none.
 *
 * Ways: link; default, next (dlsym with these handles); handle (of LIBRARY), program (the handle of dlopen(NULL));
 * version (dlvsym with the handle of LIBRARY), version_default, version_next; driver also: proc (cuGetProcAddress),
 * entry (cudaGetDriverEntryPointByVersion of libcudart.so.13).
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define LINKED(symbol) extern void linked_##symbol(void) __asm__(#symbol) __attribute__((weak));
#define SG_HOOK_LIBC(symbol) LINKED(symbol)
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz) LINKED(symbol)
#define SG_HOOK_NVML(symbol) LINKED(symbol)
#define SG_HOOK_NVML_HIDDEN(symbol) LINKED(symbol)
#define SG_HOOK_RUNTIME(symbol) LINKED(symbol)
#include "../../../preload/guard/hooks/hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_NVML_HIDDEN
#undef SG_HOOK_RUNTIME

static const struct name {
    const char *family, *symbol;
    void (*linked)(void);
    const char *base;
    int version;
    int is_ptsz;
} names[] = {
#define SG_HOOK_LIBC(symbol) {"libc", #symbol, linked_##symbol, NULL, 0, 0},
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz) {"driver", #symbol, linked_##symbol, #base, version, is_ptsz},
#define SG_HOOK_NVML(symbol) {"nvml", #symbol, linked_##symbol, NULL, 0, 0},
#define SG_HOOK_NVML_HIDDEN(symbol) {"nvml", #symbol, linked_##symbol, NULL, 0, 0},
#define SG_HOOK_RUNTIME(symbol) {"runtime", #symbol, linked_##symbol, NULL, 0, 0},
#include "../../../preload/guard/hooks/hooks.def"
};

static void *library;

static const char *file_of(void *address)
{
    Dl_info info;
    if (address == NULL)
        return "-";
    const char *path = dladdr(address, &info) != 0 ? info.dli_fname : "?";
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void say(const struct name *name, const char *way, void *address)
{
    printf("%s %s %s\n", name->symbol, way, file_of(address));
}

/* The newest version of a name that the handle has: dlsym answers with that one. A library without versions takes
 * any. */
static void *by_version(void *handle, const char *symbol)
{
    char version[32];
    for (int minor = 60; minor >= 0; minor--)
        for (int patch = 6; patch >= 0; patch--) {
            snprintf(version, sizeof version, patch != 0 ? "GLIBC_2.%d.%d" : "GLIBC_2.%d", minor, patch);
            void *found = dlvsym(handle, symbol, version);
            if (found != NULL)
                return found;
        }
    return NULL;
}

static void *by_proc_address(const struct name *name)
{
    typedef int (*get_proc_address)(const char *, void **, int, uint64_t, int *);
    get_proc_address get = (get_proc_address)dlsym(library, "cuGetProcAddress_v2");
    void *found = NULL;
    int status;
    return get != NULL && get(name->base, &found, name->version, name->is_ptsz ? 2 : 1, &status) == 0 ? found : NULL;
}

static void *by_entry_point(const struct name *name)
{
    typedef int (*get_entry_point)(const char *, void **, unsigned, unsigned long long, int *);
    get_entry_point get =
        (get_entry_point)dlsym(dlopen("libcudart.so.13", RTLD_NOW), "cudaGetDriverEntryPointByVersion");
    void *found = NULL;
    int status;
    return get != NULL && get(name->base, &found, (unsigned)name->version, name->is_ptsz ? 2 : 1, &status) == 0 ? found
                                                                                                                : NULL;
}

int main(int count, char **words)
{
    const char *family = count > 2 ? words[2] : "libc";
    library = dlopen(words[1], RTLD_NOW);
    void *program = dlopen(NULL, RTLD_NOW);
    for (const struct name *name = names; name < names + sizeof names / sizeof *names; name++) {
        if (strcmp(name->family, family) != 0)
            continue;
        say(name, "link", (void *)(uintptr_t)name->linked);
        say(name, "default", dlsym(RTLD_DEFAULT, name->symbol));
        say(name, "next", dlsym(RTLD_NEXT, name->symbol));
        say(name, "handle", dlsym(library, name->symbol));
        say(name, "program", dlsym(program, name->symbol));
        say(name, "version", by_version(library, name->symbol));
        say(name, "version_default", by_version(RTLD_DEFAULT, name->symbol));
        say(name, "version_next", by_version(RTLD_NEXT, name->symbol));
        if (name->base != NULL) {
            say(name, "proc", by_proc_address(name));
            say(name, "entry", by_entry_point(name));
        }
    }
    return 0;
}
