/*
 * procfs.c - see base/procfs.h.
 */
#include "base/procfs.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/syscall.h"
#include "base/text.h"
#include "base/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

static uint32_t owner_pid SG_AT_FORK; /* (atomic) the process that owns this memory; 0: not known yet */
static uint64_t owner_shown_pid; /* (atomic) if owner_pid is 1: its pid in the PID namespace of the mounted /proc */

enum { PATH_CAPACITY = 48 };

static void put_path(uint32_t pid, const char *name, char path[PATH_CAPACITY])
{
    struct sg_text text = sg_text_begin(path, PATH_CAPACITY);
    sg_text_add(&text, "/proc/");
    if (pid != 0)
        sg_text_add_number(&text, pid);
    else
        sg_text_add(&text, "self");
    sg_text_add(&text, name);
}

long sg_procfs_read(uint32_t pid, const char *name, char *buffer, size_t capacity)
{
    char path[PATH_CAPACITY];
    put_path(pid, name, path);
    return sg_text_read_file(path, buffer, capacity);
}

uint64_t sg_procfs_anonymous_bytes(uint32_t pid)
{
    char content[256];
    if (sg_procfs_read(pid, "/statm", content, sizeof content) <= 0)
        return 0;
    const char *cursor = content;
    (void)sg_text_read_number(&cursor);
    uint64_t resident = sg_text_read_number(&cursor);
    uint64_t shared = sg_text_read_number(&cursor);
    return resident > shared ? (resident - shared) * sg_page_bytes() : 0;
}

static uint32_t has_no_swap; /* (atomic) */

void sg_procfs_note_swap(bool is_swapped)
{
    sg_store_relaxed(&has_no_swap, is_swapped ? 0u : 1u);
}

static void take_status_line(const char *line, uint64_t *anonymous_bytes, uint64_t *swapped_bytes)
{
    uint64_t *field = strncmp(line, "RssAnon:", 8) == 0  ? anonymous_bytes
                      : strncmp(line, "VmSwap:", 7) == 0 ? swapped_bytes
                                                         : NULL;
    if (field == NULL)
        return;
    for (line = strchr(line, ':') + 1; *line == '\t' || *line == ' '; line++)
        ;
    *field = sg_text_read_number(&line) * 1024;
}

/* Reads /proc/PID/status in pieces, for the groups of the user, which come first, may fill pages. The kernel makes the
 * whole text at the first read. A line that is longer than a piece is none of those that are looked for. */
static bool read_status(uint32_t pid, uint64_t *anonymous_bytes, uint64_t *swapped_bytes)
{
    char content[512];
    put_path(pid, "/status", content);
    long fd = sg_sys_openat((int)SG_AT_FDCWD, content, O_RDONLY | O_CLOEXEC, 0), got = 1;
    *anonymous_bytes = *swapped_bytes = 0;
    for (size_t kept = 0; fd >= 0 && got > 0;) {
        got = sg_sys_read((int)fd, content + kept, sizeof content - kept);
        if (got == -EINTR) {
            got = 1;
            continue;
        }
        char *line = content, *end = content + kept + (got > 0 ? (size_t)got : 0), *next;
        while ((next = memchr(line, '\n', (size_t)(end - line))) != NULL) {
            *next = '\0';
            take_status_line(line, anonymous_bytes, swapped_bytes);
            line = next + 1;
        }
        kept = line == content && end == content + sizeof content ? 0 : (size_t)(end - line);
        memmove(content, line, kept);
    }
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
    return fd >= 0 && got == 0;
}

/* The kernel reads `data` before the anonymous pages (task_statm), and those just before VmSwap (task_mem). */
bool sg_procfs_missing_bytes(uint32_t pid, uint64_t *bytes, uint64_t *swapped_bytes)
{
    char content[256];
    if (sg_procfs_read(pid, "/statm", content, sizeof content) <= 0)
        return false;
    const char *cursor = content;
    uint64_t field[6];
    for (unsigned i = 0; i < SG_ARRAY_LENGTH(field); i++)
        field[i] = sg_text_read_number(&cursor);
    uint64_t page = sg_page_bytes(), data = field[5] * page, anonymous;
    uint64_t present = field[1] > field[2] ? (field[1] - field[2]) * page : 0;
    *swapped_bytes = 0;
    if (sg_load_relaxed(&has_no_swap) == 0 && read_status(pid, &anonymous, swapped_bytes))
        present = anonymous + *swapped_bytes;
    *bytes = data > present ? data - present : 0;
    return data != 0;
}

/* Field 2, the command in parentheses, may contain any characters, so the search begins at the last parenthesis. */
static uint64_t find_in_stat(const char *content, int wanted)
{
    const char *cursor = strrchr(content, ')');
    for (int field = 2; cursor != NULL && field < wanted; field++)
        cursor = strchr(cursor + 1, ' ');
    return cursor != NULL ? sg_text_read_number(&cursor) : 0;
}

uint64_t sg_procfs_stat(uint32_t pid, int wanted)
{
    char content[1024];
    return sg_procfs_read(pid, "/stat", content, sizeof content) > 0 ? find_in_stat(content, wanted) : 0;
}

bool sg_procfs_is_ending(uint32_t pid, uint64_t start_ticks)
{
    enum { EXITING = 4 }; /* the kernel's PF_EXITING */
    char content[1024];
    return sg_procfs_read(pid, "/stat", content, sizeof content) > 0 && find_in_stat(content, 22) == start_ticks &&
           (find_in_stat(content, 9) & EXITING) != 0;
}

bool sg_procfs_is_killed(uint32_t pid)
{
    return (sg_procfs_stat(pid, 31) & UINT64_C(1) << (SIGKILL - 1)) != 0;
}

uint64_t sg_procfs_start_ticks(uint32_t pid)
{
    return sg_procfs_stat(pid, 22);
}

int64_t sg_procfs_user(uint32_t pid)
{
    char path[PATH_CAPACITY];
    struct stat info = {0};
    put_path(pid, "", path);
    return sg_sys_stat(path, &info) == 0 ? (int64_t)info.st_uid : -1;
}

/* pthread_getcpuclockid by its first version, which every glibc has. NULL: glibc before 2.34, and the program started
 * without libpthread.so.0. Such a program has one thread, whose number its C library did not store; it is the number of
 * the process that owns the memory, known from set-up on. */
extern int sg_pthread_clock(pthread_t thread, clockid_t *clock) __attribute__((weak));
__asm__(".symver sg_pthread_clock, pthread_getcpuclockid@" SG_GLIBC_FIRST);

/* The thread id that the C library has stored in the thread's descriptor; 0: unknown. A child that uses its parent's
 * thread-local storage reads the parent's id. The clock id of a thread contains it (pthread_getcpuclockid;
 * CPUCLOCK_PERTHREAD_MASK in the kernel's posix-timers_types.h). */
static uint32_t noted_thread(void)
{
    clockid_t clock = 0;
    if (sg_pthread_clock == NULL)
        return sg_load(&owner_pid);
    return sg_pthread_clock(pthread_self(), &clock) == 0 ? (uint32_t) ~(clock >> 3) : 0;
}

/* This process's pid in the PID namespace of the mounted /proc; 0: unknown. */
static uint64_t shown_pid(void)
{
    char shown[16] = "";
    const char *cursor = shown;
    (void)sg_syscall(SYS_readlinkat, SG_AT_FDCWD, (long)"/proc/self", (long)shown, sizeof shown - 1, 0, 0);
    return sg_text_read_number(&cursor);
}

bool sg_procfs_is_of_this_namespace(void)
{
    return shown_pid() == sg_sys_getpid();
}

static bool set_owner(uint32_t pid)
{
    uint32_t unknown = 0;
    if (pid == 1)
        sg_store(&owner_shown_pid, shown_pid());
    return sg_cas_u32(&owner_pid, &unknown, pid);
}

void sg_procfs_begin(void)
{
    if (sg_pthread_clock == NULL)
        (void)set_owner(sg_sys_getpid());
}

bool sg_procfs_is_owner(uint32_t pid)
{
    uint32_t owner = sg_load(&owner_pid);
    return pid == owner && (pid != 1 || shown_pid() == sg_load(&owner_shown_pid));
}

bool sg_procfs_owns_memory(void)
{
    uint32_t pid = sg_sys_getpid();
    if (sg_load(&owner_pid) == 0 && sg_sys_gettid() == noted_thread())
        (void)set_owner(pid);
    return sg_procfs_is_owner(pid);
}

uint32_t sg_procfs_thread(void)
{
    uint32_t thread = sg_sys_gettid(), noted = noted_thread();
    bool is_borrowed = noted != 0 && noted != thread && sg_load(&owner_pid) != sg_sys_getpid();
    return is_borrowed ? noted : thread;
}

void sg_procfs_atfork_child(void)
{
    sg_store(&owner_pid, 0u);
    (void)set_owner(sg_sys_getpid());
}

uint64_t sg_procfs_ordinary_kib(const char *meminfo)
{
    uint64_t total = sg_text_read_field(meminfo, "MemTotal:", 0), huge = sg_text_read_field(meminfo, "Hugetlb:", 0);
    if (total > UINT64_MAX / 1024)
        return 0;
    return huge < total ? total - huge : total;
}

int64_t sg_procfs_clock_offset_ns;

/* A number that may be negative. */
static int64_t read_signed(const char **cursor)
{
    while (**cursor == ' ')
        (*cursor)++;
    bool is_negative = **cursor == '-';
    *cursor += is_negative ? 1 : 0;
    int64_t number = (int64_t)sg_text_read_number(cursor);
    return is_negative ? -number : number;
}

void sg_procfs_find_clock_offset(void)
{
    char content[160];
    const char *cursor = content, name[] = "monotonic";
    int64_t offset = 0;
    if (sg_text_read_file("/proc/self/timens_offsets", content, sizeof content) > 0 &&
        strncmp(content, name, sizeof name - 1) == 0) {
        cursor += sizeof name - 1;
        offset = read_signed(&cursor) * 1000000000;
        offset += read_signed(&cursor);
    }
    sg_store(&sg_procfs_clock_offset_ns, offset);
}

/* ---- this process's mappings ------------------------------------------------------------------------------------- */

/* The fields of a line: "begin-end rights offset device inode   path". */
enum { BEGIN, END, RIGHTS, OFFSET, DEVICE, INODE, PATH };

struct line {
    struct sg_procfs_mapping mapping;
    unsigned field, length; /* of the text of the present field so far */
};

static uint64_t with_digit(uint64_t number, char c)
{
    return number << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static void read_path(struct line *line, char c)
{
    struct sg_procfs_mapping *mapping = &line->mapping;
    if (c == ' ' && line->length == 0)
        return;
    if (line->length < sizeof mapping->path - 1)
        mapping->path[line->length++] = c;
    if (c == '/')
        mapping->name_length = 0;
    else if (mapping->name_length + 1 < sizeof mapping->name)
        mapping->name[mapping->name_length++] = c;
}

static void read_character(struct line *line, char c)
{
    struct sg_procfs_mapping *mapping = &line->mapping;
    if (line->field == PATH) {
        read_path(line, c);
    } else if (c == ' ' || (c == '-' && line->field == BEGIN)) {
        line->field++;
        line->length = 0;
    } else if (line->field == BEGIN) {
        mapping->begin = (uintptr_t)with_digit(mapping->begin, c);
    } else if (line->field == END) {
        mapping->end = (uintptr_t)with_digit(mapping->end, c);
    } else if (line->field == OFFSET) {
        mapping->offset = with_digit(mapping->offset, c);
    } else if (line->field != RIGHTS) {
        mapping->file = mapping->file * 31 + (uint64_t)(c - (c == ':' ? c : '0'));
    } else if (line->length < sizeof mapping->rights - 1) {
        mapping->rights[line->length++] = c;
    }
}

bool sg_procfs_visit_mappings(bool (*visit)(void *context, const struct sg_procfs_mapping *mapping), void *context)
{
    char text[1024] = "";
    struct line line = {.field = BEGIN};
    bool goes_on = true;
    long length = 0, fd = sg_sys_openat((int)SG_AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    while (fd >= 0 && goes_on && (length = sg_sys_read((int)fd, text, sizeof text)) > 0)
        for (long i = 0; i < length && goes_on; i++) {
            if (text[i] != '\n') {
                read_character(&line, text[i]);
                continue;
            }
            goes_on = line.mapping.begin > INTPTR_MAX || visit(context, &line.mapping);
            line = (struct line){.field = BEGIN};
        }
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
    return fd >= 0 && length >= 0;
}
