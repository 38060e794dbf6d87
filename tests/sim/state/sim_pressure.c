/*
 * sim_pressure.c - see sim_pressure.h.
 *
 * The page cache goes first (sim_books.c), then the idle memory of others as far as there is swap, then the driver's pool: its
 * shrinker is asked late, and gives a bounded number of blocks each time.
 */
#define _GNU_SOURCE
#include "sim_pressure.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BATCH 16 /* low watermarks: a kernel stops reclaiming some way above the lowest */
#define DELAY_NS INT64_C(20000000)

void sgsim_pressure_begin(struct sgsim_machine *machine)
{
    machine->shrink_delay_ns = DELAY_NS;
    machine->shrink_kib = BATCH * machine->low_kib;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t swap_out(struct sgsim_machine *machine, int64_t wanted_kib)
{
    int64_t kib = smaller(smaller(wanted_kib, machine->idle_kib), machine->swap_kib - machine->swapped_kib);
    if (kib <= 0)
        return 0;
    machine->idle_kib -= kib;
    machine->swapped_kib += kib;
    machine->anonymous_kib -= kib;
    machine->free_kib += kib;
    machine->available_kib += kib;
    return kib;
}

/* In whole blocks, but for the last one. */
static void shrink(struct sgsim_machine *machine, int64_t wanted_kib)
{
    int64_t kib = (int64_t)sgsim_round_up((size_t)wanted_kib, SGSIM_BLOCK_KIB);
    kib = smaller(smaller(kib, machine->shrink_kib), machine->kept_kib);
    machine->kept_kib -= kib;
}

void sgsim_pressure_relieve(struct sgsim_machine *machine, int64_t left_kib, int64_t now_ns)
{
    if (left_kib >= machine->low_kib) {
        machine->pressure_ns = 0;
        return;
    }
    left_kib += swap_out(machine, machine->low_kib - left_kib);
    if (machine->pressure_ns == 0)
        machine->pressure_ns = now_ns;
    if (left_kib < machine->low_kib && now_ns - machine->pressure_ns >= machine->shrink_delay_ns) {
        shrink(machine, BATCH * machine->low_kib - left_kib);
        machine->pressure_ns = now_ns;
    }
}

/* 1: the page cache, 2: what shrinkers have, 3: both. */
static void drop_caches(struct sgsim_machine *machine, long what)
{
    int64_t cache = smaller(machine->available_kib - machine->free_kib, machine->cached_kib);
    if (what & 1 && cache > machine->reclaimed_kib)
        machine->reclaimed_kib = cache;
    if (what & 2)
        machine->kept_kib = 0;
}

void sgsim_pressure_obey(struct sgsim_machine *machine, const char *meminfo)
{
    static const char name[] = "/sys/vm/drop_caches";
    char path[SGSIM_PATH_ROOM + sizeof name], text[8] = "";
    const char *slash = strrchr(meminfo, '/');
    size_t length = slash ? (size_t)(slash - meminfo) : 0;
    struct stat stat;
    memcpy(path, meminfo, length);
    memcpy(path + length, name, sizeof name);
    int file = slash ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0) : -1;
    if (file < 0)
        return;
    int64_t written_ns =
        syscall(SYS_fstat, file, &stat) == 0 ? stat.st_mtim.tv_sec * INT64_C(1000000000) + stat.st_mtim.tv_nsec : 0;
    if (written_ns != machine->dropped_ns && syscall(SYS_read, file, text, sizeof text - 1) > 0) {
        machine->dropped_ns = written_ns;
        drop_caches(machine, strtol(text, NULL, 10));
    }
    syscall(SYS_close, file);
}
