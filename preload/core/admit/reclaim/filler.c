/*
 * filler.c - see filler.h.
 */
#include "admit/reclaim/filler.h"

#include "base/atomics.h"
#include "base/lock.h"
#include "admit/reclaim/raw_thread.h"
#include "base/clock.h"
#include "base/syscall.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>

#define SILENCE_LONGEST_NS UINT64_C(500000000)
#define FILL_LONGEST_NS UINT64_C(2000000000)
#define END_LONGEST_MS 5000
#define STOP_LONGEST_MS 2000
#define POLL_NS 10000000

enum { POPULATE_WRITE = 23 /* MADV_POPULATE_WRITE, Linux 5.14 */ };

/* Changed under the lock; atomic fields are also read without it. The filler never takes the lock. */
static struct {
    struct sg_lock lock;
    struct sg_raw_thread filling;
    char *memory; /* (atomic) NULL: none. If the filler was killed, the next start releases it */
    uint64_t bytes;
    uint64_t wanted_bytes; /* (atomic) */
    uint32_t order, done;  /* (atomic, futexes) number of the last order given, and of the last one carried out */
    uint32_t has_failed;   /* (atomic) */
    uint32_t is_over;      /* (atomic) */
    uint32_t number;
    uint32_t pid; /* of a process that has not been reaped; 0: none */
    bool is_apart;
    void (*let_go)(void);
} filler SG_AT_FORK;

/* ---- the filler -------------------------------------------------------------------------------------------------- */

static long parent(void)
{
    return sg_syscall(SYS_getppid, 0, 0, 0, 0, 0, 0);
}

/* Leaves the process group, whose signals are not meant for the filler. Closes the inherited descriptors, so that the
 * filler does not keep the program's files open. */
static void stand_apart(void)
{
    (void)sg_syscall(SYS_setsid, 0, 0, 0, 0, 0, 0);
    (void)sg_syscall(SYS_close_range, 0, (long)UINT32_MAX, 0, 0, 0, 0);
}

static void carry_out(uint64_t *filled_bytes)
{
    uint64_t wanted = sg_load(&filler.wanted_bytes);
    if (wanted > *filled_bytes &&
        sg_sys_madvise(filler.memory + *filled_bytes, wanted - *filled_bytes, POPULATE_WRITE) != 0)
        sg_store(&filler.has_failed, 1u);
    *filled_bytes = wanted;
}

static void run(void *unused)
{
    const struct timespec poll_step = {0, POLL_NS};
    uint32_t done = sg_load(&filler.done);
    uint64_t filled = 0, last_order_ns = sg_clock_ns(CLOCK_MONOTONIC);
    long parent_at_first = parent();
    (void)unused;
    (void)sg_syscall(SYS_prctl, 15 /* PR_SET_NAME */, (long)"sparkguard", 0, 0, 0, 0);
    if (filler.is_apart)
        stand_apart();
    while (sg_load(&filler.is_over) == 0 && parent() == parent_at_first) {
        uint32_t order = sg_load(&filler.order);
        if (order != done) {
            carry_out(&filled);
            done = order;
            sg_store(&filler.done, done);
            (void)sg_sys_futex(&filler.done, FUTEX_WAKE_PRIVATE, 1, NULL);
            last_order_ns = sg_clock_ns(CLOCK_MONOTONIC);
        } else if (sg_clock_ns(CLOCK_MONOTONIC) - last_order_ns >= SILENCE_LONGEST_NS) {
            break;
        } else {
            (void)sg_sys_futex(&filler.order, FUTEX_WAIT_PRIVATE, done, &poll_step);
        }
    }
    char *memory = filler.memory;
    sg_store(&filler.memory, NULL); /* before munmap: if the filler is killed then, nobody may unmap again */
    (void)sg_sys_munmap(memory, filler.bytes);
    filler.let_go();
}

/* ---- this process ------------------------------------------------------------------------------------------------ */

/* Mapped PROT_NONE and unlocked first: under mlockall, writable memory would be populated at once. */
char *sg_filler_reserve(uint64_t bytes)
{
    char *memory = sg_sys_mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sg_is_error(memory))
        return NULL;
    if (sg_syscall(SYS_munlock, (long)memory, (long)bytes, 0, 0, 0, 0) != 0 ||
        sg_sys_madvise(memory, bytes, MADV_DONTFORK) != 0 ||
        sg_syscall(SYS_mprotect, (long)memory, (long)bytes, PROT_READ | PROT_WRITE, 0, 0, 0) != 0) {
        (void)sg_sys_munmap(memory, bytes);
        return NULL;
    }
    (void)sg_sys_madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static bool start(void)
{
    filler.is_apart = true;
    if (sg_raw_thread_begin_apart(&filler.filling, run, NULL)) {
        filler.pid = sg_load(&filler.filling.tid);
        return true;
    }
    filler.is_apart = false;
    return sg_raw_thread_begin(&filler.filling, run, NULL);
}

static void clean_up(void)
{
    sg_raw_thread_reap(&filler.pid);
    if (sg_load(&filler.memory) != NULL)
        (void)sg_sys_munmap(filler.memory, filler.bytes);
    sg_store(&filler.memory, NULL);
}

uint32_t sg_filler_begin(uint64_t bytes, void (*let_go)(void))
{
    struct sg_lock_state lock;
    uint32_t number = 0;
    sg_lock_acquire(&filler.lock, &lock);
    if (sg_load(&filler.filling.is_running) == 0) {
        clean_up();
        filler.bytes = bytes;
        filler.let_go = let_go;
        sg_store(&filler.wanted_bytes, UINT64_C(0));
        sg_store(&filler.has_failed, 0u);
        sg_store(&filler.is_over, 0u);
        sg_store(&filler.done, sg_load(&filler.order));
        sg_store(&filler.memory, sg_filler_reserve(bytes));
        if (sg_load(&filler.memory) != NULL && start())
            number = filler.number = filler.number == UINT32_MAX ? 1 : filler.number + 1;
        else
            clean_up();
    }
    sg_lock_release(&filler.lock, &lock);
    return number;
}

/* Gives the filler an order and stores its number in *order. False: the filler `number` is gone, and got no order. */
static bool give_order(uint32_t number, uint64_t more_bytes, bool is_last, uint32_t *order)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&filler.lock, &lock);
    bool is_given = filler.number == number && sg_load(&filler.filling.is_running) != 0;
    if (is_given) {
        sg_fetch_add(&filler.wanted_bytes, more_bytes);
        if (is_last)
            sg_store(&filler.is_over, 1u);
        *order = sg_fetch_add(&filler.order, 1u) + 1;
    }
    sg_lock_release(&filler.lock, &lock);
    (void)sg_sys_futex(&filler.order, FUTEX_WAKE_PRIVATE, 1, NULL);
    return is_given;
}

bool sg_filler_fill(uint32_t number, uint64_t bytes)
{
    const struct timespec poll_step = {0, POLL_NS};
    uint64_t until_ns = sg_clock_ns(CLOCK_MONOTONIC) + FILL_LONGEST_NS;
    uint32_t order, done;
    if (!give_order(number, bytes, false, &order))
        return false;
    while (bytes != 0 && (done = sg_load(&filler.done)) != order) {
        if (sg_load(&filler.filling.is_running) == 0 || sg_clock_ns(CLOCK_MONOTONIC) >= until_ns)
            return false;
        (void)sg_sys_futex(&filler.done, FUTEX_WAIT_PRIVATE, done, &poll_step);
    }
    return sg_load(&filler.has_failed) == 0;
}

void sg_filler_end(uint32_t number)
{
    struct sg_lock_state lock;
    uint32_t order;
    if (give_order(number, 0, true, &order))
        (void)sg_raw_thread_wait(&filler.filling, END_LONGEST_MS);
    sg_lock_acquire(&filler.lock, &lock);
    if (filler.number == number && sg_load(&filler.filling.is_running) == 0)
        clean_up();
    sg_lock_release(&filler.lock, &lock);
}

void sg_filler_stop(void)
{
    uint32_t filling = sg_load(&filler.filling.tid);
    if (sg_load(&filler.filling.is_running) == 0 || filling == 0)
        return;
    sg_store(&filler.is_over, 1u);
    (void)sg_sys_futex(&filler.order, FUTEX_WAKE_PRIVATE, 1, NULL);
    if (sg_raw_thread_wait(&filler.filling, STOP_LONGEST_MS) && sg_load(&filler.filling.is_running) != 0 &&
        filler.is_apart && sg_load(&filler.filling.tid) == filling)
        (void)sg_syscall(SYS_kill, filling, SIGKILL, 0, 0, 0, 0);
}

void sg_filler_atfork_child(void)
{
    sg_lock_reset(&filler.lock);
    filler.pid = 0;
    sg_raw_thread_atfork_child(&filler.filling);
    filler.number++; /* the thread that uses the filler exists in the parent only */
    sg_store(&filler.memory, NULL);
}
