/* jemalloc/jemalloc#329, tamatebako/tebako#527: a heap that the program exports maps memory under its lock; the
 * interposed mmap allocated. */
#include "replay.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *next, *limit;
static size_t maps;

struct header {
    size_t size, unused;
};

void *malloc(size_t size)
{
    size_t whole = (size + sizeof(struct header) + 15) & ~(size_t)15, chunk = whole > MIB ? whole : MIB;
    pthread_mutex_lock(&lock);
    if ((size_t)(limit - next) < whole) {
        next = mmap(NULL, chunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        limit = next == MAP_FAILED ? next : next + chunk;
        maps++;
    }
    struct header *header = next == MAP_FAILED ? NULL : (struct header *)next;
    next += header ? whole : 0;
    pthread_mutex_unlock(&lock);
    if (!header)
        return NULL;
    header->size = size;
    return header + 1;
}

void free(void *block)
{
    (void)block;
}

void *calloc(size_t count, size_t size)
{
    return malloc(count * size); /* pages of the kernel are zero, and none is used again */
}

void *realloc(void *block, size_t size)
{
    void *moved = malloc(size);
    if (block && moved) {
        size_t had = ((struct header *)block)[-1].size;
        memcpy(moved, block, had < size ? had : size);
    }
    return moved;
}

int main(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 1000; i++)
        NEED(malloc(10000));
    NEED(dlopen("libm.so.6", RTLD_NOW) && dlsym(RTLD_DEFAULT, "malloc") == (void *)malloc &&
         !dlsym(RTLD_DEFAULT, "no such name"));
    NEED(dlerror());
    begin(threads, 4);
    end(threads, 4);
    pid_t child = fork();
    if (child == 0)
        _exit(malloc(5 * MIB) ? 3 : 4);
    printf("%d %d\n", WEXITSTATUS(status_of(child)), maps >= 10);
    return 0;
}
