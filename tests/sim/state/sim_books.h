/*
 * sim_books.h - the file in which several simulated processes keep what they hold of one machine: see sim_books.c.
 *
 * All with the driver's lock held; between sgsim_books_open and _close the machine's lock is held too.
 */
#ifndef SGSIM_SIM_BOOKS_H
#define SGSIM_SIM_BOOKS_H

#include "sim_core.h"

#define SGSIM_PLACES 512
#define SGSIM_LATE_ROOM 61
#define SGSIM_KEPT INT64_MAX /* as late_ns: the driver keeps what is freed until there is pressure */
#define SGSIM_PATH_ROOM 4096
#define SGSIM_BLOCK_KIB 2048 /* in which a driver's pool takes and gives */

struct sgsim_late {
    int64_t due_ns; /* CLOCK_MONOTONIC */
    uint64_t kib;
};

/* What one process holds. Only what is the driver's goes into its pool. */
struct sgsim_place {
    uint64_t device_kib;
    uint64_t touched_kib;    /* managed memory */
    uint64_t shared_kib;     /* pinned memory that is the process's shared memory */
    uint64_t registered_kib; /* its own memory, locked */
    int64_t late_ns;         /* SGSIM_LATE_FREE of its owner, or SGSIM_KEPT */
    uint64_t list_bytes;     /* of bookkeeping for each 4 KiB of device memory */
    struct sgsim_late late[SGSIM_LATE_ROOM];
};
_Static_assert(sizeof(struct sgsim_place) == 1024, "places are whole kilobytes");

struct sgsim_machine {
    uint64_t magic;
    int64_t free_kib, available_kib, cached_kib; /* with nothing taken and nothing reclaimed */
    int64_t reclaimed_kib;                       /* cache that had to go; it does not come back */
    int64_t least_available_kib;
    uint64_t used;    /* places ever used */
    int64_t low_kib;  /* below this much available memory the kernel asks the driver for its pool */
    int64_t kept_kib; /* freed, and in the driver's pool */
    int64_t holder;   /* the thread that took the lock last */
    int64_t anonymous_kib, shmem_kib, locked_kib, cma_kib; /* with nothing taken */
    int64_t idle_kib;                                      /* the part of the anonymous memory that nobody will touch */
    int64_t swap_kib, swapped_kib;       /* SwapFree at first, and what of the idle memory is there by now */
    int64_t shrink_delay_ns, shrink_kib; /* SGSIM_SHRINK */
    int64_t pressure_ns; /* since when memory is short, or when the pool shrank last; 0: it is not short */
    int64_t dropped_ns;  /* of the last write to drop_caches that was obeyed */
    uint64_t padding[107];
    struct sgsim_place place[SGSIM_PLACES];
};

struct sgsim_figures {
    int64_t free_kib, available_kib, cached_kib; /* negative: that much is owed */
    uint64_t taken_kib, late_kib, living;
    int64_t kept_kib, shared_kib, locked_kib;
};

struct sgsim_books {
    struct sgsim_machine *machine;
    const struct sgsim_place *own; /* NULL if the caller has none in this machine */
    int meminfo, file;             /* descriptors */
    bool is_mapped;                /* for this opening alone */
};

int64_t sgsim_now_ns(void); /* CLOCK_MONOTONIC */

/* `mapped` is the caller's lasting mapping of the same machine, or NULL. False: the books cannot be had. */
bool sgsim_books_open(struct sgsim_books *books, const char *meminfo, struct sgsim_machine *mapped);
void sgsim_books_close(const struct sgsim_books *books);

/* Takes device memory away from a place: late, or into the pool of the driver, where its owner's driver does that. */
void sgsim_books_put_back(const struct sgsim_books *books, struct sgsim_place *place, uint64_t kib);
void sgsim_books_put_touched_back(struct sgsim_place *place,
                                  uint64_t kib); /* the same of managed memory: into no pool */

/* The same for everything that a place holds. */
void sgsim_books_put_all_back(const struct sgsim_books *books, struct sgsim_place *place);

/* What the machine has now. settle also writes it to the meminfo. */
struct sgsim_figures sgsim_books_sum(const struct sgsim_books *books);
struct sgsim_figures sgsim_books_settle(const struct sgsim_books *books);

/* The driver's lock of the GPU, over all processes of the machine: a descriptor to be closed, or -1. */
int sgsim_books_lock_gpu(const char *meminfo);

/* What so much device memory costs in lists, by the place's owner. */
int64_t sgsim_books_lists_kib(const struct sgsim_place *place, uint64_t device_kib);

#endif
