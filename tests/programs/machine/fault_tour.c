/* Goes once through everything that makes the guard call the kernel, and prints the same whether or not one of those
 * calls failed: heap, large heap, mappings, a System V segment, a refusal, threads, fork, raw clone, exec of itself
 * ("again"). A request may be answered by ENOMEM, nothing else may happen; only the 8 TiB one must be refused while the
 * guard is sound. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
/* Of each block: this runs a thousand times, and the kernel's pages are most of what it costs. */
#define TOUCHED ((size_t)64 << 10)

static void fail(const char *what)
{
    dprintf(1, "broken: %s (errno %d)\n", what, errno);
    _exit(9);
}

static void use(const char *what, char *block, size_t size)
{
    if (block == NULL && errno != ENOMEM)
        fail(what);
    if (block != NULL)
        memset(block, 1, size < TOUCHED ? size : TOUCHED);
    free(block);
}

static void heap(void)
{
    for (size_t size = 16; size <= 32 * MIB; size *= 8)
        use("malloc", malloc(size), size);
    char *block = malloc(200000), *larger = block != NULL ? realloc(block, 6 * MIB) : NULL;
    if (larger == NULL && block != NULL)
        free(block);
    else
        use("realloc", larger, 6 * MIB);
    char *small[64];
    for (int i = 0; i < 64; i++)
        if ((small[i] = malloc(60000)) == NULL && errno != ENOMEM)
            fail("small malloc");
    for (int i = 0; i < 64; i++)
        free(small[i]);
}

static void maps(void)
{
    char *map = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return errno == ENOMEM ? (void)0 : fail("mmap");
    memset(map + 3 * MIB, 1, TOUCHED);
    if (munmap(map + MIB, MIB) != 0)
        fail("munmap of a part");
    char *moved = mremap(map + 2 * MIB, 2 * MIB, 8 * MIB, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED ? errno != ENOMEM : moved[MIB] != 1 || munmap(moved, 8 * MIB) != 0)
        fail("mremap");
    if (munmap(map, MIB) != 0)
        fail("munmap");
}

static void segments(void)
{
    int id = shmget(IPC_PRIVATE, 2 * MIB, IPC_CREAT | 0600);
    char *attached = shmat(id, NULL, 0);
    int error = errno;
    if (id < 0 || shmctl(id, IPC_RMID, NULL) != 0)
        fail("shmget");
    errno = error;
    if (attached == (char *)-1)
        return errno == ENOMEM ? (void)0 : fail("shmat");
    memset(attached, 1, TOUCHED);
    if (shmdt(attached) != 0)
        fail("shmdt");
}

static void *in_thread(void *unused)
{
    heap();
    maps();
    return unused;
}

static void in_child(const char *what, long child)
{
    int status = -1;
    if (child == 0) {
        heap();
        maps();
        _exit(0);
    }
    if (child < 0 || waitpid((pid_t)child, &status, 0) != child || status != 0)
        fail(what);
}

int main(int count, char **arguments)
{
    pthread_t thread;
    (void)arguments;
    heap();
    maps();
    segments();
    dprintf(1, "%s\n", malloc((size_t)8 << 40) == NULL ? "refused" : "broken: 8 TiB granted");
    if (count > 1)
        return 7;
    if (pthread_create(&thread, NULL, in_thread, NULL) != 0 || pthread_join(thread, NULL) != 0)
        fail("thread");
    in_child("fork", fork());
    in_child("clone", syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    execl("/nonexistent", "nonexistent", NULL);
    dprintf(1, "again\n");
    execl("/proc/self/exe", "again", "again", NULL);
    fail("exec");
}
