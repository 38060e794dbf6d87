/*
 * lifecycle.c - set-up, fork and end of the process.
 *
 * Set-up is lazy: the first heap call of the process comes long before our constructor, which runs after those of all
 * other libraries. The constructor only reads the options, names the job and registers handlers.
 */
#include "lifecycle.h"

#include "admission.h"
#include "context_memory.h"
#include "history.h"
#include "index.h"
#include "helper.h"
#include "ledger.h"
#include "log.h"
#include "map_fork.h"
#include "phase.h"
#include "pool_memory.h"
#include "real.h"
#include "rescue.h"
#include "segment.h"
#include "sites.h"
#include "syscall.h"
#include "text.h"
#include "timeline.h"
#include "vmm.h"
#include "watchdog.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- fork --------------------------------------------------------------------------------------------------------- */

enum { FORK_LOCKS = 4, MAPS = 2 };

/* In the order in which they nest elsewhere: a decision looks at the map, and what leaves the map is promised no more. */
static struct sg_lock *const fork_lock[FORK_LOCKS] = {&sg_vmm_lock, &sg_admission_lock, [MAPS] = &sg_index_maps_lock,
                                                      &sg_promises_lock};

/* Written by the thread that holds the locks, between its handlers. */
static struct {
    struct sg_lock_state state[FORK_LOCKS];
    bool is_held[FORK_LOCKS];
    bool is_child_begun; /* a handler that ran before ours in the child has allocated */
} at_fork;

/* The locks are taken so that the child gets the index whole; nobody holds one for long, but a debugger may have stopped
 * the holder, so not without bound. */
static void before_fork(void)
{
    struct sg_lock_state state[FORK_LOCKS];
    bool is_held[FORK_LOCKS];
    (void)sg_watchdog_stop();
    (void)sg_history_stop();
    for (int i = 0; i < FORK_LOCKS; i++)
        is_held[i] = sg_lock_acquire_within(fork_lock[i], &state[i], 2000000000u);
    memcpy(at_fork.state, state, sizeof state); /* not before: another thread may be between its handlers */
    memcpy(at_fork.is_held, is_held, sizeof is_held);
    at_fork.is_child_begun = false;
    sg_lock_begin_fork();
    sg_ledger_before_fork();
    sg_sites_before_fork();
}

static void unlock_after_fork(void)
{
    struct sg_lock_state state[FORK_LOCKS];
    bool is_held[FORK_LOCKS];
    memcpy(state, at_fork.state, sizeof state);
    memcpy(is_held, at_fork.is_held, sizeof is_held);
    sg_lock_end_fork();
    for (int i = FORK_LOCKS - 1; i >= 0; i--)
        if (is_held[i])
            sg_lock_release(fork_lock[i], &state[i]);
}

/* The child's numbers begin with the parent's; everything else about the segment is its own. */
static void begin_child(bool is_map_whole)
{
    if (!sg_segment_refork()) {
        sg_options.is_disabled = 1; /* the window is still the parent's: keep away from it */
        return;
    }
    sg_thread_refork();
    sg_watchdog_refork();
    sg_history_refork();
    sg_rescue_refork();
    sg_admission_refork();
    sg_timeline_refork();
    sg_phase_refork();
    sg_sites_refork();
    sg_index_refork(is_map_whole);
    if (is_map_whole)
        sg_map_refork();
    sg_ledger_refork();
    sg_vmm_refork();
    sg_pool_refork();
    sg_context_refork();
}

static void after_fork_in_child(void)
{
    bool is_map_whole = at_fork.is_held[MAPS], is_begun = at_fork.is_child_begun;
    unlock_after_fork();
    if (!is_begun)
        begin_child(is_map_whole);
}

/* The first to notice is a slow path: after a raw clone, or in another library's handler that runs before ours. */
void sg_lifecycle_raw_fork(void)
{
    if (sg_lock_is_forking()) {
        at_fork.is_child_begun = true;
        begin_child(at_fork.is_held[MAPS]);
        return;
    }
    bool is_map_whole = sg_load(&sg_index_maps_lock.word) == 0;
    sg_ledger_before_fork();
    sg_sites_before_fork();
    begin_child(is_map_whole);
}

/* Those registered first run last before a fork, and first behind it. So must ours: else the thread that forks has our locks while
 * it waits for an allocator's, in the handler of that, and another thread has that and waits in munmap for ours. */
void sg_lifecycle_register_fork(void)
{
    static uint32_t is_done SG_AT_START;
    uint32_t not_done = 0;
    if (!sg_options_are_read())
        sg_options_read(environ);
    if (!sg_options.is_disabled && sg_cas_u32(&is_done, &not_done, 1))
        (void)pthread_atfork(before_fork, unlock_after_fork, after_fork_in_child);
}

/* ---- the end ------------------------------------------------------------------------------------------------------ */

static void print_summary(void)
{
    char line[512];
    struct sg_text text = sg_text_begin(line, sizeof line);
    uint64_t refused = 0;
    sg_text_add(&text, "sparkguard: job ");
    sg_text_add(&text, sg_options.job);
    sg_text_add(&text, ", process ");
    sg_text_add_number(&text, sg_sys_getpid());
    sg_text_add(&text, ": peak ");
    const struct sg_peak *peak = &sg_own->peak[sg_load(&sg_own->peak_index) % 2];
    sg_text_add_size(&text, peak->total_bytes);
    const char *before = " (";
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++) {
        static const char *const names[] = {
#define SG_DOMAIN(ID, name, bounded, help) #name,
#include "domains.def"
#undef SG_DOMAIN
        };
        refused += sg_load(&sg_own->domain[i].refused_count);
        if (peak->domain_bytes[i] == 0)
            continue;
        sg_text_add(&text, before);
        sg_text_add(&text, names[i]);
        sg_text_add(&text, " ");
        sg_text_add_size(&text, peak->domain_bytes[i]);
        before = ", ";
    }
    sg_text_add(&text, before[0] == ',' ? "), " : ", ");
    sg_text_add_number(&text, refused);
    sg_text_add(&text, refused == 1 ? " request refused" : " requests refused");
    sg_log_line(line);
}

static void end(int exit_code, bool may_begin)
{
    static uint32_t is_over SG_AT_START;
    uint32_t pid = sg_sys_getpid(), over = sg_load(&is_over);
    if (sg_options.is_disabled || over == pid || !sg_cas_u32(&is_over, &over, pid))
        return; /* by pid: a forked child ends once more */
    if (sg_options.report_at_exit && sg_options.first_pid == pid)
        print_summary();
    sg_segment_end(SG_STATE_EXITED, exit_code);
    sg_history_end(may_begin);
}

void sg_lifecycle_end(int exit_code)
{
    end(exit_code, false);
}

/* Registered first, so it runs last: after the program's own handlers and all destructors. */
static void at_exit(int status, void *unused)
{
    (void)unused;
    end(status & 0xff, true);
}

static int quick_status = -1;

void sg_lifecycle_note_quick_exit(int status)
{
    quick_status = status & 0xff;
}

/* Registered first, too. */
static void at_quick_end(void)
{
    sg_lifecycle_end(quick_status);
}

/* ---- set-up ------------------------------------------------------------------------------------------------------- */

enum { ENTRIES_MOST = 400 };

/* As setenv does, but in memory of our own: a program that never asks for memory does not begin to because of us, and most start
 * without a heap, a record, or a page for it. Whatever changes the environment later copies the list first, as it must for the
 * one that the kernel made. */
static bool set_variables(const char *const name[], const char *const value[], unsigned count)
{
    static char *list[ENTRIES_MOST] SG_AT_START;
    static char entry[2][SG_JOB_BYTES + 64] SG_AT_START;
    unsigned kept = 0;
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        bool is_ours = false;
        for (unsigned i = 0; i < count; i++) {
            size_t length = strlen(name[i]);
            is_ours = is_ours || (strncmp(*at, name[i], length) == 0 && (*at)[length] == '=');
        }
        if (kept + count + 1 >= ENTRIES_MOST)
            return false;
        if (!is_ours)
            list[kept++] = *at;
    }
    for (unsigned i = 0; i < count; i++) {
        struct sg_text text = sg_text_begin(entry[i], sizeof entry[i]);
        sg_text_add(&text, name[i]);
        sg_text_add(&text, "=");
        sg_text_add(&text, value[i]);
        list[kept++] = entry[i];
    }
    environ = list;
    return true;
}

/* What children inherit: the job's name, and who was its first process. The only environment changes we make. */
static void begin_job(void)
{
    char number[24];
    if (sg_options.first_pid != 0)
        return;
    sg_options.first_pid = sg_options.named_by != 0 ? sg_options.named_by : sg_sys_getpid();
    struct sg_text text = sg_text_begin(number, sizeof number);
    sg_text_add_number(&text, sg_options.first_pid);
    const char *const name[] = {sg_option_table[SG_OPTION_JOB].variable, SG_VARIABLE_FIRST};
    const char *const value[] = {sg_options.job, number};
    for (unsigned i = 0; i < 2 && !set_variables(name, value, 2); i++)
        (void)setenv(name[i], value[i], 1);
}

static void set_oom_score(int64_t score)
{
    char number[24];
    struct sg_text text = sg_text_begin(number, sizeof number);
    if (score < 0)
        sg_text_add(&text, "-");
    sg_text_add_number(&text, (uint64_t)(score < 0 ? -score : score));
    long fd = sg_sys_openat((int)SG_AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC, 0);
    long written = fd >= 0 ? sg_sys_write((int)fd, number, text.length) : fd;
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
    if (written < 0)
        sg_log_line("sparkguard: cannot write /proc/self/oom_score_adj (SPARKGUARD_OOM_SCORE_ADJ)");
}

__attribute__((constructor)) static void set_up(void)
{
    int saved_errno = errno;
    sg_log_begin();
    sg_real_begin();
    sg_options_read(environ);
    if (!sg_options.is_disabled) {
        (void)on_exit(at_exit, NULL);
        (void)at_quick_exit(at_quick_end);
        sg_lifecycle_register_fork();
        sg_thread_begin();
        sg_helper_prepare();
        begin_job();
        if (sg_options.oom_score_adj != INT64_MIN)
            set_oom_score(sg_options.oom_score_adj);
    }
    errno = saved_errno;
}

/* The linker's start files are left out (Makefile): this word is all that we need of them. It is what handlers are registered
 * for, and never taken back. */
extern void *__dso_handle SG_INTERNAL;
void *__dso_handle = &__dso_handle;
