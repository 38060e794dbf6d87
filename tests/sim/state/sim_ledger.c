/*
 * sim_ledger.c - what the simulated device has given out: admission against its size, live and peak
 * bytes per kind, and the JSON written at exit.
 *
 * Promises: files are read and written by raw system calls, nothing is allocated by libc. All
 * inner functions run with the lock held.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include "cuda_sim.h"
#include "sim_faults.h"
#include "sim_machine.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REPORT_BYTES (64 * SGSIM_KIB)

static const char *const kind_names[SGSIM_KINDS] = {"device", "pinned", "managed", "array", "context", "registered"};

static size_t live[SGSIM_KINDS], peak[SGSIM_KINDS], total_peak;
static size_t on_device[SGSIM_MAX_DEVICES]; /* pages of device, array and context memory of each */
static size_t pages_taken;                  /* of all devices together */
static char ledger_path[4096];              /* a copy: programs clear their environment */
static char processes_path[4096];           /* the folder from which the simulated NVML reads; "": none */

/* SGSIM_PROCESSES, or MEMINFO.processes beside a fake machine's meminfo. */
static void configure_processes(void)
{
    const char *path = getenv("SGSIM_PROCESSES"), *meminfo = getenv("SGSIM_MEMINFO");
    const char *name = path ? path : meminfo, *end = path ? "" : ".processes";
    if (!name || strlen(name) + strlen(end) >= sizeof processes_path) {
        if (name)
            sgsim_complain("SGSIM_PROCESSES", name);
        return;
    }
    memcpy(processes_path, name, strlen(name));
    memcpy(processes_path + strlen(name), end, strlen(end) + 1);
    if (!path)
        syscall(SYS_mkdirat, AT_FDCWD, processes_path, 0777);
}

void sgsim_ledger_configure(void)
{
    const char *path = getenv("SGSIM_LEDGER");
    if (path && strlen(path) < sizeof ledger_path)
        memcpy(ledger_path, path, strlen(path) + 1);
    else if (path)
        sgsim_complain("SGSIM_LEDGER", path);
    configure_processes();
}

/* Writes what this process has on each device of the machine into the file of its PID, for the simulated NVML of other
 * processes. */
static void publish(void)
{
    size_t bytes[SGSIM_MAX_DEVICES] = {0};
    char path[sizeof processes_path + 16];
    if (!processes_path[0])
        return;
    for (int i = 0; i < SGSIM_MAX_DEVICES; i++)
        if (on_device[i])
            bytes[sgsim.ordinal[i]] = on_device[i];
    snprintf(path, sizeof path, "%s/%ld", processes_path, syscall(SYS_getpid));
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0)
        return;
    syscall(SYS_write, file, bytes, sizeof bytes);
    syscall(SYS_close, file);
}

static bool is_on_device(enum sgsim_kind kind)
{
    return kind == SGSIM_DEVICE || kind == SGSIM_ARRAY || kind == SGSIM_CONTEXT;
}

static size_t total_live(void)
{
    return live[SGSIM_DEVICE] + live[SGSIM_PINNED] + live[SGSIM_MANAGED] + live[SGSIM_ARRAY] + live[SGSIM_CONTEXT];
}

/* One pool for everything on an integrated device; a pool of its own on a discrete one. Managed memory is lazy: in neither. */
size_t sgsim_free_bytes(int device)
{
    size_t used = on_device[device];
    if (sgsim.is_integrated)
        used = pages_taken + live[SGSIM_PINNED];
    return used < sgsim.memory ? sgsim.memory - used : 0;
}

static bool fits(enum sgsim_kind kind, int device, size_t bytes)
{
    if (kind == SGSIM_REGISTERED)
        return true;
    if (kind == SGSIM_MANAGED)
        return live[SGSIM_MANAGED] <= sgsim.memory && bytes <= sgsim.memory - live[SGSIM_MANAGED];
    if (kind == SGSIM_PINNED && !sgsim.is_integrated)
        return true;
    return bytes <= sgsim_free_bytes(device);
}

/* What is on a discrete card is not the machine's; managed memory is, once touched. */
static bool is_machine(enum sgsim_kind kind)
{
    return kind == SGSIM_PINNED || (is_on_device(kind) && sgsim.is_integrated);
}

/* ---- booking ---- */

static enum sgsim_taking taking_of(enum sgsim_kind kind)
{
    return kind == SGSIM_SHARED_PINNED ? SGSIM_SHARED : sgsim.is_integrated ? SGSIM_MAY_FAIL : SGSIM_IN_CALL;
}

CUresult sgsim_charge_pages(enum sgsim_kind kind, int device, size_t bytes, size_t pages)
{
    enum sgsim_taking how = taking_of(kind);
    kind = kind == SGSIM_SHARED_PINNED ? SGSIM_PINNED : kind;
    if (!fits(kind, device, pages))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (is_machine(kind)) {
        CUresult error = sgsim_machine_take(pages, how);
        if (error != CUDA_SUCCESS)
            return error;
    }
    if (kind == SGSIM_REGISTERED && !sgsim.is_register_idle)
        sgsim_machine_lock(pages);
    live[kind] += bytes;
    if (is_on_device(kind)) {
        on_device[device] += pages;
        pages_taken += pages;
        publish();
    }
    if (live[kind] > peak[kind])
        peak[kind] = live[kind];
    if (total_live() > total_peak)
        total_peak = total_live();
    return CUDA_SUCCESS;
}

void sgsim_release_pages(enum sgsim_kind kind, int device, size_t bytes, size_t pages)
{
    enum sgsim_taking how = taking_of(kind);
    kind = kind == SGSIM_SHARED_PINNED ? SGSIM_PINNED : kind;
    live[kind] -= bytes;
    if (is_on_device(kind)) {
        on_device[device] -= pages;
        pages_taken -= pages;
        publish();
    }
    if (kind == SGSIM_REGISTERED && !sgsim.is_register_idle)
        sgsim_machine_unlock(pages);
    if (is_machine(kind))
        sgsim_machine_give(pages, how);
}

CUresult sgsim_charge(enum sgsim_kind kind, int device, size_t bytes)
{
    return sgsim_charge_pages(kind, device, bytes, bytes);
}

void sgsim_release(enum sgsim_kind kind, int device, size_t bytes)
{
    sgsim_release_pages(kind, device, bytes, bytes);
}

size_t sgsim_live_bytes(const char *kind)
{
    sgsim_quiet_enter();
    size_t bytes = 0;
    if (strcmp(kind, "total") == 0)
        bytes = total_live();
    else if (strcmp(kind, "pool_reserved") == 0)
        bytes = sgsim.pool_reserved;
    else if (strcmp(kind, "pages") == 0)
        bytes = pages_taken;
    for (int i = 0; i < SGSIM_KINDS; i++) {
        if (strcmp(kind, kind_names[i]) == 0)
            bytes = live[i];
    }
    sgsim_quiet_leave();
    return bytes;
}

/* ---- the report at exit ---- */

struct report {
    char *text;
    size_t length;
};

static void __attribute__((format(printf, 2, 3))) add(struct report *report, const char *format, ...)
{
    __builtin_va_list arguments;
    __builtin_va_start(arguments, format);
    int written = vsnprintf(report->text + report->length, REPORT_BYTES - report->length, format, arguments);
    __builtin_va_end(arguments);
    if (written > 0 && (size_t)written < REPORT_BYTES - report->length)
        report->length += (size_t)written;
}

static void add_kinds(struct report *report, const char *name, const size_t *bytes, size_t total)
{
    add(report, "  \"%s\": { ", name);
    for (int i = 0; i < SGSIM_KINDS; i++)
        add(report, "\"%s\": %zu, ", kind_names[i], bytes[i]);
    add(report, "\"total\": %zu },\n", total);
}

static void add_calls(struct report *report)
{
    const char *comma = "";
    add(report, "  \"calls\": {");
    for (int i = 0; i < SGSIM_FN_COUNT; i++) {
        if (sgsim_calls_of((enum sgsim_function)i) == 0)
            continue;
        add(report, "%s\n    \"%s\": %lu", comma, sgsim_function_name((enum sgsim_function)i),
            sgsim_calls_of((enum sgsim_function)i));
        comma = ",";
    }
    add(report, "\n  },\n");
}

static void add_figure(struct report *report, const char *name, int64_t bytes)
{
    if (bytes == SGSIM_NO_CALL)
        add(report, "  \"%s\": null,\n", name);
    else
        add(report, "  \"%s\": %lld,\n", name, (long long)bytes);
}

/* Allocations nobody gave back. Pools, contexts and streams are not allocations; handles and arrays are. */
static size_t count_leaks(void)
{
    size_t leaks = 0;
    for (size_t i = 0; i < sgsim.memory_index.count; i++) {
        enum sgsim_role role = sgsim.memory_index.entries[i]->role;
        leaks += role != SGSIM_MAPPING && role != SGSIM_REGISTRATION;
    }
    for (size_t i = 0; i < sgsim.handle_index.count; i++) {
        enum sgsim_role role = sgsim.handle_index.entries[i]->role;
        leaks += role == SGSIM_HANDLE || role == SGSIM_PLAIN_ARRAY || role == SGSIM_MIPMAPPED_ARRAY;
    }
    return leaks;
}

/* Runs after the program's own atexit functions; a process that never called cuInit, or was forked, has nothing to say. */
static void __attribute__((destructor)) write_ledger(void)
{
    if (!ledger_path[0] || !sgsim.is_initialised || !sgsim_quiet_try_enter())
        return;
    struct report report = {(char *)sgsim_map(REPORT_BYTES, PROT_READ | PROT_WRITE, 0), 0};
    int file = (int)syscall(SYS_openat, AT_FDCWD, ledger_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (report.text && file >= 0) {
        add(&report, "{ \"schema\": 1,\n  \"kind\": \"%s\", \"devices\": %d, \"memory_bytes\": %zu,\n",
            sgsim.is_integrated ? "gb10" : "discrete", sgsim.devices, sgsim.memory);
        add_kinds(&report, "live_bytes", live, total_live());
        add_kinds(&report, "peak_bytes", peak, total_peak);
        add(&report, "  \"pool_reserved_bytes\": %zu,\n", sgsim.pool_reserved);
        add_figure(&report, "least_free_at_call_bytes", sgsim_machine_least_free());
        add_figure(&report, "least_spare_at_call_bytes", sgsim_machine_least_spare());
        add_figure(&report, "least_available_bytes", sgsim_machine_least_available());
        add_calls(&report);
        add(&report, "  \"leaks\": %zu\n}\n", count_leaks());
        syscall(SYS_write, file, report.text, report.length);
    }
    if (file >= 0)
        syscall(SYS_close, file);
    sgsim_unmap((uintptr_t)report.text, REPORT_BYTES);
    sgsim_quiet_leave();
}
