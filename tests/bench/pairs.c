/*
 * pairs.c - tight loops of one pair of calls, for `make bench`: pairs KIND COUNT [THREADS].
 *
 *   heap     malloc + free of 64 bytes
 *   large    malloc + free of 4 MiB
 *   array:K  malloc + free of K KiB on glibc's heap, whose mmap threshold has grown: a block of almost 32 MiB was freed
 *   map      mmap + munmap of 1 MiB
 *   cuda     cuMemAlloc + cuMemFree of 64 KiB on the simulated driver (SGSIM_BACKING=none)
 *   small    mmap + munmap of 512 KiB: a request of up to LARGE
 *   device   cuMemAlloc + cuMemFree of 64 MiB on the simulated driver
 *   device:M the same of M MiB
 *   refused  cuMemAlloc of 4 TiB, which the driver itself would refuse
 *   tree     a binary search tree of strings: COUNT times one goes and one comes, malloc and little else
 *   true     posix_spawn of /bin/true, with BENCH_PRELOAD preloaded to it alone
 *   fork     fork, and _exit in the child
 *   name:N   dlsym of the name N by a handle of the libc
 *   hold     one block of 4 MiB, until the standard input ends
 *   none     nothing: what starting the process costs
 *
 * Where THREADS is given, even as 1, glibc's heap takes its locks: it leaves them out in a process that never had a
 * second thread. Nothing is timed in here: the caller takes the CPU time of the whole process, and subtracts that of
 * "none".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static long count;
static const char *kind;

static void heap(size_t size)
{
    for (long i = 0; i < count; i++) {
        void *volatile block = malloc(size);
        free(block);
    }
}

/* An array that nobody touches: what the calls cost, and not the page faults. */
static void array(size_t size)
{
    void *volatile block = malloc(((size_t)32 << 20) - ((size_t)64 << 10));
    free(block);
    heap(size);
}

static void map(size_t size)
{
    for (long i = 0; i < count; i++)
        munmap(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), size);
}

/* ---- a program that does little but malloc ----------------------------------------------------------------------- */

struct node {
    struct node *left, *right;
    char *text;
    unsigned long key;
};

static struct node **place_of(struct node **place, unsigned long key)
{
    while (*place != NULL && (*place)->key != key)
        place = key < (*place)->key ? &(*place)->left : &(*place)->right;
    return place;
}

static void plant(struct node **root, unsigned long key)
{
    struct node **place = place_of(root, key);
    if (*place != NULL)
        return;
    *place = calloc(1, sizeof **place);
    (*place)->key = key;
    (*place)->text = malloc(8 + key % 120);
    (*place)->text[0] = 't';
}

static void fell(struct node **root, unsigned long key)
{
    struct node **place = place_of(root, key), *node = *place;
    if (node == NULL)
        return;
    if (node->left != NULL && node->right != NULL) {
        struct node **least = &node->right;
        while ((*least)->left != NULL)
            least = &(*least)->left;
        struct node *heir = *least;
        *least = heir->right;
        heir->left = node->left;
        heir->right = node->right;
        *place = heir;
    } else {
        *place = node->left != NULL ? node->left : node->right;
    }
    free(node->text);
    free(node);
}

static void tree(void)
{
    struct node *root = NULL;
    unsigned long state = 88172645463325252ul;
    for (long i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        plant(&root, state % 1024);
        fell(&root, (state >> 20) % 1024);
    }
}

/* ---- processes -------------------------------------------------------------------------------------------------- */

static void start(void)
{
    char *const arguments[] = {"true", NULL};
    const char *preload = getenv("BENCH_PRELOAD");
    if (preload != NULL)
        setenv("LD_PRELOAD", preload, 1);
    for (long i = 0; i < count; i++) {
        pid_t pid;
        int status;
        if (posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environ) != 0 || waitpid(pid, &status, 0) != pid ||
            status != 0)
            exit(1);
    }
}

/* The parent has a heap, as each program that forks has. */
static void fork_each(void)
{
    void *volatile block = malloc(100);
    free(block);
    for (long i = 0; i < count; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            _exit(0);
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
            exit(1);
    }
}

static void hold(void)
{
    char byte;
    void *volatile block = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("held\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    munmap(block, 4 << 20);
}

static void *look_up(void *driver, const char *name)
{
    void *function = dlsym(driver, name);
    if (function == NULL) {
        fprintf(stderr, "pairs: %s\n", dlerror());
        exit(1);
    }
    return function;
}

static void cuda(size_t size, int is_granted)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = look_up(driver, "cuInit");
    int (*retain)(void **, int) = look_up(driver, "cuDevicePrimaryCtxRetain");
    int (*set_current)(void *) = look_up(driver, "cuCtxSetCurrent");
    int (*allocate)(unsigned long long *, size_t) = look_up(driver, "cuMemAlloc_v2");
    int (*release)(unsigned long long) = look_up(driver, "cuMemFree_v2");
    void *context;
    if (init(0) || retain(&context, 0) || set_current(context))
        exit(1);
    for (long i = 0; i < count; i++) {
        unsigned long long ptr;
        if ((allocate(&ptr, size) == 0) != is_granted || (is_granted && release(ptr)))
            exit(1);
    }
}

static void look_up_each(const char *name)
{
    static char copy[64] __attribute__((aligned(64))); /* where pages meet, the libc's strlen takes more instructions */
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    strncpy(copy, name, sizeof copy - 1);
    for (long i = 0; i < count; i++)
        (void)look_up(libc, copy);
}

static void *work(void *unused)
{
    if (strcmp(kind, "heap") == 0)
        heap(64);
    else if (strcmp(kind, "large") == 0)
        heap(4 << 20);
    else if (strncmp(kind, "array:", 6) == 0)
        array((size_t)atol(kind + 6) << 10);
    else if (strcmp(kind, "map") == 0)
        map(1 << 20);
    else if (strcmp(kind, "small") == 0)
        map(512 << 10);
    else if (strcmp(kind, "tree") == 0)
        tree();
    else if (strcmp(kind, "true") == 0)
        start();
    else if (strcmp(kind, "fork") == 0)
        fork_each();
    else if (strncmp(kind, "name:", 5) == 0)
        look_up_each(kind + 5);
    else if (strcmp(kind, "hold") == 0)
        hold();
    else if (strcmp(kind, "cuda") == 0)
        cuda(65536, 1);
    else if (strcmp(kind, "device") == 0)
        cuda((size_t)64 << 20, 1);
    else if (strncmp(kind, "device:", 7) == 0)
        cuda((size_t)atol(kind + 7) << 20, 1);
    else if (strcmp(kind, "refused") == 0)
        cuda((size_t)4 << 40, 0);
    return unused;
}

static void *nothing(void *unused)
{
    return unused;
}

int main(int argc, char **argv)
{
    kind = argc > 1 ? argv[1] : "none";
    count = argc > 2 ? atol(argv[2]) : 0;
    int threads = argc > 3 ? atoi(argv[3]) : 1;
    pthread_t thread[64];
    if (argc > 3 && pthread_create(&thread[0], NULL, nothing, NULL) == 0)
        pthread_join(thread[0], NULL);
    for (int i = 1; i < threads && i < 64; i++)
        pthread_create(&thread[i], NULL, work, NULL);
    work(NULL);
    for (int i = 1; i < threads && i < 64; i++)
        pthread_join(thread[i], NULL);
    return 0;
}
