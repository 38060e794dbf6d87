/*
 * fixture.h - what the unit tests share: tests in a process of their own, a folder of their own, a machine of their
 * own.
 *
 * The core keeps its state in static variables and reads its options once, so a test that touches them runs in a forked
 * child: CHILD_TEST(name) { ... }. There CHECK takes the place of cmocka's assertions, which only work in the parent;
 * SKIP ends the test as skipped.
 */
#ifndef SG_TEST_FIXTURE_H
#define SG_TEST_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/procfs.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)
#define GIB (MIB * 1024)
#define FIXTURE __attribute__((unused)) static

enum { SKIPPED_STATUS = 77, CHILD_SECONDS = 240 };

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            dprintf(fixture_say, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition); \
            _exit(1); \
        } \
    } while (0)

#define CHECK_EQUAL(left, right) \
    do { \
        long long fixture_left = (long long)(left), fixture_right = (long long)(right); \
        if (fixture_left != fixture_right) { \
            dprintf(fixture_say, "%s:%d: %s: %s is %lld, not %s = %lld\n", __FILE__, __LINE__, __func__, #left, \
                    fixture_left, #right, fixture_right); \
            _exit(1); \
        } \
    } while (0)

#define CHECK_TEXT(left, right) \
    do { \
        if (strcmp((left), (right)) != 0) { \
            dprintf(fixture_say, "%s:%d: %s: \"%s\", not \"%s\"\n", __FILE__, __LINE__, __func__, (left), (right)); \
            _exit(1); \
        } \
    } while (0)

#define SKIP(why) \
    do { \
        dprintf(fixture_say, "%s: skipped: %s\n", __func__, (why)); \
        _exit(SKIPPED_STATUS); \
    } while (0)

/* Where failures are said: descriptor 2, unless a test needs that for itself. */
FIXTURE int fixture_say = 2;

/* The test's own folder; removed afterwards. Its address is a short one: it goes into socket and option names. */
FIXTURE char fixture_folder[64];

FIXTURE void fixture_run(void (*body)(void))
{
    strcpy(fixture_folder, "/dev/shm/sg-unit-XXXXXX");
    if (mkdtemp(fixture_folder) == NULL) {
        strcpy(fixture_folder, "/tmp/sg-unit-XXXXXX");
        assert_non_null(mkdtemp(fixture_folder));
    }
    (void)fflush(NULL);
    static bool is_registered;
    if (!is_registered) /* as the library does: a forked child's memory is its own */
        assert_int_equal(pthread_atfork(NULL, NULL, sg_procfs_atfork_child), 0);
    is_registered = true;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)alarm(CHILD_SECONDS);
        body();
#ifdef __SANITIZE_ADDRESS__
        _exit(0); /* nothing leaks in a process that ends here */
#endif
        exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", fixture_folder);
    assert_int_equal(system(command), 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED_STATUS)
        skip();
    if (WIFSIGNALED(status))
        fail_msg("ended by signal %d", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define CHILD_TEST(name) \
    static void name##_body(void); \
    static void name(void **unused) \
    { \
        (void)unused; \
        fixture_run(name##_body); \
    } \
    static void name##_body(void)

/* Whether this process has much private memory that nobody touches, beside that of a test: the shadow of a sanitizer,
 * or what qemu-user keeps for its program. */
static inline bool fixture_is_beside_shadow(void)
{
    unsigned long resident = 0, shared = 0, data = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    int found = file != NULL ? fscanf(file, "%*u %lu %lu %*u %*u %lu", &resident, &shared, &data) : 0;
    if (file != NULL)
        (void)fclose(file);
    return found != 3 || (data - (resident - shared)) * (uint64_t)sysconf(_SC_PAGESIZE) > 64 * MIB;
}

#define SKIP_BESIDE_SHADOW() \
    do { \
        if (fixture_is_beside_shadow()) \
            SKIP("not only the program's memory is in the kernel's figure (a sanitizer, qemu-user)"); \
    } while (0)

#define PLAIN_TEST(name) static void name(void **unused __attribute__((unused)))

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* The path of `name` in the test's folder; valid until the 8th next call. */
FIXTURE const char *in_folder(const char *name)
{
    static char paths[8][1024];
    static unsigned next;
    char *path = paths[next++ % 8];
    (void)snprintf(path, sizeof paths[0], "%s/%s", fixture_folder, name);
    return path;
}

/* Writes a file below the test's folder, with the folders above it; whole at every instant. */
__attribute__((format(printf, 2, 3))) FIXTURE void put_file(const char *name, const char *format, ...)
{
    char path[2048], fresh[2064];
    (void)snprintf(path, sizeof path, "%s/%s", fixture_folder, name);
    for (char *slash = strchr(path + strlen(fixture_folder) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        CHECK(mkdir(path, 0755) == 0 || errno == EEXIST);
        *slash = '/';
    }
    (void)snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "w");
    CHECK(file != NULL);
    va_list arguments;
    va_start(arguments, format);
    CHECK(vfprintf(file, format, arguments) >= 0);
    va_end(arguments);
    CHECK(fclose(file) == 0);
    CHECK(rename(fresh, path) == 0);
}

/* ---- what a test may need to know -------------------------------------------------------------------------------- */

FIXTURE uint64_t clock_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* xorshift64*: the same numbers in every run. */
FIXTURE uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return *seed * UINT64_C(0x2545f4914f6cdd1d);
}

/* The state letter in a file of /proc: 'S' once the thread sleeps in the kernel. */
FIXTURE char state_in(const char *path)
{
    char text[512];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        (void)close(fd);
    if (got <= 0)
        return '?';
    text[got] = '\0';
    const char *behind = strrchr(text, ')');
    return behind != NULL && behind[1] == ' ' ? behind[2] : '?';
}

/* Of a thread of this process. */
FIXTURE char thread_state(int tid)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    return state_in(path);
}

/* Of the first thread of a process. */
FIXTURE char process_state(pid_t pid)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    return state_in(path);
}

/* Whether MADV_DONTFORK does what it says: qemu-user takes it and does nothing. */
FIXTURE bool has_dontfork(void)
{
    void *page = mmap(NULL, 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED && madvise(page, 65536, MADV_DONTFORK) == 0);
    int status = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        unsigned char resident[16];
        _exit(mincore(page, 65536, resident) == -1 && errno == ENOMEM ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return status == 0;
}

#endif
