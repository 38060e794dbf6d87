/*
 * segment.c - see segment.h.
 */
#include "shared/segment.h"
#include "shared/parent_job.h"

#include "base/atomics.h"
#include "base/directory.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/options.h"
#include "base/procfs.h"
#include "base/file.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/text.h"
#include "shared/container.h"
#include "shared/job_notice.h"
#include "base/pages.h"
#include "shared/retention.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>

/* A new file in place of the removed one. The segment mapping still maps the removed file. */
struct sg_segment *sg_segment_mirror SG_AT_FORK;
union sg_segment_mapping sg_segment_mapping __attribute__((aligned(SG_PAGE_MAX)));

enum { UNTRIED, SHARED, FAILED };

static uint32_t attachment SG_AT_START;
/* no new attempt before this time, after descriptors were exhausted; 0: none failed */
static uint64_t retry_ns SG_AT_FORK;
static struct sg_lock attach_lock SG_AT_FORK;
static char path[SG_PATH_CAPACITY + 64];
/* The name under which the file is filled. It is renamed when it is complete, so that readers never see an incomplete
 * one: this process may be killed at any instruction. */
static char unfinished[sizeof path + 8];
static struct {
    uint64_t device, number;
} file; /* identity of our file: in a group-shared directory another user may put a file of that name in its place */
static unsigned file_mode = 0600;
static uint32_t record_capacity;   /* (atomic) records that fit; the file's own field may have been written by others */
static bool is_removed SG_AT_FORK; /* sg_segment_remove has removed the file */
/* (atomic) the mapping has been a file's, also where the file got no name afterwards */
static uint32_t is_file_mapped SG_AT_FORK;
static uint64_t mirror_bytes;

unsigned sg_segment_file_mode(void)
{
    return file_mode;
}

const char *sg_segment_path(void)
{
    return path;
}

bool sg_segment_is_shared(void)
{
    return sg_load_acquire(&attachment) == SHARED;
}

bool sg_segment_is_own(void)
{
    if (!sg_segment_is_shared())
        return false;
    uint32_t pid = sg_sys_getpid();
    return sg_own->slot.pid == pid && sg_procfs_is_owner(pid);
}

uint32_t sg_segment_record_capacity(void)
{
    return sg_segment_is_shared() ? sg_load_acquire(&record_capacity) : SG_RECORD_LIMIT;
}

/* Size of a file with that many records, in whole pages. */
static uint64_t bytes_for(uint32_t records)
{
    return sg_round_up(SG_SEGMENT_BYTES(records), sg_page_bytes());
}

/* Sets the capacity here and in the segment, for readers. */
static void set_record_capacity(uint32_t records)
{
    sg_store_release(&record_capacity, records);
    sg_store_release(&sg_own->segment_bytes, bytes_for(records));
    sg_store_release(&sg_own->record_capacity, records);
}

/* Opens or makes SPARKGUARD_DIR and sets file_mode. A descriptor or -errno. */
static int open_directory(void)
{
    struct stat info = {0};
    int fd = sg_directory_open_or_make(sg_options.dir, &info);
    file_mode = sg_directory_file_mode(&info);
    return fd;
}

/* SG_RUN of the job's first process; 0 if that has ended. Reads its start time from /proc, because pids are reused. */
static uint64_t run_of_job(void)
{
    uint32_t first = sg_options.first_pid, own = sg_sys_getpid();
    bool is_first = first == 0 || first == own;
    uint64_t ticks = is_first ? sg_own->slot.start_ticks : sg_procfs_start_ticks(first);
    return ticks != 0 ? SG_RUN(is_first ? own : first, ticks) : 0;
}

/* The job's identity: its name, and this process's user or, if the job's first process is root's, root. It stays as it
 * was in a process that changes its user, and in its forked children. */
static uint64_t identify_job(uint32_t user)
{
    static uint64_t hash;
    char status[512];
    uint32_t first = sg_options.first_pid;
    if (hash != 0)
        return hash;
    if (user != 0 && first != 0 && first != sg_sys_getpid() &&
        sg_procfs_read(first, "/status", status, sizeof status) > 0 && sg_text_read_field(status, "Uid:", 1) == 0)
        user = 0;
    return hash = sg_job_hash(sg_options.job, user);
}

static void describe_process(void)
{
    struct sg_segment *segment = sg_own;
    segment->slot.abi_version = SG_ABI_VERSION;
    segment->slot.pid = sg_sys_getpid();
    segment->slot.start_ticks = sg_procfs_start_ticks(0);
    segment->slot.state = SG_STATE_RUNNING;
    sg_fetch_or(&segment->slot.flags, SG_SLOT_GUARDING | (sg_options.mode_observe ? SG_SLOT_OBSERVE : 0u));
    segment->parent_pid = (uint32_t)sg_syscall(SYS_getppid, 0, 0, 0, 0, 0, 0);
    segment->uid = (uint32_t)sg_syscall(SYS_getuid, 0, 0, 0, 0, 0, 0);
    segment->slot.job_hash = identify_job(segment->uid);
    segment->started_time_ns = (int64_t)sg_clock_ns(CLOCK_REALTIME);
    segment->run = run_of_job();
    sg_container_describe(segment);
    segment->exit_code = -1;
    segment->signal = -1;
    if (segment->record_used == 0)
        segment->record_used = 1; /* record 0 is shared by all threads */
    struct sg_text version = sg_text_begin(segment->library_version, sizeof segment->library_version);
    sg_text_add(&version, SG_VERSION_TEXT);
    struct sg_text job = sg_text_begin(segment->job, sizeof segment->job);
    sg_text_add(&job, sg_options.job);
    long length = sg_text_read_file("/proc/self/cmdline", segment->command, sizeof segment->command);
    for (long i = 0; i + 1 < length; i++)
        if ((unsigned char)segment->command[i] < ' ') /* zeros between arguments, and control characters within */
            segment->command[i] = ' ';
    for (unsigned i = 0; i < SG_DEVICE_CAPACITY; i++)
        if (segment->device[i].total_bytes == 0)
            segment->device[i].total_bytes = SG_UNKNOWN;
}

static void name_file(void)
{
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, sg_options.dir);
    sg_text_add(&text, "/");
    sg_text_add_number(&text, sg_own->slot.pid);
    sg_text_add(&text, "-");
    sg_text_add_hex(&text, sg_sys_unique());
    sg_text_add(&text, SG_SEGMENT_SUFFIX);
    text = sg_text_begin(unfinished, sizeof unfinished);
    sg_text_add(&text, path);
    sg_text_add(&text, SG_UNFINISHED_SUFFIX);
}

/* Maps the file over [begin, end) of the segment mapping, and not beyond the file's end. Conservative garbage
 * collectors and leak checkers read all of a library's data, and would die of SIGBUS behind the end of the file. 0 or
 * -errno. */
static long map_file(int fd, uint64_t begin, uint64_t end)
{
    begin &= ~(uint64_t)(SG_PAGE_MAX - 1);
    void *mapping = sg_sys_mmap(sg_segment_mapping.bytes + begin, end - begin, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED, fd, begin);
    return sg_is_error(mapping) ? (long)mapping : 0;
}

const char *sg_segment_file_name(void)
{
    return strrchr(path, '/') + 1;
}

/* Opens our file by name. A descriptor, or -errno; -ESTALE: another file has the name now. */
static long open_again(const char *name)
{
    struct stat info = {0};
    long fd = sg_sys_openat((int)SG_AT_FDCWD, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return fd;
    if (sg_sys_fstat((int)fd, &info) == 0 && info.st_dev == file.device && info.st_ino == file.number)
        return fd;
    (void)sg_sys_close((int)fd);
    return -ESTALE;
}

/* Creates the unfinished file for that many records, and locks it. 0 or -errno; the caller closes *fd, if it is set. */
static long create(uint32_t records, int *fd, struct stat *info)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    long result = sg_sys_openat((int)SG_AT_FDCWD, unfinished, flags, file_mode);
    if (result < 0)
        return result;
    *fd = (int)result;
    (void)sg_sys_fchmod(*fd, file_mode);
    result = sg_sys_fstat(*fd, info);
    if (result == 0)
        result = sg_file_allocate(*fd, 0, bytes_for(records), false);
    return result != 0 ? result : sg_sys_flock(*fd, LOCK_EX | LOCK_NB);
}

/* Creates the file, fills it with the contents of the segment mapping, and maps it there. 0 or -errno; the caller
 * closes both descriptors, if they are set. */
static long put_in_place(int *lock_fd, int *map_fd)
{
    struct stat info = {0};
    uint32_t capacity = SG_RECORD_FIRST;
    while (capacity < sg_own->record_used && capacity < SG_RECORD_LIMIT)
        capacity = capacity * 4 < SG_RECORD_LIMIT ? capacity * 4 : SG_RECORD_LIMIT;
    long result = create(capacity, lock_fd, &info);
    if (result == 0)
        result = sg_file_keep_open(*lock_fd);
    if (result != 0)
        return result;
    file.device = info.st_dev;
    file.number = info.st_ino;
    long fd = open_again(unfinished);
    if (fd < 0)
        return fd;
    *map_fd = (int)fd;
    set_record_capacity(capacity);
    uint64_t used = SG_SEGMENT_BYTES(sg_own->record_used < capacity ? sg_own->record_used : capacity);
    result = sg_file_write_at((int)fd, &sg_segment_mapping, used, 0);
    if (result != (long)used)
        return result < 0 ? result : -EIO;
    result = map_file((int)fd, 0, bytes_for(capacity));
    if (result == 0) {
        sg_store(&is_file_mapped, 1);
        sg_store_release(&sg_own->slot.magic, SG_ABI_MAGIC);
        result = sg_sys_rename(unfinished, path);
    }
    return result;
}

static void print_failure(long error)
{
    static char line[SG_PATH_CAPACITY + 160];
    struct sg_text text = sg_text_begin(line, sizeof line);
    sg_text_add(&text, "sparkguard: cannot keep statistics in ");
    sg_text_add(&text, sg_options.dir);
    sg_text_add(&text, sg_directory_error_text(error));
    sg_text_add(&text, "; sparkguard-report will not show this program (SPARKGUARD_DIR)");
    sg_log_line(line);
}

/* Those who share the directory read this record. Passwords and keys are on command lines, so only the program's name
 * is in it. */
static void hide_arguments(void)
{
    for (size_t i = 0, is_behind = 0; file_mode == SG_DIRECTORY_SHARED_MODE && i < sizeof sg_own->command; i++) {
        is_behind |= sg_own->command[i] == ' ';
        if (is_behind)
            sg_own->command[i] = '\0';
    }
}

/* Another user made the directory that this user has by default. */
static void print_other_place(void)
{
    static char line[SG_PATH_CAPACITY + 160];
    struct sg_text text = sg_text_begin(line, sizeof line);
    sg_text_add(&text, "sparkguard: " SG_DEFAULT_DIR);
    sg_text_add_number(&text, (uint64_t)sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0));
    sg_text_add(&text, " is another user's and is not used; records and ledger are in ");
    sg_text_add(&text, sg_options.dir);
    sg_log_line(line);
}

static void attach_locked(void)
{
    int lock_fd = -1, map_fd = -1;
    bool is_first_choice = sg_directory_choose();
    sg_parent_job_adopt();
    describe_process();
    name_file();
    long result = open_directory();
    int directory = (int)result;
    if (directory >= 0) {
        hide_arguments();
        sg_retention_sweep(directory);
        result = put_in_place(&lock_fd, &map_fd);
        if (result != 0 && lock_fd >= 0)
            (void)sg_sys_unlinkat((int)SG_AT_FDCWD, unfinished);
    }
    if (result == 0) {
        sg_store_release(&attachment, (uint32_t)SHARED);
        if (!is_first_choice && sg_job_notice_is_first())
            print_other_place();
    } else if (result == -EMFILE || result == -ENFILE) {
        retry_ns = sg_clock_ns(CLOCK_MONOTONIC) + 1000000000u;
    } else {
        sg_store_release(&attachment, (uint32_t)FAILED);
        if (sg_job_notice_is_first())
            print_failure(result);
    }
    for (int i = 0; i < 3; i++) {
        int fd = i == 0 ? directory : i == 1 ? lock_fd : map_fd;
        if (fd >= 0)
            (void)sg_sys_close(fd);
    }
}

void sg_segment_attach(void)
{
    if (SG_LIKELY(sg_load_acquire(&attachment) != UNTRIED) || sg_options.dir[0] == '\0')
        return;
    if (retry_ns != 0 && sg_clock_ns(CLOCK_MONOTONIC) < retry_ns)
        return;
    struct sg_lock_state state;
    if (!sg_lock_acquire_within(&attach_lock, &state, 1000000000u))
        return;
    if (sg_load_acquire(&attachment) == UNTRIED && sg_procfs_owns_memory())
        attach_locked();
    sg_lock_release(&attach_lock, &state);
}

static bool grow_locked(void)
{
    uint32_t capacity = sg_segment_record_capacity();
    if (!sg_segment_is_shared() || capacity >= SG_RECORD_LIMIT || sg_load(&sg_segment_mirror) != NULL)
        return false;
    uint32_t wanted = capacity * 4 < SG_RECORD_LIMIT ? capacity * 4 : SG_RECORD_LIMIT;
    uint64_t before = bytes_for(capacity), bytes = bytes_for(wanted);
    long fd = open_again(path);
    if (fd < 0)
        return false;
    bool is_grown =
        bytes == before || /* with pages of 64 KiB both capacities may need as many */
        (sg_file_allocate((int)fd, before, bytes - before, false) == 0 && map_file((int)fd, before, bytes) == 0);
    (void)sg_sys_close((int)fd);
    if (is_grown)
        set_record_capacity(wanted);
    return is_grown;
}

void sg_segment_unused(uintptr_t *begin, uintptr_t *end)
{
    uintptr_t mapping = (uintptr_t)&sg_segment_mapping;
    *begin = mapping + bytes_for(sg_segment_record_capacity());
    *end = mapping + sizeof sg_segment_mapping;
}

bool sg_segment_grow(uint32_t seen)
{
    struct sg_lock_state state;
    sg_lock_acquire(&attach_lock, &state);
    bool is_grown = sg_segment_record_capacity() != seen || grow_locked();
    sg_lock_release(&attach_lock, &state);
    return is_grown;
}

/* ---- a file that was removed ------------------------------------------------------------------------------------- */

/* The new file cannot be mapped over the segment mapping, because other threads count there and the counts made in that
 * moment would be lost. The segment is copied to it repeatedly instead. Under attach_lock. */
static void copy_segment(void *to)
{
    uint32_t used = sg_load(&sg_own->record_used), capacity = sg_segment_record_capacity();
    memcpy(to, sg_own, SG_SEGMENT_BYTES(used < capacity ? used : capacity));
}

static void write_mirror(void)
{
    if (sg_load(&sg_segment_mirror) != NULL)
        copy_segment(sg_load(&sg_segment_mirror));
}

void sg_segment_write_mirror(void)
{
    struct sg_lock_state state;
    if (!sg_segment_is_own() || !sg_lock_acquire_within(&attach_lock, &state, 100000000u))
        return;
    write_mirror();
    sg_lock_release(&attach_lock, &state);
}

static void unmap_mirror(void)
{
    if (sg_load(&sg_segment_mirror) != NULL)
        (void)sg_sys_munmap(sg_load(&sg_segment_mirror), mirror_bytes);
    sg_store(&sg_segment_mirror, NULL);
}

/* Makes a new file, maps it as the mirror and gives it its name. Forked children do not inherit the mapping
 * (MADV_DONTFORK), so the file's lock ends with this process. 0 or -errno. */
static long make_mirror_in(int *fd)
{
    uint32_t capacity = sg_segment_record_capacity(); /* four times as many, because a mirror never grows */
    capacity = capacity < SG_RECORD_LIMIT / 4 ? capacity * 4 : SG_RECORD_LIMIT;
    const uint64_t bytes = bytes_for(capacity);
    struct stat info = {0};
    long result = create(capacity, fd, &info);
    if (result != 0)
        return result;
    void *mapped = sg_sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (sg_is_error(mapped))
        return (long)mapped;
    result = sg_sys_madvise(mapped, bytes, MADV_DONTFORK);
    if (result == 0) {
        copy_segment(mapped); /* before the rename: a process killed right after it leaves a complete record */
        result = sg_sys_rename(unfinished, path);
    }
    if (result != 0) {
        (void)sg_sys_munmap(mapped, bytes);
        return result;
    }
    unmap_mirror();
    file.device = info.st_dev;
    file.number = info.st_ino;
    mirror_bytes = bytes;
    sg_store(&sg_segment_mirror, mapped);
    set_record_capacity(capacity);
    write_mirror();
    return 0;
}

static bool make_mirror(void)
{
    struct stat info = {0};
    int fd = -1, directory = sg_directory_open(sg_options.dir, &info);
    if (directory < 0)
        return false;
    (void)sg_sys_close(directory);
    file_mode = sg_directory_file_mode(&info);
    long result = make_mirror_in(&fd);
    if (fd < 0)
        return false;
    if (result != 0)
        (void)sg_sys_unlinkat((int)SG_AT_FDCWD, unfinished);
    (void)sg_sys_close(fd);
    return result == 0;
}

/* 0 if our file still has its name, else -errno; -ESTALE: another file has it. */
static long find_file(void)
{
    struct stat info = {0};
    long result = sg_sys_stat(path, &info);
    return result != 0 ? result : info.st_dev == file.device && info.st_ino == file.number ? 0 : -ESTALE;
}

bool sg_segment_check_place(void)
{
    struct sg_lock_state state;
    bool is_made = false;
    if (!sg_segment_is_own() || !sg_lock_acquire_within(&attach_lock, &state, 100000000u))
        return false;
    if (sg_load(&sg_own->slot.state) == SG_STATE_RUNNING && !is_removed)
        is_made = find_file() == -ENOENT && make_mirror();
    write_mirror();
    sg_lock_release(&attach_lock, &state);
    if (is_made)
        sg_segment_add_event("this record was removed: it is written anew, at most a second behind");
    return is_made;
}

void sg_segment_remove(void)
{
    struct sg_lock_state state;
    bool is_held = sg_lock_acquire_within(&attach_lock, &state, 100000000u);
    (void)sg_sys_unlinkat((int)SG_AT_FDCWD, path);
    is_removed = true;
    if (is_held)
        sg_lock_release(&attach_lock, &state);
}

/* Makes and maps another file, filled from the segment mapping, in place of the removed one. */
void sg_segment_restore(void)
{
    struct sg_lock_state lock;
    if (!is_removed)
        return;
    is_removed = false;
    sg_lock_acquire(&attach_lock, &lock);
    unmap_mirror();
    sg_lock_release(&attach_lock, &lock);
    sg_store_release(&attachment, (uint32_t)UNTRIED);
    sg_segment_attach();
}

bool sg_segment_atfork_child(void)
{
    sg_store(&sg_segment_mirror, NULL);                  /* a child does not inherit the mirror's mapping */
    bool is_attaching = sg_load(&attach_lock.word) != 0; /* a thread of the parent may have mapped the file already */
    sg_lock_reset(&attach_lock);
    sg_procfs_atfork_child();
    if (sg_load(&is_file_mapped) != 0 || is_attaching) {
        void *mapping = sg_sys_mmap(&sg_segment_mapping, SG_SEGMENT_MAPPING_BYTES, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (sg_is_error(mapping))
            return false;
    } else if (sg_sys_madvise(&sg_segment_mapping, SG_SEGMENT_MAPPING_BYTES, MADV_DONTNEED) != 0) {
        memset(&sg_segment_mapping, 0, SG_SEGMENT_BYTES(sg_own->record_used));
    }
    sg_store(&is_file_mapped, 0);
    retry_ns = 0;
    is_removed = false;
    sg_store_release(&attachment, (uint32_t)UNTRIED);
    return true;
}

static uint64_t sparse_peak_bytes; /* (atomic) most that a scan has found */

void sg_segment_note_sparse(uint64_t bytes)
{
    if (SG_UNLIKELY(bytes > sg_load_relaxed(&sparse_peak_bytes)))
        sg_raise_to(&sparse_peak_bytes, bytes);
}

void sg_segment_forget_sparse(void)
{
    if (SG_UNLIKELY(sg_load_relaxed(&sparse_peak_bytes) != 0)) /* a forked child would get a page of its own */
        sg_store_relaxed(&sparse_peak_bytes, UINT64_C(0));
}

bool sg_segment_is_evidence(void)
{
    uint64_t inherited = sg_load_relaxed(&sg_own->slot.inherited_bytes) + sg_load(&sg_own->inherited_shared_bytes);
    uint64_t own = sg_load_relaxed(&sg_own->peak_seen_bytes) - inherited;
    return own + sg_load_relaxed(&sparse_peak_bytes) >= SG_EVIDENCE_BYTES ||
           (sg_load_relaxed(&sg_own->slot.flags) & SG_SLOT_CUDA) != 0 || sg_load_relaxed(&sg_own->refusal_count) != 0;
}

void sg_segment_add_refusal(const struct sg_refusal *refusal)
{
    uint64_t number = sg_fetch_add(&sg_own->refusal_count, UINT64_C(1));
    struct sg_refusal *entry = &sg_own->refusal[number % SG_REFUSAL_CAPACITY];
    sg_store_relaxed(&entry->sequence, 0);
    sg_fence(); /* the zero comes first: no reader takes the new contents for the old entry */
    memcpy((char *)entry + sizeof entry->sequence, (const char *)refusal + sizeof refusal->sequence,
           sizeof *entry - sizeof entry->sequence);
    sg_store_release(&entry->sequence, number + 1);
    sg_segment_write_through();
}

void sg_segment_add_event(const char *event)
{
    uint64_t number = sg_fetch_add(&sg_own->event_count, UINT64_C(1));
    struct sg_event *entry = &sg_own->event[number % SG_EVENT_CAPACITY];
    sg_store_relaxed(&entry->sequence, 0);
    sg_fence(); /* as in sg_segment_add_refusal */
    entry->time_ns = (int64_t)sg_clock_ns(CLOCK_REALTIME);
    struct sg_text text = sg_text_begin(entry->what, sizeof entry->what);
    sg_text_add(&text, event);
    sg_store_release(&entry->sequence, number + 1);
    sg_segment_write_through();
}
