/*
 * emulated.c - prints how the kernel answers calls about memory; without the guard. What an emulator answers otherwise
 * is the reason of lines in emulated.skip:
 *
 *   cc -o native tests/emulated.c && aarch64-linux-gnu-gcc -static -o other tests/emulated.c
 *   ./native >native.txt; .deps/aarch64/bin/qemu-aarch64-static ./other | diff native.txt -
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
enum {
    READ_WRITE = PROT_READ | PROT_WRITE,
    PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS,
    DONTUNMAP = 4,
    POPULATE_WRITE = 23,
    HUGE_2M = 21 << 26
};

static size_t page;

static void say(const char *call, int is_done)
{
    printf("%s: %s\n", call, is_done ? "done" : strerrorname_np(errno));
}

static char *map(size_t bytes, int protection, int flags)
{
    return mmap(NULL, bytes, protection, flags, -1, 0);
}

static void ask_fork(void)
{
    char *ptr = map(page, READ_WRITE, PRIVATE);
    int status = 0;
    *ptr = 1;
    say("madvise with MADV_WIPEONFORK", madvise(ptr, page, MADV_WIPEONFORK) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(*ptr);
    waitpid(child, &status, 0);
    printf("the page in a forked child: %s\n", status == 0 ? "wiped" : "as in its parent");
}

static void ask_mremap(void)
{
    char *ptr = map(100 * page, READ_WRITE, PRIVATE), *hole = map(1000 * page, PROT_NONE, PRIVATE), *moved;
    char *shared = map(100 * page, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS);
    unsigned char resident[100];
    moved = mremap(ptr, 10 * page, 5 * page, MREMAP_MAYMOVE);
    printf("mremap that shrinks: %s\n", moved == ptr ? "stays" : "moves");
    say("mremap of shared memory with old size 0", mremap(shared, 0, 60 * page, MREMAP_MAYMOVE) != MAP_FAILED);
    say("mremap to size 0", mremap(ptr, page, 0, MREMAP_MAYMOVE) != MAP_FAILED);
    munmap(hole, 1000 * page);
    ptr = map(100 * page, READ_WRITE, PRIVATE);
    moved = mremap(ptr, 100 * page, 100 * page, MREMAP_MAYMOVE | DONTUNMAP, hole + 500 * page);
    printf("mremap with MREMAP_DONTUNMAP: %s\n", moved == hole + 500 * page ? "at the hint" : "elsewhere");
    say("mincore of the old place", mincore(ptr, 100 * page, resident) == 0);
    int id = shmget(IPC_PRIVATE, 4 * MIB, 0600 | IPC_CREAT);
    char *attached = shmat(id, NULL, 0);
    say("mremap of System V memory with old size 0", mremap(attached, 0, 4 * MIB, MREMAP_MAYMOVE) != MAP_FAILED);
    (void)shmctl(id, IPC_RMID, NULL);
}

static void ask_mmap(void)
{
    const struct rlimit narrow = {256 * MIB, RLIM_INFINITY}, wide = {RLIM_INFINITY, RLIM_INFINITY};
    char *ptr = map(page, READ_WRITE, PRIVATE);
    unsigned char is_resident = 0;
    say("MAP_FIXED_NOREPLACE where something is",
        mmap(ptr, page, READ_WRITE, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0) != MAP_FAILED);
    ptr = map(page, READ_WRITE, PRIVATE);
    (void)madvise(ptr, page, POPULATE_WRITE);
    (void)mincore(ptr, page, &is_resident);
    printf("resident after MADV_POPULATE_WRITE: %d\n", is_resident & 1);
    say("mlock of 16 MiB", mlock(map(16 * MIB, READ_WRITE, PRIVATE), 16 * MIB) == 0);
    say("MAP_LOCKED of 16 MiB", map(16 * MIB, READ_WRITE, PRIVATE | MAP_LOCKED) != MAP_FAILED);
    if (setrlimit(RLIMIT_AS, &narrow) == 0)
        say("1 GiB beyond RLIMIT_AS", map(1024 * MIB, READ_WRITE, PRIVATE) != MAP_FAILED);
    (void)setrlimit(RLIMIT_AS, &wide);
}

static void ask_madvise(void)
{
    char *read_only = mmap(NULL, page, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct iovec piece = {read_only, page};
    say("MADV_POPULATE_WRITE of what may only be read", madvise(read_only, page, POPULATE_WRITE) == 0);
    say("process_madvise",
        syscall(SYS_process_madvise, syscall(SYS_pidfd_open, getpid(), 0), &piece, 1L, MADV_WILLNEED, 0L) >= 0);
}

/* Linux 6.7: struct pm_scan_arg of <linux/fs.h> begins with its size, flags and the range, and has a place for answers. */
static void ask_page_scan(void)
{
    uint64_t begin = (uint64_t)(uintptr_t)map(page, READ_WRITE, PRIVATE), answers[3];
    uint64_t scan[12] = {sizeof scan, 0, begin, begin + page, 0, (uint64_t)(uintptr_t)answers, 1};
    scan[11] = 1 << 3; /* PAGE_IS_PRESENT */
    say("PAGEMAP_SCAN", ioctl(open("/proc/self/pagemap", O_RDONLY), _IOWR('f', 16, uint64_t[12]), scan) >= 0);
}

/* ENOMEM: the pool is empty. */
static void ask_huge_pages(void)
{
    say("MAP_HUGETLB of 24 MiB", map(24 * MIB, READ_WRITE, PRIVATE | MAP_HUGETLB | HUGE_2M) != MAP_FAILED);
}

/* In a child: it may be ended by SIGXFSZ. */
static void ask_files(void)
{
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0});
        (void)signal(SIGXFSZ, SIG_DFL);
        _exit(open("/proc/self/stat", O_RDONLY) < 0);
    }
    (void)waitpid(child, &status, 0);
    printf("/proc/self/stat where files may have 0 bytes: %s\n", WIFSIGNALED(status) ? "a signal" : "opened");
}

int main(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    ask_fork();
    ask_mremap();
    ask_mmap();
    ask_madvise();
    ask_page_scan();
    ask_huge_pages();
    ask_files();
    return 0;
}
