/*
 * write_paths PATH STEP COUNT - takes memory along one path to writable memory, in steps of STEP MiB, COUNT of them
 * at most, and touches each; says what became of it:
 *
 *     steps N              that were granted
 *     errno N              of the one that was refused, or 0
 *     resident N           bytes by which anonymous and shared memory has grown, by the kernel's own list of mappings
 *     known N              bytes by which what the guard counts has grown: the domains, and what is resident of
 *                          MAP_NORESERVE
 *
 * "write_paths list" names all paths. Exit 77: the kernel or a limit of the user does not allow the path.
 */
#include "heap_case.h"
#include "look.h"

#include <stdbool.h>
#include <sys/ipc.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

enum {
    READ_WRITE = PROT_READ | PROT_WRITE,
    ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS,
    SPARSE = ANONYMOUS | MAP_NORESERVE,
    POPULATE_READ = 22, /* Linux 5.14 */
    POPULATE_WRITE = 23,
    DONTUNMAP = 4,
    UNCOUNTED_MOST = 32 << 20,
};

static char *arena;       /* address space of all steps */
static size_t room, done; /* its size, and what of it the steps before have taken */
static int file = -1;

static int answer(int result)
{
    return result == 0 ? 0 : errno;
}

static int map(char *address, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    char *ptr = mmap(address, bytes, prot, flags, fd, offset);
    if (ptr == MAP_FAILED)
        return errno;
    memset(ptr, 1, bytes);
    return 0;
}

static void reserve(int prot, int flags)
{
    if (arena == NULL)
        arena = mmap(NULL, room, prot, flags, -1, 0);
    CHECK(arena != MAP_FAILED);
}

static int open_and_touch(int result, size_t bytes)
{
    if (result == 0)
        memset(arena + done, 1, bytes);
    return answer(result);
}

static int mmap_private(size_t bytes)
{
    return map(NULL, bytes, READ_WRITE, ANONYMOUS, -1, 0);
}
static int mmap_shared(size_t bytes)
{
    return map(NULL, bytes, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}
static int mmap_populate(size_t bytes)
{
    return map(NULL, bytes, READ_WRITE, ANONYMOUS | MAP_POPULATE, -1, 0);
}
static int mmap_locked(size_t bytes)
{
    return map(NULL, bytes, READ_WRITE, ANONYMOUS | MAP_LOCKED, -1, 0);
}

static int mmap_dev_zero(size_t bytes)
{
    file = file >= 0 ? file : open("/dev/zero", O_RDWR);
    return map(NULL, bytes, READ_WRITE, MAP_PRIVATE, file, 0);
}

static int mmap_memfd(size_t bytes)
{
    file = file >= 0 ? file : memfd_create("write_paths", 0);
    CHECK_EQUAL(ftruncate(file, (off_t)room), 0);
    return map(NULL, bytes, READ_WRITE, MAP_SHARED, file, (off_t)done);
}

static int mmap_over_a_reservation(size_t bytes)
{
    reserve(PROT_NONE, SPARSE);
    return map(arena + done, bytes, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0);
}

static int mmap_sparse_populate(size_t bytes)
{
    return map(NULL, bytes, READ_WRITE, SPARSE | MAP_POPULATE, -1, 0);
}
static int mmap_sparse_locked(size_t bytes)
{
    return map(NULL, bytes, READ_WRITE, SPARSE | MAP_LOCKED, -1, 0);
}

static int mlockall_future(size_t bytes)
{
    if (done == 0 && mlockall(MCL_FUTURE) != 0)
        exit(77);
    return map(NULL, bytes, READ_WRITE, SPARSE, -1, 0);
}

static int mprotect_reserved(size_t bytes)
{
    reserve(PROT_NONE, ANONYMOUS);
    return open_and_touch(mprotect(arena + done, bytes, READ_WRITE), bytes);
}

static int mprotect_read_only(size_t bytes)
{
    reserve(PROT_READ, ANONYMOUS);
    return open_and_touch(mprotect(arena + done, bytes, READ_WRITE), bytes);
}

static int mprotect_shared(size_t bytes)
{
    reserve(PROT_NONE, MAP_SHARED | MAP_ANONYMOUS);
    return open_and_touch(mprotect(arena + done, bytes, READ_WRITE), bytes);
}

static int mprotect_sparse(size_t bytes)
{
    reserve(PROT_NONE, SPARSE);
    return open_and_touch(mprotect(arena + done, bytes, READ_WRITE), bytes);
}

static int pkey_mprotect_reserved(size_t bytes)
{
    reserve(PROT_NONE, ANONYMOUS);
    return open_and_touch(pkey_mprotect(arena + done, bytes, READ_WRITE, -1), bytes);
}

static int pkey_mprotect_sparse(size_t bytes)
{
    reserve(PROT_NONE, SPARSE);
    return open_and_touch(pkey_mprotect(arena + done, bytes, READ_WRITE, -1), bytes);
}

static int grow(size_t bytes, int kind, int flags, int prot)
{
    if (arena == NULL) {
        char *ptr = mmap(NULL, PAGE, prot, kind, -1, 0);
        CHECK(ptr != MAP_FAILED && (prot != PROT_NONE || mprotect(ptr, PAGE, READ_WRITE) == 0));
        arena = ptr;
        done = PAGE;
    }
    void *to = NULL;
    if ((flags & MREMAP_FIXED) != 0)
        CHECK((to = mmap(NULL, done + bytes, PROT_NONE, ANONYMOUS, -1, 0)) != MAP_FAILED);
    char *ptr = mremap(arena, done, done + bytes, flags, to);
    if (ptr == MAP_FAILED)
        return errno;
    arena = ptr;
    memset(arena + done, 1, bytes);
    return 0;
}

static int mremap_grows(size_t bytes)
{
    return grow(bytes, ANONYMOUS, MREMAP_MAYMOVE, READ_WRITE);
}
static int mremap_fixed_grows(size_t bytes)
{
    return grow(bytes, ANONYMOUS, MREMAP_MAYMOVE | MREMAP_FIXED, READ_WRITE);
}
static int mremap_sparse_grows(size_t bytes)
{
    return grow(bytes, SPARSE, MREMAP_MAYMOVE, PROT_NONE);
}

static int mremap_dontunmap(size_t bytes)
{
    if (arena == NULL && (arena = mmap(NULL, bytes, READ_WRITE, ANONYMOUS, -1, 0)) == MAP_FAILED)
        return errno;
    memset(arena, 1, bytes);
    if (mremap(arena, bytes, bytes, MREMAP_MAYMOVE | DONTUNMAP, NULL) == MAP_FAILED)
        return errno;
    memset(arena, 1, bytes);
    return 0;
}

static int call_sbrk(size_t bytes)
{
    char *ptr = sbrk((intptr_t)bytes);
    if (ptr == (char *)-1)
        return errno;
    memset(ptr, 1, bytes);
    return 0;
}

static int call_brk(size_t bytes)
{
    char *ptr = sbrk(0);
    if (brk(ptr + bytes) != 0)
        return errno;
    memset(ptr, 1, bytes);
    return 0;
}

static int attach(size_t bytes)
{
    int id = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
    if (id < 0)
        exit(77);
    char *ptr = shmat(id, NULL, 0);
    int error = ptr == (char *)-1 ? errno : 0;
    shmctl(id, IPC_RMID, NULL);
    if (error == 0)
        memset(ptr, 1, bytes);
    return error;
}

/* Calls that make pages come all at once where nothing was promised. */
static int come_at_once(size_t bytes, int prot, int flags, int call)
{
    char *ptr = mmap(NULL, bytes, prot, flags, -1, 0);
    if (ptr == MAP_FAILED)
        return errno;
    struct iovec piece = {ptr, bytes};
    long result = call == SYS_mlock      ? mlock(ptr, bytes)
                  : call == SYS_mlock2   ? mlock2(ptr, bytes, 0)
                  : call == SYS_mlockall ? mlockall(MCL_CURRENT)
                  : call == SYS_process_madvise
                      ? process_madvise((int)syscall(SYS_pidfd_open, getpid(), 0), &piece, 1, POPULATE_WRITE, 0)
                      : madvise(ptr, bytes, (prot & PROT_WRITE) != 0 ? POPULATE_WRITE : POPULATE_READ);
    if (result < 0 && errno != ENOMEM)
        exit(77);
    return result < 0 ? errno : 0;
}

static int mlock_sparse(size_t bytes)
{
    return come_at_once(bytes, READ_WRITE, SPARSE, SYS_mlock);
}
static int mlock2_sparse(size_t bytes)
{
    return come_at_once(bytes, READ_WRITE, SPARSE, SYS_mlock2);
}
static int mlockall_sparse(size_t bytes)
{
    return come_at_once(bytes, READ_WRITE, SPARSE, SYS_mlockall);
}
static int populate_sparse(size_t bytes)
{
    return come_at_once(bytes, READ_WRITE, SPARSE, SYS_madvise);
}
static int process_populate_sparse(size_t bytes)
{
    return come_at_once(bytes, READ_WRITE, SPARSE, SYS_process_madvise);
}

static int populate_read_of_shared_sparse(size_t bytes)
{
    return come_at_once(bytes, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, SYS_madvise);
}

/* These pages come without a request; a scan behind a later request counts them. The library scans less often where scans
 * take long, as on a busy machine: under a limit, a step waits for what is far behind. */
static int malloc_after_sparse(size_t bytes)
{
    const struct timespec pace = {.tv_nsec = 1000000};
    int error = map(NULL, bytes, READ_WRITE, SPARSE, -1, 0);
    bool is_behind = error == 0;
    while (is_behind) {
        void *volatile ptr = malloc(3 * MIB);
        error = ptr != NULL ? 0 : errno;
        free(ptr);
        uint64_t counted = __atomic_load_n(&segment->sparse_resident_bytes, __ATOMIC_SEQ_CST);
        is_behind = error == 0 && segment->slot.limit_bytes != 0 && done + bytes > counted + UNCOUNTED_MOST;
        if (is_behind)
            nanosleep(&pace, NULL); /* pace: a scan becomes due */
    }
    return error;
}

static const struct {
    const char *name;
    int (*take)(size_t bytes);
} paths[] = {
#define PATH(name) \
    { \
#name, name \
    }
    PATH(mmap_private),
    PATH(mmap_shared),
    PATH(mmap_populate),
    PATH(mmap_locked),
    PATH(mmap_dev_zero),
    PATH(mmap_memfd),
    PATH(mmap_over_a_reservation),
    PATH(mmap_sparse_populate),
    PATH(mmap_sparse_locked),
    PATH(mlockall_future),
    PATH(mprotect_reserved),
    PATH(mprotect_read_only),
    PATH(mprotect_shared),
    PATH(mprotect_sparse),
    PATH(pkey_mprotect_reserved),
    PATH(pkey_mprotect_sparse),
    PATH(mremap_grows),
    PATH(mremap_fixed_grows),
    PATH(mremap_sparse_grows),
    PATH(mremap_dontunmap),
    PATH(call_sbrk),
    PATH(call_brk),
    PATH(attach),
    PATH(mlock_sparse),
    PATH(mlock2_sparse),
    PATH(mlockall_sparse),
    PATH(populate_sparse),
    PATH(process_populate_sparse),
    PATH(populate_read_of_shared_sparse),
    PATH(malloc_after_sparse),
};

/* Pages of one's own and of memory files, by the kernel's list: RssAnon and RssShmem of status lag behind by some
 * pages of each thread. */
static uint64_t resident(void)
{
    static char line[4096 + 128];
    uint64_t bytes = 0;
    int is_memory = 0;
    unsigned long begin, end;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    CHECK(smaps != NULL);
    while (fgets(line, sizeof line, smaps) != NULL) {
        unsigned long long kib;
        char rest[4096] = "";
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %4095[^\n]", &begin, &end, rest) >= 2)
            is_memory = strstr(rest, ".segment") == NULL && strstr(rest, "machine.ledger") == NULL &&
                        strstr(rest, ".timeline") == NULL &&
                        (rest[0] == '\0' || rest[0] == '[' || strstr(rest, "memfd:") != NULL ||
                         strstr(rest, "/SYSV") != NULL || strstr(rest, "/dev/zero") != NULL);
        else if (is_memory && sscanf(line, "Rss: %llu kB", &kib) == 1)
            bytes += kib << 10;
    }
    fclose(smaps);
    return bytes;
}

static uint64_t known(void)
{
    void *volatile most = ask_for_too_much(); /* what is refused, everything was looked at for */
    CHECK(most == NULL);
    uint64_t bytes = segment->sparse_resident_bytes;
    for (int domain = 0; domain < SG_DOMAIN_COUNT; domain++)
        bytes += live((enum sg_domain)domain);
    return bytes;
}

static int walk(int (*take)(size_t), size_t step, unsigned long most)
{
    live_begin();
    (void)
        resident(); /* what reading takes is there before, and what mlockall brings of the program and its libraries */
    CHECK_EQUAL(munmap(mmap(NULL, PAGE, READ_WRITE, ANONYMOUS, -1, 0), PAGE),
                0); /* the library's index has its place from here on */
    if (mlockall(MCL_CURRENT) == 0)
        CHECK_EQUAL(munlockall(), 0);
    uint64_t known_before = known(), resident_before = resident();
    unsigned long steps = 0;
    int error = 0;
    room = step * most;
    while (steps < most && (error = take(step)) == 0) {
        steps++;
        done += step;
    }
    uint64_t resident_now = resident();
    printf("steps %lu\nerrno %d\nresident %lld\nknown %lld\n", steps, error,
           (long long)(resident_now - resident_before), (long long)(known() - known_before));
    return 0;
}

int main(int count, char **arguments)
{
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (count == 2 && strcmp(arguments[1], "list") == 0)
            puts(paths[i].name);
        else if (count == 4 && strcmp(arguments[1], paths[i].name) == 0)
            return walk(paths[i].take, strtoul(arguments[2], NULL, 10) * MIB, strtoul(arguments[3], NULL, 10));
    return count == 2 ? 0 : 2;
}
