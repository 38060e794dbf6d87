/*
 * stack_paint WHAT - does WHAT in a signal's handler on an alternate stack that was painted before, and prints how
 * many bytes of it that took below the handler's own frame. It is the first thing that the process asks for, with
 * the exceptions that are named.
 *
 * WHAT: small, large, refused (malloc); free (of 64 MiB that were touched); resize (realloc, of 64 MiB); map; unmap
 * (of 64 MiB that were touched); protect (64 MiB that were reserved become writable); fork (with 300 MiB; the
 * child's part); dlsym, dlsym_next, dlsym_hooked (of a name that the guard has a hook for); dlsym_handle, dlvsym (of
 * such a name, by a handle of the libc).
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
enum { STACK_BYTES = 128 << 10, PAINT = 0xa5 };
#if defined(__x86_64__)
#define LIBC_BASE "GLIBC_2.2.5"
#else
#define LIBC_BASE "GLIBC_2.17"
#endif

static unsigned char *stack;
static const char *what;
static void *volatile block;
static void *libc;
static uintptr_t frame;

static int is(const char *name)
{
    return strcmp(what, name) == 0;
}

static void do_it(int signal)
{
    (void)signal;
    frame = (uintptr_t)__builtin_frame_address(0);
    if (is("small"))
        block = malloc(100);
    else if (is("large"))
        block = malloc(64 * MIB);
    else if (is("refused"))
        block = malloc((size_t)1 << 45);
    else if (is("free"))
        free(block);
    else if (is("resize"))
        block = realloc(block, 128 * MIB);
    else if (is("map"))
        block = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    else if (is("unmap"))
        munmap(block, 64 * MIB);
    else if (is("protect"))
        mprotect(block, 64 * MIB, PROT_READ | PROT_WRITE);
    else if (is("dlsym"))
        block = dlsym(RTLD_DEFAULT, "cos");
    else if (is("dlsym_next"))
        block = dlsym(RTLD_NEXT, "qsort");
    else if (is("dlsym_hooked"))
        block = dlsym(RTLD_DEFAULT, "cuInit");
    else if (is("dlsym_handle"))
        block = dlsym(libc, "munlockall");
    else if (is("dlvsym"))
        block = dlvsym(libc, "munlockall", LIBC_BASE);
    else if (is("fork"))
        block = fork() == 0 ? NULL : block;
}

static void prepare(void)
{
    if (is("dlsym_handle") || is("dlvsym"))
        libc = dlopen("libc.so.6", RTLD_NOW);
    if (is("free") || is("resize"))
        memset(block = malloc(64 * MIB), 1, 64 * MIB);
    else if (is("fork"))
        block = malloc(300 * MIB);
    else if (is("unmap"))
        memset(block = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 64 * MIB);
    else if (is("protect"))
        block = mmap(NULL, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void print(void)
{
    char text[32];
    uintptr_t lowest = (uintptr_t)stack;
    while (*(unsigned char *)lowest == PAINT)
        lowest++;
    int length = snprintf(text, sizeof text, "%zu\n", (size_t)(frame - lowest));
    if (write(1, text, (size_t)length) != length)
        _exit(1);
}

int main(int count, char **arguments)
{
    static unsigned char memory[STACK_BYTES] __attribute__((aligned(4096)));
    what = count > 1 ? arguments[1] : "small";
    prepare();
    stack = memset(memory, PAINT, STACK_BYTES);
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = STACK_BYTES}, NULL);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = do_it, .sa_flags = SA_ONSTACK}, NULL);
    raise(SIGUSR1);
    if (is("fork") && block != NULL)
        wait(NULL);
    else
        print();
    _exit(0);
}
