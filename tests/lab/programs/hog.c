/*
 * hog THREADS MOST_MIB SECONDS - takes memory that cannot be swapped, as CUDA's pages cannot.
 *
 * Pieces of 8 MiB, or 4 MiB once those are refused, by malloc and mmap in turn: large requests, which keep the reserve. Each is
 * filled with bytes that are not zero and locked. Says "full" when it holds MOST_MIB. If even 4 MiB are refused it asks again
 * every 10 ms. SECONDS after it was first refused that, or was full: "taken BYTES refused COUNT", exit 0.
 * Exit 2: usage; 3: mlock failed; 4: a refusal was not NULL or MAP_FAILED with ENOMEM.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define LARGEST (8 * MIB)
#define SMALLEST (4 * MIB)

static atomic_size_t taken_bytes, refused_count;
static size_t most_bytes;
static int64_t hold_ns;
static _Atomic int64_t end_ns = INT64_MAX;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* There is no more to be had: the first to find it says when all end. */
static void begin_to_hold(void)
{
    int64_t never = INT64_MAX;
    atomic_compare_exchange_strong(&end_ns, &never, now_ns() + hold_ns);
}

static void pause_10_ms(void)
{
    nanosleep(&(struct timespec){0, 10000000}, NULL); /* pace: as who tries again */
}

/* By write: what says why it ends must not need the heap. */
static _Noreturn void fail(int status, const char *what)
{
    dprintf(2, "hog: %s: errno %d\n", what, errno);
    _exit(status);
}

/* Whether it was given. */
static int take(size_t bytes, int is_mapping)
{
    errno = 0;
    void *piece =
        is_mapping ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : malloc(bytes);
    if (piece == NULL || piece == MAP_FAILED) {
        if (errno != ENOMEM || piece != (is_mapping ? MAP_FAILED : NULL))
            fail(4, "refused in another way");
        atomic_fetch_add(&refused_count, 1);
        return 0;
    }
    memset(piece, 0xa5, bytes);
    if (mlock(piece, bytes) != 0)
        fail(3, "mlock");
    return 1;
}

/* Counts before it takes, so that all threads together stay within most_bytes. */
static void *grow(void *unused)
{
    size_t bytes = LARGEST;
    for (int is_mapping = 0; now_ns() < atomic_load(&end_ns); is_mapping = !is_mapping) {
        if (atomic_fetch_add(&taken_bytes, bytes) + bytes > most_bytes) {
            atomic_fetch_sub(&taken_bytes, bytes);
            if (bytes == MIB)
                break;
            bytes /= 2;
        } else if (!take(bytes, is_mapping)) {
            atomic_fetch_sub(&taken_bytes, bytes);
            if (bytes > SMALLEST) {
                bytes /= 2;
            } else {
                begin_to_hold();
                pause_10_ms();
            }
        }
    }
    begin_to_hold();
    return unused;
}

int main(int count, char **arguments)
{
    pthread_t thread[64];
    int threads = count == 4 ? atoi(arguments[1]) : 0;
    if (threads < 1 || threads > 64)
        return 2;
    most_bytes = (size_t)atoll(arguments[2]) * MIB;
    hold_ns = atoll(arguments[3]) * 1000000000;
    for (int i = 1; i < threads; i++)
        if (pthread_create(&thread[i], NULL, grow, NULL) != 0)
            return 2;
    grow(NULL);
    for (int i = 1; i < threads; i++)
        pthread_join(thread[i], NULL);
    if (atomic_load(&taken_bytes) == most_bytes)
        dprintf(1, "full\n");
    while (now_ns() < atomic_load(&end_ns))
        pause_10_ms();
    dprintf(1, "taken %zu refused %zu\n", atomic_load(&taken_bytes), atomic_load(&refused_count));
    return 0;
}
