/*
 * madvise.c - the hooks of madvise, process_madvise, mlock and mlockall: calls that make all pages of a mapping
 * resident at once, or give them back.
 *
 * Promised memory may become resident at any time, so it is not judged again. Other memory is judged before it becomes
 * resident: pages of MAP_NORESERVE mappings, of shared memory that is only read, and copies of a file's pages. So is
 * page cache before it is locked: MemAvailable contains it until then.
 */
#include "hooks/mmap/madvise.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "account/tracker.h"
#include "admit/repeat.h"
#include "hooks/lifecycle.h"
#include "hooks/mmap/change.h"
#include "hooks/mmap/file_locks.h"
#include "hooks/mmap/fork.h"
#include "hooks/mmap/lock_all.h"
#include "hooks/real.h"
#include "base/syscall.h"
#include "base/text.h"
#include "watch/watchdog.h"
#include "base/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif
#define DONTNEED_LOCKED 24 /* MADV_DONTNEED_LOCKED, Linux 5.18 */

/* Rounds *begin down to a page and returns the bytes of the whole pages that `length` bytes from there touch, as mlock
 * and madvise count them. Returns 0 if the length is 0 or beyond the address space. */
static uint64_t pages_of(uintptr_t *begin, uint64_t length)
{
    uint64_t page = sg_page_bytes(), end = sg_round_up(*begin + length, page);
    *begin &= ~(uintptr_t)(page - 1);
    return length <= SG_MAP_MAX && end > *begin ? end - *begin : 0;
}

/* Adds the bytes that would become resident without a promise to the request. */
static SG_INLINE void add_absent(struct sg_request *request, uintptr_t begin, uint64_t length, bool is_copying)
{
    if (!sg_mmap_is_counting() || sg_load_relaxed(&sg_tracker_maps.chunk_count) == 0)
        return;
    uint64_t bytes = pages_of(&begin, length);
    request->sparse_bytes += bytes != 0 ? sg_mmap_absent_bytes(begin, bytes, is_copying) : 0;
}

/* Asks for admission of request->sparse_bytes. The real call may take minutes, and a fatal signal must be able to end
 * it: signals are not blocked for a large request. */
static bool ask(struct sg_request *request, const char *call)
{
    request->domain = SG_DOMAIN_MAPPED;
    request->size_bytes = request->growth_bytes = request->sparse_bytes;
    request->wording.call = call;
    return request->sparse_bytes == 0 || sg_mmap_judge(request);
}

/* Settles the request. A failed call may have made some pages resident; the next scan finds them. */
static void settle(struct sg_request *request, bool is_done)
{
    if (request->sparse_bytes == 0)
        return;
    int saved_errno = errno;
    sg_mmap_settle(request, is_done);
    sg_watchdog_consider();
    errno = saved_errno;
}

static ssize_t real_process_madvise(int pidfd, const struct iovec *pieces, size_t count, int advice, unsigned flags)
{
    if (SG_REAL(process_madvise) != NULL)
        return SG_REAL(process_madvise)(pidfd, pieces, count, advice, flags);
    long answer = sg_syscall(SYS_process_madvise, pidfd, (long)pieces, (long)count, advice, (long)flags, 0);
    if (answer < 0) /* glibc older than 2.36 has no process_madvise */
        errno = (int)-answer;
    return answer < 0 ? -1 : answer;
}

static bool is_populating(int advice)
{
    return advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE;
}

static bool gives_back(int advice)
{
    return advice == MADV_DONTNEED || advice == MADV_REMOVE || advice == MADV_FREE || advice == DONTNEED_LOCKED;
}

/* The private memory whose pages the advice gives back: it may be touched again without a request. */
static SG_INLINE uint64_t returned_bytes(uintptr_t begin, uint64_t length, int advice)
{
    if (!gives_back(advice) || length == 0 || length > SG_MAP_MAX || begin > SG_MAP_MAX || !sg_mmap_is_counting())
        return 0;
    return sg_tracker_promisable_bytes(begin, begin + sg_round_up(length, sg_page_bytes()));
}

static void begin_return(uint64_t bytes)
{
    if (bytes != 0)
        sg_admission_begin_return(bytes);
}

static void end_return(uint64_t bytes)
{
    int saved_errno = errno;
    if (bytes != 0)
        sg_admission_end_return(bytes);
    errno = saved_errno;
}

/* Follows an advice that gives pages back, or that says whether a forked child has the range. madvise does all that is
 * mapped before it fails with ENOMEM, so such a failure counts as done for the latter. */
static SG_INLINE void note_advice(uintptr_t begin, uint64_t length, int advice, bool is_done)
{
    if (is_done && gives_back(advice) && length != 0 && sg_mmap_is_counting())
        sg_repeat_forget();
    bool is_of_fork =
        advice == MADV_DONTFORK || advice == MADV_DOFORK || advice == MADV_WIPEONFORK || advice == MADV_KEEPONFORK;
    if (is_of_fork && (is_done || errno == ENOMEM) && length != 0 && sg_lifecycle_enter())
        sg_mmap_note_advice(begin, begin + sg_round_up(length, sg_page_bytes()), advice);
}

SG_EXPORT int madvise(void *address, size_t length, int advice)
{
    struct sg_request request = {0};
    bool is_asked = is_populating(advice);
    if (is_asked)
        add_absent(&request, (uintptr_t)address, length, advice == MADV_POPULATE_WRITE);
    if (!ask(&request, "madvise"))
        return -1;
    uint64_t returned = returned_bytes((uintptr_t)address, length, advice);
    begin_return(returned);
    int answer = SG_REAL(madvise)(address, length, advice);
    end_return(returned);
    settle(&request, answer == 0);
    note_advice((uintptr_t)address, length, advice, answer == 0);
    return answer;
}

/* Returns whether a process descriptor (pidfd) means this process. /proc/self/fdinfo has a line "Pid:", a tab and the
 * number. A negative number may be PIDFD_SELF (Linux 6.14), whose value was another at first: -10000 and everything
 * below are taken for it. */
static bool is_of_this_process(int pidfd)
{
    char path[64], info[512] = "", own[32];
    struct sg_text text = sg_text_begin(path, sizeof path), line = sg_text_begin(own, sizeof own);
    if (pidfd < 0)
        return pidfd <= -10000;
    sg_text_add(&text, "/proc/self/fdinfo/");
    sg_text_add_number(&text, (uint64_t)pidfd);
    sg_text_add(&line, "\nPid:\t");
    sg_text_add_number(&line, sg_sys_getpid());
    sg_text_add(&line, "\n");
    long fd = sg_sys_openat((int)SG_AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    long length = fd >= 0 ? sg_sys_read((int)fd, info, sizeof info - 1) : 0;
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
    return length > 0 && strstr(info, own) != NULL;
}

/* Whether eight bytes at `address` are readable. Uses rt_sigprocmask, which every sandbox allows: the kernel reads the
 * mask before it rejects the unknown operation. */
static bool is_readable(uintptr_t address)
{
    enum { NOTHING_KNOWN = 99 };
    return sg_syscall(SYS_rt_sigprocmask, NOTHING_KNOWN, (long)address, 0, 8, 0, 0) != -EFAULT;
}

/* Whether the kernel can read the list; otherwise it answers EFAULT. */
static bool are_readable(const struct iovec *pieces, size_t count)
{
    _Static_assert(sizeof *pieces == 16, "two times eight bytes");
    bool is_sound = pieces != NULL && count <= IOV_MAX;
    for (size_t i = 0; is_sound && i < count; i++)
        is_sound = is_readable((uintptr_t)(pieces + i)) && is_readable((uintptr_t)(pieces + i) + 8);
    return is_sound;
}

/* Since Linux 6.13 process_madvise may populate and give back memory of the calling process. The kernel does the pieces
 * in order, up to the first that fails. */
SG_EXPORT ssize_t process_madvise(int pidfd, const struct iovec *pieces, size_t count, int advice, unsigned flags)
{
    struct sg_request request = {0};
    bool is_own = is_of_this_process(pidfd) && are_readable(pieces, count), is_asked = is_own && is_populating(advice);
    for (size_t i = 0; is_asked && i < count; i++)
        add_absent(&request, (uintptr_t)pieces[i].iov_base, pieces[i].iov_len, advice == MADV_POPULATE_WRITE);
    if (is_asked && !ask(&request, "process_madvise"))
        return -1;
    uint64_t returned = 0;
    for (size_t i = 0; is_own && i < count; i++)
        returned += returned_bytes((uintptr_t)pieces[i].iov_base, pieces[i].iov_len, advice);
    begin_return(returned);
    ssize_t answer = real_process_madvise(pidfd, pieces, count, advice, flags);
    end_return(returned);
    if (is_asked)
        settle(&request, answer > 0);
    for (size_t i = 0, left = answer > 0 ? (size_t)answer : 0; is_own && i < count && left != 0; i++) {
        size_t length = pieces[i].iov_len < left ? pieces[i].iov_len : left;
        note_advice((uintptr_t)pieces[i].iov_base, length, advice, true);
        left -= length;
    }
    return answer;
}

/* A call that locks memory: what becomes resident without a promise, and page cache that cannot be reclaimed then. */
struct lock_request {
    struct sg_request absent, cache;
};

/* Shorter locks of page cache are not judged: programs lock keys and single pages often. */
#define CACHE_LEAST UINT64_C(65536)

/* The locked page cache is compared with the machine and the cgroups. It does not count in LIMIT, as no page cache
 * does. */
static SG_INLINE void describe_cache(struct sg_request *request, uintptr_t begin, uint64_t length, bool is_on_fault,
                                     const char *call)
{
    bool is_long = length >= CACHE_LEAST && sg_mmap_is_counting();
    uint64_t bytes = is_long ? pages_of(&begin, length) : 0;
    request->domain = SG_DOMAIN_MAPPED;
    request->size_bytes = bytes != 0 ? sg_mmap_unlocked_file_bytes(begin, begin + bytes, is_on_fault) : 0;
    request->wording.call = call;
    if (request->size_bytes < CACHE_LEAST)
        request->size_bytes = 0;
}

static bool ask_lock(struct lock_request *request, const char *call)
{
    bool is_admitted = ask(&request->absent, call);
    if (!is_admitted || request->cache.size_bytes == 0 || sg_admission_ask(&request->cache))
        return is_admitted;
    settle(&request->absent, false);
    errno = ENOMEM;
    return false;
}

/* The kernel shows the locked pages by now. */
static void settle_lock(struct lock_request *request, bool is_done)
{
    int saved_errno = errno;
    if (request->cache.size_bytes != 0)
        sg_admission_settle(&request->cache, 0);
    errno = saved_errno;
    settle(&request->absent, is_done);
}

uint64_t sg_mmap_pinned_bytes(uintptr_t begin, uint64_t length)
{
    uint64_t bytes = sg_load_relaxed(&sg_tracker_maps.chunk_count) != 0 ? pages_of(&begin, length) : 0;
    return bytes != 0 ? sg_mmap_absent_bytes(begin, bytes, true) : 0;
}

SG_EXPORT int mlock(const void *address, size_t length)
{
    struct lock_request request = {0};
    add_absent(&request.absent, (uintptr_t)address, length, true);
    describe_cache(&request.cache, (uintptr_t)address, length, false, "mlock");
    if (!ask_lock(&request, "mlock"))
        return -1;
    int answer = SG_REAL(mlock)(address, length);
    settle_lock(&request, answer == 0);
    return answer;
}

SG_EXPORT int mlock2(const void *address, size_t length, unsigned flags)
{
    struct lock_request request = {0};
    if ((flags & MLOCK_ONFAULT) == 0)
        add_absent(&request.absent, (uintptr_t)address, length, true);
    describe_cache(&request.cache, (uintptr_t)address, length, (flags & MLOCK_ONFAULT) != 0, "mlock2");
    if (!ask_lock(&request, "mlock2"))
        return -1;
    int answer = SG_REAL(mlock2)(address, length, flags);
    settle_lock(&request, answer == 0);
    return answer;
}

SG_EXPORT int mlockall(int flags)
{
    struct lock_request request = {0};
    if ((flags & MCL_CURRENT) != 0 && (flags & MCL_ONFAULT) == 0)
        add_absent(&request.absent, 0, SG_MAP_MAX, true);
    if ((flags & MCL_CURRENT) != 0)
        describe_cache(&request.cache, 0, SG_MAP_MAX, (flags & MCL_ONFAULT) != 0, "mlockall");
    if (!ask_lock(&request, "mlockall"))
        return -1;
    int answer = sg_lock_all(flags);
    settle_lock(&request, answer == 0);
    if (answer == 0)
        sg_mmap_lock_future((flags & MCL_FUTURE) != 0 && (flags & MCL_ONFAULT) == 0);
    return answer;
}

SG_EXPORT int munlockall(void)
{
    int answer = SG_REAL(munlockall)();
    if (answer == 0)
        sg_mmap_lock_future(false);
    return answer;
}
