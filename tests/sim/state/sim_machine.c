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
#include <unistd.h>

#define MILLISECOND_NS INT64_C(1000000)

static char meminfo_path[SGSIM_PATH_ROOM]; /* a copy: programs clear their environment */
static int64_t late_ns, settled_ns;
static bool is_without_reclaim;
static struct sgsim_machine *attached; /* mapped for good, with a place of one's own */
static struct sgsim_place *own;
static int64_t least_free = SGSIM_NO_CALL, least_spare = SGSIM_NO_CALL;

void sgsim_machine_configure(void)
{
    const char *path = getenv("SGSIM_MEMINFO"), *late = getenv("SGSIM_LATE_FREE"), *reclaim = getenv("SGSIM_RECLAIM");
    const char *pool = getenv("SGSIM_POOL");
    size_t milliseconds = 0;
    if (path && strlen(path) < sizeof meminfo_path)
        memcpy(meminfo_path, path, strlen(path) + 1);
    else if (path)
        sgsim_complain("SGSIM_MEMINFO", path);
    if (late && !sgsim_parse_size(late, &milliseconds))
        sgsim_complain("SGSIM_LATE_FREE", late);
    late_ns = (int64_t)milliseconds * MILLISECOND_NS;
    if (pool && strcmp(pool, "keep") == 0)
        late_ns = SGSIM_KEPT;
    else if (pool && strcmp(pool, "none") != 0)
        sgsim_complain("SGSIM_POOL", pool);
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

CUresult sgsim_machine_take(size_t bytes, enum sgsim_taking how)
{
    struct sgsim_books books;
    CUresult result = CUDA_SUCCESS;
    int64_t kib = (int64_t)(sgsim_round_up(bytes, SGSIM_KIB) / SGSIM_KIB);
    if (bytes == 0 || !open_own(&books))
        return CUDA_SUCCESS;
    struct sgsim_figures sum = sgsim_books_sum(&books);
    int64_t pooled = how == SGSIM_TOUCHED ? 0
                     : kib < sum.kept_kib ? kib
                                          : sum.kept_kib; /* served without the machine */
    if (how != SGSIM_TOUCHED) {
        note(&least_free, sum.free_kib * 1024);
        note(&least_spare, (sum.free_kib - (kib - pooled)) * 1024);
    }
    if (how == SGSIM_MAY_FAIL && kib - pooled > (is_without_reclaim ? sum.free_kib : sum.available_kib)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        own->taken_kib += (uint64_t)kib;
        own->touched_kib += how == SGSIM_TOUCHED ? (uint64_t)kib : 0;
        books.machine->kept_kib -= pooled;
    }
    settle_and_close(&books);
    return result;
}

void sgsim_machine_give(size_t bytes, enum sgsim_taking how)
{
    struct sgsim_books books = {.machine = attached};
    uint64_t kib = sgsim_round_up(bytes, SGSIM_KIB) / SGSIM_KIB;
    if (bytes == 0 || !attached)
        return;
    bool is_open = open_own(&books);
    if (how == SGSIM_TOUCHED)
        own->touched_kib -= kib;
    if (how == SGSIM_TOUCHED && own->late_ns == SGSIM_KEPT)
        own->taken_kib -= kib;
    else
        sgsim_books_put_back(&books, own, kib);
    if (!is_open)
        return;
    settle_and_close(&books);
}

size_t sgsim_machine_free_bytes(void)
{
    struct sgsim_books books;
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
        bool is_cache = strcmp(what, "cached") == 0, is_other = strcmp(what, "other") == 0;
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
