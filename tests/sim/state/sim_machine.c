/*
 * sim_machine.c - see sim_machine.h; the books it keeps are sim_books.c's.
 *
 * What the dead held, and what was freed late, goes back when anyone alive takes or gives or makes any driver call, and
 * at sgsim_settle(): no thread and no process of the simulator's own waits for it.
 */
#define _GNU_SOURCE
#include "sim_machine.h"

#include "cuda_sim.h"
#include "sim_books.h"
#include "sim_faults.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MILLISECOND_NS INT64_C(1000000)
#define STEP_BYTES (128 * SGSIM_MIB)

static char meminfo_path[SGSIM_PATH_ROOM]; /* a copy: programs clear their environment */
static int64_t late_ns, settled_ns, step_ns, shrink_delay_ns = -1;
static size_t shrink_bytes;
static bool is_without_reclaim, is_keeping_failed;
static int64_t block_room_kib = INT64_MAX; /* SGSIM_FRAGMENTED */
static struct sgsim_machine *attached;     /* mapped for good, with a place of one's own */
static struct sgsim_place *own;
static int64_t least_free = SGSIM_NO_CALL, least_spare = SGSIM_NO_CALL;

/* Whether the driver's module says in /proc/driver/nvidia/params, beside the meminfo, that it keeps what is freed. */
static bool are_pools_listed(void)
{
    static const char name[] = "/driver/nvidia/params", line[] = "EnableSystemMemoryPools: ";
    char path[SGSIM_PATH_ROOM + sizeof name], text[4096];
    const char *slash = strrchr(meminfo_path, '/');
    size_t length = slash ? (size_t)(slash - meminfo_path) : 0;
    memcpy(path, meminfo_path, length);
    memcpy(path + length, name, sizeof name);
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    long got = file < 0 ? -1 : syscall(SYS_read, file, text, sizeof text - 1);
    if (file >= 0)
        syscall(SYS_close, file);
    text[got > 0 ? got : 0] = '\0';
    const char *found = strstr(text, line);
    return found && found[sizeof line - 1] > '0' && found[sizeof line - 1] <= '9';
}

static void configure_pool(void)
{
    const char *pool = getenv("SGSIM_POOL"), *failed = getenv("SGSIM_FAILED"), *blocks = getenv("SGSIM_FRAGMENTED");
    size_t bytes = 0;
    bool is_keeping = pool ? strcmp(pool, "keep") == 0 : are_pools_listed();
    if (pool && !is_keeping && strcmp(pool, "none") != 0)
        sgsim_complain("SGSIM_POOL", pool);
    if (is_keeping)
        late_ns = SGSIM_KEPT;
    is_keeping_failed = is_keeping && (!failed || strcmp(failed, "none") != 0);
    if (failed && strcmp(failed, "none") != 0 && strcmp(failed, "keep") != 0)
        sgsim_complain("SGSIM_FAILED", failed);
    if (blocks && sgsim_parse_size(blocks, &bytes))
        block_room_kib = (int64_t)(bytes / SGSIM_KIB);
    else if (blocks)
        sgsim_complain("SGSIM_FRAGMENTED", blocks);
}

/* SGSIM_RATE=22: milliseconds for each GiB. SGSIM_SHRINK=MILLISECONDS:BYTES */
static void configure_pace(void)
{
    const char *rate = getenv("SGSIM_RATE"), *shrink = getenv("SGSIM_SHRINK"),
               *colon = shrink ? strchr(shrink, ':') : NULL;
    size_t milliseconds = 0;
    if (rate && !sgsim_parse_size(rate, &milliseconds))
        sgsim_complain("SGSIM_RATE", rate);
    step_ns = (int64_t)milliseconds * MILLISECOND_NS / (int64_t)(SGSIM_GIB / STEP_BYTES);
    if (colon && sgsim_parse_size(colon + 1, &shrink_bytes))
        shrink_delay_ns = strtol(shrink, NULL, 10) * MILLISECOND_NS;
    else if (shrink)
        sgsim_complain("SGSIM_SHRINK", shrink);
}

void sgsim_machine_configure(void)
{
    const char *path = getenv("SGSIM_MEMINFO"), *late = getenv("SGSIM_LATE_FREE"), *reclaim = getenv("SGSIM_RECLAIM");
    size_t milliseconds = 0;
    if (path && strlen(path) < sizeof meminfo_path)
        memcpy(meminfo_path, path, strlen(path) + 1);
    else if (path)
        sgsim_complain("SGSIM_MEMINFO", path);
    if (late && !sgsim_parse_size(late, &milliseconds))
        sgsim_complain("SGSIM_LATE_FREE", late);
    late_ns = (int64_t)milliseconds * MILLISECOND_NS;
    configure_pool();
    configure_pace();
    is_without_reclaim = reclaim && strcmp(reclaim, "no") == 0;
    if (reclaim && !is_without_reclaim && strcmp(reclaim, "yes") != 0)
        sgsim_complain("SGSIM_RECLAIM", reclaim);
}

bool sgsim_machine_is_fake(void)
{
    return meminfo_path[0] != '\0';
}

/* A place of one's own: the mapping is kept, and the lock with it. */
static bool attach(struct sgsim_books *books)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    while (lock.l_start < SGSIM_PLACES && syscall(SYS_fcntl, books->file, F_OFD_SETLK, &lock) != 0)
        lock.l_start++;
    if (lock.l_start == SGSIM_PLACES)
        return false;
    syscall(SYS_madvise, books->machine, sizeof *books->machine, MADV_DONTFORK);
    attached = books->machine;
    own = &attached->place[lock.l_start];
    sgsim_books_put_all_back(books, own); /* of a dead owner */
    own->late_ns = late_ns;
    own->list_bytes = sgsim.is_integrated ? sgsim.list_bytes : 0;
    if (shrink_delay_ns >= 0) {
        attached->shrink_delay_ns = shrink_delay_ns;
        attached->shrink_kib = (int64_t)(shrink_bytes / SGSIM_KIB);
    }
    if (attached->used <= (uint64_t)lock.l_start)
        attached->used = (uint64_t)lock.l_start + 1;
    books->is_mapped = false;
    return true;
}

static bool open_own(struct sgsim_books *books)
{
    if (!sgsim_books_open(books, meminfo_path, attached))
        return false;
    if (attached || attach(books)) {
        books->own = own;
        return true;
    }
    sgsim_books_close(books);
    return false;
}

static struct sgsim_figures settle_and_close(const struct sgsim_books *books)
{
    struct sgsim_figures sum = sgsim_books_settle(books);
    sgsim_books_close(books);
    settled_ns = sgsim_now_ns();
    return sum;
}

/* Any machine, for tests. */
static bool open_any(struct sgsim_books *books, const char *meminfo)
{
    bool is_own = attached && strcmp(meminfo, meminfo_path) == 0;
    return is_own ? open_own(books) : sgsim_books_open(books, meminfo, NULL);
}

/* ---- what the driver does ---- */

static void note(int64_t *least, int64_t bytes)
{
    *least = bytes < *least ? bytes : *least;
}

/* What a driver can get of the machine: pages that a kernel keeps for movable memory (CMA) are not among them. */
static int64_t room_of(const struct sgsim_books *books, const struct sgsim_figures *sum, enum sgsim_taking how)
{
    int64_t room = is_without_reclaim ? sum->free_kib : sum->available_kib;
    if (how != SGSIM_MAY_FAIL && how != SGSIM_SHARED)
        return INT64_MAX;
    return how == SGSIM_SHARED ? room : room - books->machine->cma_kib;
}

static uint64_t *figure_of(enum sgsim_taking how)
{
    return how == SGSIM_TOUCHED ? &own->touched_kib : how == SGSIM_SHARED ? &own->shared_kib : &own->device_kib;
}

/* A part of a request, of which the machine has given `beyond_kib` so far: from the driver's pool first. */
static CUresult take_part(int64_t kib, enum sgsim_taking how, int64_t *beyond_kib)
{
    struct sgsim_books books;
    if (!open_own(&books))
        return CUDA_SUCCESS;
    struct sgsim_figures sum = sgsim_books_sum(&books);
    bool is_driver = how == SGSIM_MAY_FAIL || how == SGSIM_IN_CALL;
    int64_t pooled = !is_driver ? 0 : kib < sum.kept_kib ? kib : sum.kept_kib;
    int64_t rest = kib - pooled, room = room_of(&books, &sum, how);
    int64_t lists = is_driver ? sgsim_books_lists_kib(own, own->device_kib + (uint64_t)kib) -
                                    sgsim_books_lists_kib(own, own->device_kib)
                              : 0;
    int64_t blocks = is_driver ? block_room_kib - *beyond_kib : INT64_MAX;
    if (how != SGSIM_TOUCHED) {
        note(&least_free, sum.free_kib * 1024);
        note(&least_spare, (sum.free_kib - rest) * 1024);
    }
    bool is_had = rest <= blocks && (room == INT64_MAX || rest + lists <= room);
    if (is_had) {
        *figure_of(how) += (uint64_t)kib;
        books.machine->kept_kib -= pooled;
        *beyond_kib += rest;
    } else if (is_driver && is_keeping_failed) {
        int64_t got = blocks < room ? blocks : room;
        books.machine->kept_kib += got > 0 ? got / SGSIM_BLOCK_KIB * SGSIM_BLOCK_KIB : 0;
    }
    settle_and_close(&books);
    return is_had ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* In steps with a pause behind each, as a driver takes that clears the pages. Other processes' questions wait for its lock. */
static CUresult take_slowly(int64_t kib)
{
    const struct timespec pause = {0, (long)step_ns};
    const int64_t step = STEP_BYTES / SGSIM_KIB;
    int64_t beyond_kib = 0, had = 0;
    CUresult result = CUDA_SUCCESS;
    int gpu = sgsim_books_lock_gpu(meminfo_path);
    while (had < kib && result == CUDA_SUCCESS) {
        int64_t part = kib - had < step ? kib - had : step;
        result = take_part(part, SGSIM_MAY_FAIL, &beyond_kib);
        had += result == CUDA_SUCCESS ? part : 0;
        syscall(SYS_nanosleep, &pause, NULL); /* pace: a driver that takes so long */
    }
    if (result != CUDA_SUCCESS)
        sgsim_machine_give((size_t)had * SGSIM_KIB, SGSIM_MAY_FAIL);
    if (gpu >= 0)
        syscall(SYS_close, gpu);
    return result;
}

CUresult sgsim_machine_take(size_t bytes, enum sgsim_taking how)
{
    int64_t kib = (int64_t)(sgsim_round_up(bytes, SGSIM_KIB) / SGSIM_KIB), beyond_kib = 0;
    if (bytes == 0 || !sgsim_machine_is_fake())
        return CUDA_SUCCESS;
    return step_ns != 0 && how == SGSIM_MAY_FAIL ? take_slowly(kib) : take_part(kib, how, &beyond_kib);
}

void sgsim_machine_give(size_t bytes, enum sgsim_taking how)
{
    struct sgsim_books books = {.machine = attached};
    uint64_t kib = sgsim_round_up(bytes, SGSIM_KIB) / SGSIM_KIB;
    if (bytes == 0 || !attached)
        return;
    bool is_open = open_own(&books);
    if (how == SGSIM_SHARED)
        own->shared_kib -= kib;
    else if (how == SGSIM_TOUCHED)
        sgsim_books_put_touched_back(own, kib);
    else
        sgsim_books_put_back(&books, own, kib);
    if (is_open)
        settle_and_close(&books);
}

static void lock_own(int64_t kib)
{
    struct sgsim_books books;
    if (kib == 0 || !open_own(&books))
        return;
    own->registered_kib += (uint64_t)kib;
    settle_and_close(&books);
}

void sgsim_machine_lock(size_t bytes)
{
    lock_own((int64_t)(sgsim_round_up(bytes, SGSIM_KIB) / SGSIM_KIB));
}

void sgsim_machine_unlock(size_t bytes)
{
    lock_own(-(int64_t)(sgsim_round_up(bytes, SGSIM_KIB) / SGSIM_KIB));
}

size_t sgsim_machine_free_bytes(void)
{
    struct sgsim_books books;
    int gpu = step_ns != 0 ? sgsim_books_lock_gpu(meminfo_path) : -1;
    if (gpu >= 0)
        syscall(SYS_close, gpu);
    if (!open_own(&books))
        return 0;
    int64_t left = settle_and_close(&books).free_kib;
    return left > 0 ? (size_t)left * 1024 : 0;
}

void sgsim_machine_settle_if_due(void)
{
    struct sgsim_books books;
    if (!attached || sgsim_now_ns() - settled_ns < MILLISECOND_NS || !open_own(&books))
        return;
    settle_and_close(&books);
}

void sgsim_machine_forget(void)
{
    attached = NULL;
    own = NULL;
}

int64_t sgsim_machine_least_free(void)
{
    return least_free;
}

int64_t sgsim_machine_least_spare(void)
{
    return least_spare;
}

int64_t sgsim_machine_least_available(void)
{
    return attached ? attached->least_available_kib * 1024 : SGSIM_NO_CALL;
}

/* At exit all goes back at once; what the process does after this is paid back when it is gone. */
static void __attribute__((destructor)) leave(void)
{
    if (!sgsim.is_initialised || !sgsim_quiet_try_enter())
        return;
    struct sgsim_books books;
    if (attached && open_own(&books)) {
        sgsim_books_put_all_back(&books, own);
        settle_and_close(&books);
    }
    sgsim_quiet_leave();
}

/* ---- what tests ask and do ---- */

long sgsim_settle(const char *meminfo)
{
    struct sgsim_books books;
    long living = -1;
    sgsim_quiet_enter();
    if (open_any(&books, meminfo)) {
        living = (long)sgsim_books_settle(&books).living;
        sgsim_books_close(&books);
    }
    sgsim_quiet_leave();
    return living;
}

long long sgsim_machine_bytes(const char *meminfo, const char *what)
{
    struct sgsim_books books;
    int64_t kib = -1;
    sgsim_quiet_enter();
    if (open_any(&books, meminfo)) {
        struct sgsim_figures sum = sgsim_books_settle(&books);
        kib = strcmp(what, "free") == 0              ? sum.free_kib
              : strcmp(what, "available") == 0       ? sum.available_kib
              : strcmp(what, "cached") == 0          ? sum.cached_kib
              : strcmp(what, "taken") == 0           ? (int64_t)sum.taken_kib
              : strcmp(what, "late") == 0            ? (int64_t)sum.late_kib
              : strcmp(what, "kept") == 0            ? sum.kept_kib
              : strcmp(what, "shared") == 0          ? sum.shared_kib
              : strcmp(what, "locked") == 0          ? sum.locked_kib
              : strcmp(what, "swapped") == 0         ? books.machine->swapped_kib
              : strcmp(what, "least_available") == 0 ? books.machine->least_available_kib
                                                     : -1;
        sgsim_books_close(&books);
    }
    sgsim_quiet_leave();
    return kib * 1024;
}

void sgsim_machine_move(const char *meminfo, const char *what, long long bytes)
{
    struct sgsim_books books;
    int64_t kib = bytes / 1024;
    sgsim_quiet_enter();
    if (open_any(&books, meminfo)) {
        bool is_cache = strcmp(what, "cached") == 0, is_idle = strcmp(what, "idle") == 0;
        bool is_anonymous = is_idle || strcmp(what, "other") == 0;
        bool is_other = is_anonymous || strcmp(what, "unexplained") == 0;
        books.machine->anonymous_kib += is_anonymous ? kib : 0;
        books.machine->idle_kib += is_idle ? kib : 0;
        books.machine->cached_kib += is_cache ? kib : 0;
        books.machine->free_kib -= is_cache || is_other ? kib : 0;
        books.machine->available_kib -= is_other ? kib : 0;
        books.machine->kept_kib += strcmp(what, "kept") == 0 ? kib : 0;
        struct sgsim_figures sum = sgsim_books_settle(&books);
        if (strcmp(what, "least_available") == 0)
            books.machine->least_available_kib = sum.available_kib;
        sgsim_books_close(&books);
    }
    sgsim_quiet_leave();
}
