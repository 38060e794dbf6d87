/*
 * admit_take COMMAND... - does what it is told, one answer a line: "ok", "ENOMEM", or a number of bytes.
 *
 *     malloc SIZE | mmap SIZE | sparse SIZE | shared SIZE   takes memory, untouched (sparse: MAP_NORESERVE; shared:
 *                           MAP_SHARED), numbered from 0
 *     touch N | free N | dontneed N           one of them
 *     half N                touches its first half
 *     scan                  is refused more than any machine has, which makes the guard scan all that is promised
 *     small SIZE MOST       malloc of SIZE each, written to, until it is refused or MOST bytes are there: says how many
 *     largest               the most one malloc would give now, to 64 KiB
 *     available SIZE        rewrites MemAvailable in $SPARKGUARD_SYSTEM_ROOT/proc/meminfo; waits until a snapshot is stale
 *     fork                  what follows is done by a child; the parent ends with its status
 *     wait                  says "ready" and reads a line
 *     fill                  malloc and touch 16 MiB blocks until it is refused: says how many bytes
 */
#include "heap_case.h"
#include "look.h"

#include <inttypes.h>
#include <sys/wait.h>
#include <time.h>

static struct {
    char *address;
    size_t bytes;
    int is_mapping;
} block[256];
static unsigned blocks;

static void answer(uint64_t number)
{
    printf("%" PRIu64 "\n", number);
    fflush(stdout);
}

static void say(const char *word)
{
    puts(word);
    fflush(stdout);
}

static uint64_t bytes_of(const char *text)
{
    char *unit;
    uint64_t bytes = strtoull(text, &unit, 10);
    return bytes << (*unit == 'G' ? 30 : *unit == 'M' ? 20 : *unit == 'K' ? 10 : 0);
}

static void take(size_t bytes, int is_mapping, int flags)
{
    char *ptr = is_mapping ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0) : malloc(bytes);
    int is_refused = ptr == NULL || ptr == MAP_FAILED;
    say(!is_refused ? "ok" : errno == ENOMEM ? "ENOMEM" : "other error");
    block[blocks].address = is_refused ? NULL : ptr;
    block[blocks].bytes = bytes;
    block[blocks++].is_mapping = is_mapping;
}

static void give_back(unsigned n)
{
    if (block[n].is_mapping)
        munmap(block[n].address, block[n].bytes);
    else
        free(block[n].address);
    say("ok");
}

static void touch(unsigned n, size_t bytes)
{
    memset(block[n].address, 0x5a, bytes);
    say("ok");
}

static void scan(void)
{
    void *volatile most = ask_for_too_much();
    say(most == NULL ? "ok" : "other error");
    free(most);
}

static void take_small(size_t bytes, uint64_t most)
{
    uint64_t sum = 0;
    while (sum < most) {
        char *ptr = malloc(bytes);
        if (ptr == NULL)
            break;
        memset(ptr, 1, bytes);
        sum += bytes;
    }
    answer(sum);
}

static void find_largest(void)
{
    uint64_t low = 0, high = UINT64_C(64) << 30;
    while (high - low > 65536) {
        void *volatile ptr = malloc((low + high) / 2);
        *(ptr != NULL ? &low : &high) = (low + high) / 2;
        free(ptr);
    }
    answer(low);
}

/* One write of constant length into the same file, as a fake /proc must be changed; a snapshot serves 5 ms. */
static void set_available(uint64_t bytes)
{
    char path[1024], text[16384];
    struct timespec begin, now;
    snprintf(path, sizeof path, "%s/proc/meminfo", getenv("SPARKGUARD_SYSTEM_ROOT"));
    int fd = open(path, O_RDWR);
    ssize_t length = read(fd, text, sizeof text - 1);
    text[length > 0 ? length : 0] = '\0';
    char *field = strstr(text, "MemAvailable:"), number[24];
    snprintf(number, sizeof number, "%15" PRIu64, bytes / 1024);
    memcpy(field + 13, number, 15);
    CHECK_EQUAL(pwrite(fd, text, (size_t)length, 0), length);
    close(fd);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < 6000000);
    say("ok");
}

static void go_on_in_child(void)
{
    int status = 1;
    pid_t child = fork();
    if (child == 0)
        return;
    waitpid(child, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

static void fill(void)
{
    uint64_t sum = 0;
    for (char *ptr; (ptr = malloc(16 * MIB)) != NULL; sum += 16 * MIB)
        memset(ptr, 0x5a, 16 * MIB);
    answer(sum);
}

int main(int count, char **arguments)
{
    static char line[64];
    for (int i = 1; i < count; i++) {
        const char *command = arguments[i];
        if (strcmp(command, "malloc") == 0)
            take(bytes_of(arguments[++i]), 0, 0);
        else if (strcmp(command, "mmap") == 0)
            take(bytes_of(arguments[++i]), 1, MAP_PRIVATE);
        else if (strcmp(command, "sparse") == 0)
            take(bytes_of(arguments[++i]), 1, MAP_PRIVATE | MAP_NORESERVE);
        else if (strcmp(command, "shared") == 0)
            take(bytes_of(arguments[++i]), 1, MAP_SHARED);
        else if (strcmp(command, "free") == 0)
            give_back((unsigned)atoi(arguments[++i]));
        else if (strcmp(command, "touch") == 0) {
            unsigned n = (unsigned)atoi(arguments[++i]);
            touch(n, block[n].bytes);
        } else if (strcmp(command, "half") == 0) {
            unsigned n = (unsigned)atoi(arguments[++i]);
            touch(n, block[n].bytes / 2);
        } else if (strcmp(command, "scan") == 0)
            scan();
        else if (strcmp(command, "dontneed") == 0) {
            unsigned n = (unsigned)atoi(arguments[++i]);
            uintptr_t begin = ((uintptr_t)block[n].address + PAGE - 1) & ~(PAGE - 1);
            uintptr_t end = ((uintptr_t)block[n].address + block[n].bytes) & ~(PAGE - 1);
            say(madvise((void *)begin, end - begin, MADV_DONTNEED) == 0 ? "ok" : "error");
        } else if (strcmp(command, "small") == 0) {
            take_small(bytes_of(arguments[i + 1]), bytes_of(arguments[i + 2]));
            i += 2;
        } else if (strcmp(command, "largest") == 0)
            find_largest();
        else if (strcmp(command, "available") == 0)
            set_available(bytes_of(arguments[++i]));
        else if (strcmp(command, "fork") == 0)
            go_on_in_child();
        else if (strcmp(command, "wait") == 0) {
            say("ready");
            if (fgets(line, sizeof line, stdin) == NULL)
                return 3;
        } else if (strcmp(command, "fill") == 0)
            fill();
        else
            return 2;
    }
    return 0;
}
