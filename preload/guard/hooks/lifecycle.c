/*
 * lifecycle.c - set-up, fork and end of the process.
 *
 * Set-up is lazy: the first heap call of the process comes long before this library's constructor, which runs after
 * those of all other libraries. The constructor only reads the options, names the job and registers handlers.
 */
#include "hooks/lifecycle.h"

#include "admit/admission.h"
#include "hooks/cuda/context_end.h"
#include "admit/headroom.h"
#include "admit/refusal.h"
#include "watch/giving.h"
#include "watch/history.h"
#include "account/tracker.h"
#include "watch/job_summary.h"
#include "account/ledger.h"
#include "base/log.h"
#include "base/procfs.h"
#include "hooks/mmap/fork.h"
#include "hooks/python_fork.h"
#include "hooks/phases.h"
#include "hooks/pool/mempool.h"
#include "hooks/real.h"
#include "hooks/sanitizer.h"
#include "watch/victim.h"
#include "shared/decision_lock.h"
#include "shared/parent_job.h"
#include "shared/segment.h"
#include "account/callsites.h"
#include "base/compiler.h"
#include "base/elf_symbols.h"
#include "base/syscall.h"
#include "base/file.h"
#include "base/text.h"
#include "account/timeline.h"
#include "hooks/measure/self_check.h"
#include "hooks/cuda/vmm.h"
#include "watch/watchdog.h"
#include "watch/lifetime.h"

#include <sys/auxv.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- fork -------------------------------------------------------------------------------------------------------- */

/* No lock is held across a fork. The libc waits there without bound for locks of its own, and their holders may wait
 * for this library's. The child finds half done whatever another thread is changing at that instant, and drops it. */

static struct {
    /* (atomic) &sg_self of the forking thread that noted the parent's figures; 0: none */
    uint64_t figures_of;
    bool is_child_begun;    /* the child was begun by a handler of another library that ran first and allocated */
    bool had_segment;       /* the parent had a shared segment */
    bool has_ended_helpers; /* the service threads ended for this fork (python_fork.h) */
} at_fork SG_AT_FORK;

static uint64_t this_thread(void)
{
    return (uintptr_t)&sg_self;
}

/* Looks up what most children call next. A child would do so itself, and each child anew: the tables of the program and
 * its libraries, which the look-up reads, are not mapped in a forked child before it has read them. */
static void look_up_exec(void)
{
    (void)SG_REAL(execve);
    (void)SG_REAL(execv);
    (void)SG_REAL(execvp);
}

static void before_fork(void)
{
    uint64_t figures_of = 0;
    if (!sg_thread_has_been_armed()) /* nothing has been counted yet */
        return;
    /* Set already: a signal handler forks between the handlers of this thread's fork. */
    if (sg_self.is_forking == 0) {
        at_fork.has_ended_helpers = sg_python_fork_end_helpers();
        sg_watchdog_hold_helpers();
    }
    sg_self.is_forking = 1;
    at_fork.is_child_begun = false;
    sg_tracker_begin_fork();
    if (!sg_cas_u64(&at_fork.figures_of, &figures_of, this_thread()) && figures_of != this_thread())
        return;                    /* two threads fork at once: this child notes the parent's figures when it begins */
    sg_ledger_set_array_credit(0); /* the child, which is of this job, counts what this process was granted */
    sg_ledger_before_fork();
    sg_callsites_before_fork();
    look_up_exec();
}

static void end_fork(void)
{
    uint64_t figures_of = this_thread();
    sg_tracker_end_fork();
    if (sg_self.is_forking != 0)
        sg_watchdog_let_helpers();
    sg_self.is_forking = 0;
    if (at_fork.has_ended_helpers)
        sg_python_fork_resume_helpers();
    at_fork.has_ended_helpers = false;
    (void)sg_cas_u64(&at_fork.figures_of, &figures_of, 0);
}

/* Begins the child in every module. The child's figures start with the parent's; everything else about the segment is
 * its own. */
static void begin_child(void)
{
    bool is_map_whole = sg_tracker_is_whole();
    if (!sg_segment_atfork_child()) {
        sg_options.is_disabled = 1; /* the mapping is still the parent's segment, and must not be written to */
        return;
    }
    sg_thread_atfork_child();
    sg_watchdog_atfork_child();
    sg_history_atfork_child();
    sg_victim_atfork_child();
    sg_giving_atfork_child();
    sg_admission_atfork_child();
    sg_refusal_atfork_child();
    sg_timeline_atfork_child();
    sg_phases_atfork_child();
    sg_callsites_atfork_child();
    sg_tracker_atfork_child(is_map_whole);
    sg_mmap_atfork_child(is_map_whole);
    sg_ledger_atfork_child();
    sg_vmm_atfork_child();
    sg_mempool_atfork_child();
    sg_self_check_atfork_child();
}

/* Begins a child that a slow path noticed first: a child of a raw clone, or one in which a handler of another library
 * ran before ours and allocated. */
void sg_lifecycle_raw_fork(void)
{
    if (sg_load(&at_fork.figures_of) != this_thread()) {
        sg_ledger_before_fork();
        sg_callsites_before_fork();
    }
    sg_store(&at_fork.figures_of, 0);
    at_fork.is_child_begun = true;
    at_fork.had_segment = sg_segment_is_shared();
    at_fork.has_ended_helpers = false;
    begin_child();
}

static void after_fork_in_child(void)
{
    if (!sg_thread_has_been_armed())
        return;
    if (!at_fork.is_child_begun)
        sg_lifecycle_raw_fork();
    sg_self.is_forking = 0;
    /* A child of a parent without a segment tries for one only when it asks for something. */
    if (at_fork.had_segment)
        sg_watchdog_begin_child();
}

/* pthread_atfork and at_quick_exit are linked into each program and library, and only call these two functions. This
 * file calls the two directly: the linked parts of Debian 12 have no landing pad for branches (aarch64) and no mark of
 * shadow stacks (x86-64), so they would leave the library unprotected. */
extern void *__dso_handle SG_INTERNAL;
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *owner);
int __cxa_at_quick_exit(void (*handler)(void *), void *owner) __attribute__((weak)); /* not in musl, nor is on_exit */
extern int on_exit(void (*handler)(int, void *), void *argument) __attribute__((weak));

void sg_lifecycle_read_options(void)
{
    bool passes = sg_sanitizer_is_behind();
    if (passes) /* before other threads may see the options as read */
        sg_options.is_disabled = 1;
    sg_options_read(environ);
    if (passes)
        sg_options.is_disabled = 1;
}

/* Registers the fork handlers before all others. The handlers registered first run last before a fork and first after
 * it. Therefore requests that other libraries' handlers make before the fork are among the parent's figures, and
 * requests that they make in the child are the child's. */
static void register_fork(void)
{
    static uint32_t is_done SG_AT_START;
    uint32_t not_done = 0;
    if (!sg_options_are_read())
        sg_lifecycle_read_options();
    if (!sg_options.is_disabled && sg_cas_u32(&is_done, &not_done, 1))
        (void)__register_atfork(before_fork, end_fork, after_fork_in_child, &__dso_handle);
}

SG_EXPORT int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *owner)
{
    register_fork();
    void *found = sg_elf_symbols_next("__register_atfork"); /* not kept: that would cost each start a page */
    __typeof__(&__register_atfork) real;
    memcpy(&real, &found, sizeof real);
    if (real == NULL)
        real = SG_REAL(__register_atfork);
    if (real == NULL) /* the libc is loaded before this library, and this call is the library's own */
        real = (__typeof__(real))sg_real_dlsym(RTLD_DEFAULT, "__register_atfork");
    return real != NULL ? real(prepare, parent, child, owner) : ENOMEM;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* The process whose record says that every call passes through; 0: none. */
static uint32_t passing_pid;

/* Looks once more at memory that becomes resident without a call, for the record. */
static void look_at_open_memory(void)
{
    const uint64_t patience_ns = 20000000; /* the thread that has the lock may be stopped, or be this one */
    struct sg_lock_state lock;
    if (SG_LIKELY(sg_load_relaxed(&sg_tracker_maps.open_bytes) < SG_EVIDENCE_BYTES) ||
        !sg_lock_acquire_within(&sg_decision_lock, &lock, patience_ns))
        return;
    sg_headroom_scan();
    sg_lock_release(&sg_decision_lock, &lock);
}

static void end(int exit_code, bool may_begin)
{
    static uint32_t is_over SG_AT_START;
    uint32_t pid = sg_sys_getpid(), over = sg_load(&is_over);
    if ((sg_options.is_disabled && pid != passing_pid) || over == pid || !sg_cas_u32(&is_over, &over, pid))
        return;                    /* compared by PID: a forked child ends once more */
    if (sg_procfs_is_owner(pid)) { /* not a child of vfork: the count is its parent's */
        look_at_open_memory();
        sg_refusal_end();
    }
    if (sg_options.report_at_exit && sg_options.first_pid == pid)
        sg_job_summary_print();
    sg_lifetime_end(SG_STATE_EXITED, exit_code);
    sg_history_end(may_begin);
}

void sg_lifecycle_end(int exit_code)
{
    end(exit_code, false);
}

/* Runs at exit. The handler is registered first, so it runs last: after the program's own handlers and all
 * destructors. */
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

/* Runs at quick_exit. The handler is registered first as well, so it runs last. */
static void at_quick_end(void *unused)
{
    (void)unused;
    sg_lifecycle_end(quick_status);
}

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

enum { ENTRIES_MAX = 400 };

static char entry[2][SG_JOB_BYTES + 64] SG_AT_START; /* the job's variables, as set_variables has set them */

/* Sets environment variables as setenv does, but in static memory. A program that never allocates must not begin to
 * because of this library; most processes start without a heap, a record, or a page for it. Code that changes the
 * environment later copies the list first, as it must for the list that the kernel made. */
static bool set_variables(const char *const name[], const char *const value[], unsigned count)
{
    static char *list[ENTRIES_MAX] SG_AT_START;
    unsigned kept = 0;
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        bool is_ours = false;
        for (unsigned i = 0; i < count; i++) {
            size_t length = strlen(name[i]);
            is_ours = is_ours || (strncmp(*at, name[i], length) == 0 && (*at)[length] == '=');
        }
        if (kept + count + 1 >= ENTRIES_MAX)
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

/* Replaces the two variables by new texts, as another thread may be reading the old ones. Where the program has changed
 * the environment itself, it has copied the list and not the texts. */
static void tell_job(void)
{
    static char adopted[2][SG_JOB_BYTES + 64];
    struct sg_text job = sg_text_begin(adopted[0], sizeof adopted[0]),
                   first = sg_text_begin(adopted[1], sizeof adopted[1]);
    sg_text_add(&job, SG_VARIABLE_PREFIX "JOB=");
    sg_text_add(&job, sg_options.job);
    sg_text_add(&first, SG_VARIABLE_FIRST "=");
    sg_text_add_number(&first, sg_options.first_pid);
    for (unsigned i = 0; i < 2; i++)
        for (char **at = environ; at != NULL && *at != NULL; at++)
            if (*at == entry[i])
                sg_store(at, adopted[i]);
}

/* Puts the job's name and the PID of its first process into the environment, for child processes. These are the only
 * changes of the environment. */
static void begin_job(void)
{
    char number[24];
    if (sg_options.first_pid != 0 && sg_options.named_by == 0)
        return;
    if (sg_options.first_pid == 0) /* else it has adopted its parent's job already */
        sg_options.first_pid = sg_options.named_by != 0 ? sg_options.named_by : sg_sys_getpid();
    struct sg_text text = sg_text_begin(number, sizeof number);
    sg_text_add_number(&text, sg_options.first_pid);
    const char *const name[] = {sg_option_table[SG_OPTION_JOB].variable, SG_VARIABLE_FIRST};
    const char *const value[] = {sg_options.job, number};
    for (unsigned i = 0; i < 2 && !set_variables(name, value, 2); i++)
        (void)setenv(name[i], value[i], 1);
}

/* A failure is told once a job: by the first program, or by the launcher that has written it before. */
static void set_oom_score(int64_t score)
{
    char number[24];
    struct sg_text text = sg_text_begin(number, sizeof number);
    if (score < 0)
        sg_text_add(&text, "-");
    sg_text_add_number(&text, (uint64_t)(score < 0 ? -score : score));
    long fd = sg_sys_openat((int)SG_AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC, 0);
    long written = fd >= 0 ? sg_file_write((int)fd, number, text.length) : fd;
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
    if (written < 0 && (sg_options.given & SG_GIVEN_FIRST) == 0)
        sg_log_line("sparkguard: cannot write /proc/self/oom_score_adj (SPARKGUARD_OOM_SCORE_ADJ)");
}

/* Begins a record all the same, so that a report shows why nothing is counted. */
static void note_passing(void)
{
    const char *value = getenv(sg_option_table[SG_OPTION_DISABLE].variable);
    if (value != NULL && strcmp(value, "1") == 0)
        return;
    passing_pid = sg_sys_getpid();
    sg_segment_attach();
    sg_segment_add_event("passes everything through: the program has a sanitizer's runtime");
    (void)on_exit(at_exit, NULL);
}

__attribute__((constructor)) static void set_up(void)
{
    int saved_errno = errno;
    sg_log_begin();
    sg_real_begin();
    sg_lifecycle_read_options();
    if (sg_sanitizer_is_behind())
        note_passing();
    if (!sg_options.is_disabled) {
        sg_thread_find_single();
        sg_procfs_begin();
        (void)on_exit(at_exit, NULL);
        (void)__cxa_at_quick_exit(at_quick_end, &__dso_handle);
        register_fork();
        sg_parent_job_tell = tell_job;
        begin_job();
        if (sg_options.oom_score_adj != INT64_MIN)
            set_oom_score(sg_options.oom_score_adj);
        if (SG_UNLIKELY(sg_options.is_record_kept) && sg_lifecycle_enter())
            sg_segment_attach(); /* a process that asks for nothing would leave none */
    }
    errno = saved_errno;
}

/* The library is linked without the linker's start files (Makefile), of which it needs only this word. Handlers are
 * registered under its address, and never removed. */
void *__dso_handle = &__dso_handle;

#if defined(__aarch64__)
/* This variable and this constructor replace libgcc's for its atomic functions. The constructor of Debian 12 has no
 * landing pad for branches. The dynamic linker calls it by its address, and a processor with BTI would end the program
 * there. */
extern bool __aarch64_have_lse_atomics SG_INTERNAL;
bool __aarch64_have_lse_atomics;

__attribute__((constructor(101))) static void choose_atomics(void)
{
    __aarch64_have_lse_atomics = (getauxval(AT_HWCAP) & HWCAP_ATOMICS) != 0;
}
#endif
