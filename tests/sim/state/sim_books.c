/*
 * sim_books.c - a fake machine shared by several simulated processes: what each holds, and the meminfo that follows.
 *
 * The truth is in a file beside the fake meminfo, MEMINFO.machine, mapped by all: what the machine had at first, and a
 * place for each process with what it holds. MemFree, MemAvailable and Cached are the first figures less the sum,
 * written to the meminfo after each change; so one store is one change, and a process killed or stopped between two of
 * them leaves nothing wrong behind. The meminfo file is locked (flock) meanwhile. A process that is stopped while it
 * holds the lock is passed over, and figures are written again until they agree with the sum; a process that only waits
 * for a processor is waited for.
 *
 * A process is alive while it holds the (open file description) lock on the byte of its place, which it keeps by its
 * mapping alone, with MADV_DONTFORK: nothing it does to its descriptors, no PID namespace and no fork changes that.
 */
#define _GNU_SOURCE
#include "sim_books.h"

#include "sim_pressure.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x3248434d4d495347)
#define LOCK_PATIENCE_NS INT64_C(200000000) /* before the holder is looked at, and each time again */
#define LOCK_MAX_NS INT64_C(5000000000)     /* a holder of another PID namespace cannot be looked at */
#define LOW_PART 256                        /* of MemTotal */
#define GPU_LOCK SGSIM_PLACES               /* the byte behind those of the places */

int64_t sgsim_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- the meminfo file ---- */

/* Where the digits of a field end; *start: where the blanks before them begin. NULL: there is no such field. */
static char *find_field(char *text, const char *name, char **start)
{
    char *field = strstr(text, name);
    *start = field ? field + strlen(name) : NULL;
    char *end = field ? strchr(*start, '\n') : NULL;
    while (end && end > *start && !(end[-1] >= '0' && end[-1] <= '9'))
        end--;
    return end && end > *start ? end : NULL;
}

static int64_t read_field(char *text, const char *name)
{
    int64_t number = 0;
    char *start, *end = find_field(text, name, &start);
    for (const char *c = start; end && c < end; c++)
        number = *c == ' ' ? 0 : number * 10 + (*c - '0');
    return number;
}

/* In place and in the same width; less than nothing is 0. */
static void write_field(char *text, const char *name, int64_t number)
{
    char *start, *end = find_field(text, name, &start);
    number = number < 0 ? 0 : number;
    for (char *c = end ? end - 1 : start; end && c >= start; c--, number /= 10)
        *c = number || c == end - 1 ? (char)('0' + number % 10) : ' ';
}

static char *read_meminfo(const struct sgsim_books *books, long *length)
{
    static char text[16 * 1024];
    *length = syscall(SYS_pread64, books->meminfo, text, sizeof text - 1, 0L);
    text[*length > 0 ? *length : 0] = '\0';
    return text;
}

/* ---- the sum ---- */

static bool is_alive(const struct sgsim_books *books, uint64_t place)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)place, .l_len = 1};
    return syscall(SYS_fcntl, books->file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static void put_late(struct sgsim_place *place, uint64_t kib)
{
    struct sgsim_late *entry = &place->late[0];
    if (place->late_ns == 0 || kib == 0)
        return;
    for (size_t i = 0; i < SGSIM_LATE_ROOM && entry->kib != 0; i++)
        if (place->late[i].kib == 0 || place->late[i].due_ns > entry->due_ns)
            entry = &place->late[i]; /* an empty one, else the last one waits a little longer */
    entry->due_ns = sgsim_now_ns() + place->late_ns;
    entry->kib += kib;
}

/* First one figure, then the other: never too little. */
void sgsim_books_put_back(const struct sgsim_books *books, struct sgsim_place *place, uint64_t kib)
{
    if (place->late_ns == SGSIM_KEPT)
        books->machine->kept_kib += (int64_t)kib;
    else
        put_late(place, kib);
    place->device_kib -= kib;
}

void sgsim_books_put_touched_back(struct sgsim_place *place, uint64_t kib)
{
    if (place->late_ns != SGSIM_KEPT)
        put_late(place, kib);
    place->touched_kib -= kib;
}

void sgsim_books_put_all_back(const struct sgsim_books *books, struct sgsim_place *place)
{
    place->shared_kib = place->registered_kib = 0;
    sgsim_books_put_touched_back(place, place->touched_kib);
    sgsim_books_put_back(books, place, place->device_kib);
}

int64_t sgsim_books_lists_kib(const struct sgsim_place *place, uint64_t device_kib)
{
    return (int64_t)(device_kib / 4 * place->list_bytes / 1024);
}

struct sgsim_figures sgsim_books_sum(const struct sgsim_books *books)
{
    struct sgsim_machine *machine = books->machine;
    struct sgsim_figures sum = {0};
    int64_t now = sgsim_now_ns(), lists = 0;
    for (uint64_t i = 0; i < machine->used && i < SGSIM_PLACES; i++) {
        struct sgsim_place *place = &machine->place[i];
        uint64_t taken = place->device_kib + place->touched_kib + place->shared_kib;
        if (place != books->own && taken + place->registered_kib != 0 && !is_alive(books, i)) {
            sgsim_books_put_all_back(books, place);
            taken = 0;
        }
        sum.living += taken != 0;
        sum.taken_kib += taken;
        lists += sgsim_books_lists_kib(place, place->device_kib);
        sum.shared_kib += (int64_t)place->shared_kib;
        sum.locked_kib += (int64_t)(place->shared_kib + place->registered_kib);
        for (size_t j = 0; j < SGSIM_LATE_ROOM; j++) {
            if (place->late[j].due_ns <= now)
                place->late[j].kib = 0;
            sum.late_kib += place->late[j].kib;
        }
    }
    int64_t gone = (int64_t)(sum.taken_kib + sum.late_kib) + lists + machine->kept_kib;
    int64_t cache = machine->available_kib - machine->free_kib;
    cache = cache < machine->cached_kib ? cache : machine->cached_kib; /* what can be reclaimed at all */
    int64_t missing = gone - machine->free_kib < cache ? gone - machine->free_kib : cache;
    if (missing > machine->reclaimed_kib)
        machine->reclaimed_kib = missing;
    int64_t kept = machine->kept_kib;
    sgsim_pressure_relieve(machine, machine->available_kib - gone, now);
    gone -= kept - machine->kept_kib;
    sum.kept_kib = machine->kept_kib;
    sum.free_kib = machine->free_kib + machine->reclaimed_kib - gone;
    sum.available_kib = machine->available_kib - gone;
    sum.cached_kib = machine->cached_kib - machine->reclaimed_kib + sum.shared_kib;
    return sum;
}

/* Sums up and writes what the sum says, until it says the same again: it does at once unless a lock was passed over. */
struct sgsim_figures sgsim_books_settle(const struct sgsim_books *books)
{
    long length;
    struct sgsim_figures sum = sgsim_books_sum(books), before;
    do {
        before = sum;
        char *text = read_meminfo(books, &length);
        write_field(text, "MemFree:", sum.free_kib);
        write_field(text, "MemAvailable:", sum.available_kib);
        write_field(text, "\nCached:", sum.cached_kib);
        write_field(text, "\nShmem:", books->machine->shmem_kib + sum.shared_kib);
        write_field(text, "\nMlocked:", books->machine->locked_kib + sum.locked_kib);
        write_field(text, "\nAnonPages:", books->machine->anonymous_kib);
        write_field(text, "\nSwapFree:", books->machine->swap_kib - books->machine->swapped_kib);
        if (length > 0)
            syscall(SYS_pwrite64, books->meminfo, text, (size_t)length, 0L);
        if (sum.available_kib < books->machine->least_available_kib)
            books->machine->least_available_kib = sum.available_kib;
        sum = sgsim_books_sum(books);
    } while (sum.free_kib != before.free_kib || sum.available_kib != before.available_kib);
    return sum;
}

/* ---- opening it ---- */

/* Whether a thread is stopped, by a signal or by a debugger. */
static bool is_stopped(int64_t thread)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)thread);
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    long length = file < 0 ? -1 : syscall(SYS_read, file, text, sizeof text - 1);
    if (file >= 0)
        syscall(SYS_close, file);
    text[length > 0 ? length : 0] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end && (name_end[2] == 'T' || name_end[2] == 't');
}

/* Locks the meminfo file, or passes over the lock of a stopped thread. */
static void lock_meminfo(int file, struct sgsim_machine *machine)
{
    enum { FIRST_NS = 20000, LONGEST_NS = 20000000 }; /* few sleeps: tests count those of a request */
    struct timespec moment = {0, FIRST_NS};
    int64_t begin = sgsim_now_ns(), look = begin + LOCK_PATIENCE_NS, now = begin;
    while (syscall(SYS_flock, file, LOCK_EX | LOCK_NB) != 0) {
        syscall(SYS_nanosleep, &moment, NULL); /* poll: the lock */
        moment.tv_nsec = moment.tv_nsec * 2 < LONGEST_NS ? moment.tv_nsec * 2 : LONGEST_NS;
        now = sgsim_now_ns();
        if (now >= begin + LOCK_MAX_NS || (now >= look && is_stopped(machine->holder)))
            return;
        look = now >= look ? now + LOCK_PATIENCE_NS : look;
    }
    machine->holder = syscall(SYS_gettid);
}

static struct sgsim_machine *map_books(int file)
{
    long address = syscall(SYS_mmap, NULL, sizeof(struct sgsim_machine), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_NORESERVE, file, 0L);
    return address == -1 ? NULL : (struct sgsim_machine *)address;
}

void sgsim_books_close(const struct sgsim_books *books)
{
    if (books->is_mapped)
        syscall(SYS_munmap, books->machine, sizeof *books->machine);
    syscall(SYS_close, books->file);
    syscall(SYS_close, books->meminfo);
}

/* The first to come writes down what the machine has. */
static void begin_books(const struct sgsim_books *books)
{
    long length;
    struct sgsim_machine *machine = books->machine;
    char *text = read_meminfo(books, &length);
    machine->free_kib = read_field(text, "MemFree:");
    machine->available_kib = machine->least_available_kib = read_field(text, "MemAvailable:");
    machine->cached_kib = read_field(text, "\nCached:");
    machine->low_kib = read_field(text, "MemTotal:") / LOW_PART;
    machine->anonymous_kib = read_field(text, "\nAnonPages:");
    machine->shmem_kib = read_field(text, "\nShmem:");
    machine->locked_kib = read_field(text, "\nMlocked:");
    machine->cma_kib = read_field(text, "\nCmaFree:");
    machine->swap_kib = read_field(text, "\nSwapFree:");
    sgsim_pressure_begin(machine);
    machine->magic = MAGIC;
}

/* The descriptor of the file beside it, or -1. */
static int open_file(const char *meminfo)
{
    char path[SGSIM_PATH_ROOM + 16];
    size_t length = strlen(meminfo);
    if (length == 0 || length >= SGSIM_PATH_ROOM)
        return -1;
    memcpy(path, meminfo, length);
    memcpy(path + length, ".machine", sizeof ".machine");
    return (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
}

int sgsim_books_lock_gpu(const char *meminfo)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = GPU_LOCK, .l_len = 1};
    int file = open_file(meminfo);
    while (file >= 0 && syscall(SYS_fcntl, file, F_OFD_SETLKW, &lock) != 0 && errno == EINTR)
        ; /* poll: the lock, again after a signal */
    return file;
}

bool sgsim_books_open(struct sgsim_books *books, const char *meminfo, struct sgsim_machine *mapped)
{
    books->meminfo = (int)syscall(SYS_openat, AT_FDCWD, meminfo, O_RDWR | O_CLOEXEC, 0);
    if (books->meminfo < 0)
        return false;
    books->file = open_file(meminfo);
    books->is_mapped = !mapped;
    books->machine = mapped;
    books->own = NULL;
    if (books->is_mapped && books->file >= 0)
        books->machine =
            syscall(SYS_ftruncate, books->file, sizeof(struct sgsim_machine)) == 0 ? map_books(books->file) : NULL;
    if (books->file < 0 || !books->machine) {
        books->is_mapped = false;
        sgsim_books_close(books);
        return false;
    }
    lock_meminfo(books->meminfo, books->machine);
    if (books->machine->magic != MAGIC)
        begin_books(books);
    sgsim_pressure_obey(books->machine, meminfo);
    return true;
}
