/*
 * sim_hold.c - see sim_hold.h.
 *
 * Who waits for a file appends one byte to FILE.held first, so that a test knows how many calls are inside the driver
 * by now without sleeping. A rule is written once and never moved: a waiting call may read it without the lock.
 */
#define _GNU_SOURCE
#include "sim_hold.h"

#include "cuda_sim.h"
#include "sim_faults.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_HOLDS 256
#define PATH_ROOM 512
#define EVERY_CALL (-1L)
#define FILE_STEP_NS 500000
#define DAWDLE_NS 1000000

struct sgsim_hold {
    enum sgsim_function function;
    long remaining; /* calls until it strikes; EVERY_CALL, or 0: not any more */
    size_t milliseconds;
    char path[PATH_ROOM]; /* "": by time */
    void (*work)(void);   /* or NULL: to be called instead */
    bool is_behind;
};

static struct sgsim_hold holds[MAX_HOLDS];
static size_t hold_count;
static size_t dawdle; /* (atomic) one step in so many, 0: none */

/* `until`, of `length` bytes, is a number of milliseconds, or the name of a file, with a "/" in it. */
static bool plan(int function, long nth, const char *until, size_t length)
{
    char text[PATH_ROOM];
    if (length >= sizeof text || hold_count == MAX_HOLDS)
        return false;
    memcpy(text, until, length);
    text[length] = '\0';
    struct sgsim_hold *hold = &holds[hold_count];
    bool is_file = strchr(text, '/') != NULL;
    if (!is_file && !sgsim_parse_size(text, &hold->milliseconds))
        return false;
    if (is_file)
        memcpy(hold->path, text, length + 1);
    hold->function = (enum sgsim_function)function;
    hold->remaining = nth;
    hold_count++;
    return true;
}

bool sgsim_hold_is_behind(const struct sgsim_hold *hold)
{
    return hold->is_behind;
}

const struct sgsim_hold *sgsim_hold_due(enum sgsim_function function)
{
    const struct sgsim_hold *due = NULL;
    for (size_t i = 0; i < hold_count; i++) {
        if (holds[i].function != function || holds[i].remaining == 0)
            continue;
        if (holds[i].remaining == EVERY_CALL || --holds[i].remaining == 0)
            due = &holds[i];
    }
    return due;
}

static void say_held(const struct sgsim_hold *hold)
{
    char path[PATH_ROOM + 8];
    size_t length = strlen(hold->path);
    memcpy(path, hold->path, length);
    memcpy(path + length, ".held", sizeof ".held");
    long file = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file >= 0) {
        syscall(SYS_write, file, "x", 1L);
        syscall(SYS_close, file);
    }
}

/* A signal handler's return does not end it. */
void sgsim_hold_wait(const struct sgsim_hold *hold)
{
    struct timespec left = {(time_t)(hold->milliseconds / 1000), (long)(hold->milliseconds % 1000) * 1000000};
    const struct timespec step = {0, FILE_STEP_NS};
    if (hold->work) {
        hold->work();
        return;
    }
    if (hold->path[0] == '\0') {
        while (syscall(SYS_nanosleep, &left, &left) != 0) /* pace: a driver that takes so long */
            ;
        return;
    }
    say_held(hold);
    while (syscall(SYS_faccessat, AT_FDCWD, hold->path, F_OK) != 0)
        syscall(SYS_nanosleep, &step, NULL); /* poll: the file is there */
}

/* Threads come by here in any order, and each takes the next number: a step is late by chance, and not again at the next run. */
void sgsim_hold_dawdle(void)
{
    static uint64_t drawn;
    size_t one_in = __atomic_load_n(&dawdle, __ATOMIC_RELAXED);
    if (one_in == 0)
        return;
    uint64_t number = __atomic_add_fetch(&drawn, UINT64_C(0x9e3779b97f4a7c15), __ATOMIC_RELAXED); /* splitmix64 */
    number = (number ^ number >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    number = (number ^ number >> 27) * UINT64_C(0x94d049bb133111eb);
    number ^= number >> 31;
    const struct timespec late = {0, (long)(number / one_in % DAWDLE_NS)};
    if (number % one_in == 0)
        syscall(SYS_nanosleep, &late, NULL); /* pace: a driver that is late now and then */
}

/* "symbol:N:UNTIL"; answers where the next item begins, or NULL if this one makes no sense. */
static const char *plan_item(const char *text)
{
    const char *colon = strchr(text, ':');
    int function = colon ? sgsim_find_function(text, (size_t)(colon - text)) : -1;
    const char *nth = colon ? colon + 1 : "", *until = strchr(nth, ':');
    if (function < 0 || !until)
        return NULL;
    long count = *nth == '*' ? EVERY_CALL : strtol(nth, NULL, 10);
    size_t length = strcspn(++until, ",");
    if (count == 0 || !plan(function, count, until, length))
        return NULL;
    return until[length] == ',' ? until + length + 1 : until + length;
}

void sgsim_hold_configure(void)
{
    const char *text = getenv("SGSIM_HOLD"), *rate = getenv("SGSIM_DAWDLE");
    size_t one_in = 0;
    if (rate && !sgsim_parse_size(rate, &one_in))
        sgsim_complain("SGSIM_DAWDLE", rate);
    __atomic_store_n(&dawdle, one_in, __ATOMIC_RELAXED);
    while (text && *text) {
        const char *next = plan_item(text);
        if (!next)
            sgsim_complain("SGSIM_HOLD", text);
        text = next;
    }
}

void sgsim_hold(const char *symbol, int nth, const char *until)
{
    int function = sgsim_find_function(symbol, strlen(symbol));
    bool is_sound = function >= 0;
    sgsim_quiet_enter();
    for (size_t i = 0; i < hold_count && nth == 0; i++)
        if (holds[i].function == (enum sgsim_function)function)
            holds[i].remaining = 0;
    if (is_sound && nth != 0)
        is_sound = plan(function, nth < 0 ? EVERY_CALL : nth, until, strlen(until));
    sgsim_quiet_leave();
    if (!is_sound)
        sgsim_complain("sgsim_hold", symbol);
}

static void plan_work(const char *name, const char *symbol, int nth, void (*work)(void), bool is_behind)
{
    int function = sgsim_find_function(symbol, strlen(symbol));
    sgsim_quiet_enter();
    bool is_sound = function >= 0 && nth > 0 && hold_count < MAX_HOLDS;
    if (is_sound)
        holds[hold_count++] = (struct sgsim_hold){
            .function = (enum sgsim_function)function, .remaining = nth, .work = work, .is_behind = is_behind};
    sgsim_quiet_leave();
    if (!is_sound)
        sgsim_complain(name, symbol);
}

void sgsim_inside(const char *symbol, int nth, void (*work)(void))
{
    plan_work("sgsim_inside", symbol, nth, work, false);
}

void sgsim_behind(const char *symbol, int nth, void (*work)(void))
{
    plan_work("sgsim_behind", symbol, nth, work, true);
}
