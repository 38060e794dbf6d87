/*
 * array_cases.c - blocks that take the way of array credit (ledger.h): counted to the byte, on threads, with their call
 * sites and peaks.
 */
#include "heap_case.h"

#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>

enum { THREADS = 6, HELD = 5, ROUNDS = 12, STEPS = 1500 };

static pthread_barrier_t barrier;

static uint64_t random_of(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Credit of all threads, as the records show it. */
static uint64_t credit(void)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < segment->record_used; i++)
        bytes += sg_array_credit_bytes(__atomic_load_n(&segment->record[i].array_credit, __ATOMIC_SEQ_CST));
    return bytes;
}

/* Bytes and blocks that the call sites of the heap hold, without the credit. */
static uint64_t at_sites(int64_t *count)
{
    uint64_t bytes = 0;
    *count = 0;
    for (int i = 0; i < SG_CALLSITE_CAPACITY; i++) {
        bytes += segment->site[SG_CALLSITES_HEAP][i].live_bytes;
        *count += (int64_t)segment->site[SG_CALLSITES_HEAP][i].live_count;
    }
    for (uint32_t i = 0; i < segment->record_used; i++) {
        bytes -= sg_array_site_bytes(segment->record[i].array_credit);
        *count -= (int64_t)sg_array_site_count(segment->record[i].array_credit);
    }
    return bytes;
}

/* glibc serves all of these from its heap once it has seen a mapping of this size freed. */
static void raise_the_mmap_threshold(void)
{
    for (int i = 0; i < 3; i++)
        free(malloc(32 * MIB - 8192));
}

static void use_credit(size_t size)
{
    for (int i = 0; i < 100; i++)
        free(malloc(size));
}

/* Under a limit only a process with a watchdog has array credit: it begins with 256 MiB. */
static uint64_t hold_until_watched(void)
{
    static void *volatile base;
    const struct timespec pause = {0, 5000000};
    base = malloc(300 * MIB);
    CHECK(base != NULL);
    for (int i = 0; (segment->slot.flags & SG_SLOT_WATCHED) == 0; i++) {
        CHECK(i < 12000);        /* a minute */
        nanosleep(&pause, NULL); /* poll: the watchdog */
    }
    nanosleep(&pause, NULL); /* pace: the next request takes a new snapshot, as this one is 5 ms old */
    nanosleep(&pause, NULL); /* pace: the same */
    return malloc_usable_size(base);
}

CASE(pairs_use_credit)
{
    raise_the_mmap_threshold();
    uint64_t before = live(SG_DOMAIN_HEAP);
    for (size_t size = 256 << 10; size < 32 * MIB; size *= 2) {
        use_credit(size);
        CHECK(credit() >= size);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
        uint64_t granted = segment->slot.granted_bytes;
        void *volatile ptr = malloc(size);
        CHECK_EQUAL(segment->slot.granted_bytes, granted); /* paid */
        CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, malloc_usable_size(ptr));
        free(ptr);
    }
}

CASE(pairs_use_credit_under_a_limit)
{
    raise_the_mmap_threshold();
    use_credit(8 * MIB);
    CHECK_EQUAL(credit(), 0); /* nothing would take it back while the process is idle */
    hold_until_watched();
    use_credit(8 * MIB);
    CHECK(credit() >= 8 * MIB);
}

/* Every function that allocates, and blocks that end in realloc. */
CASE(every_function_is_counted)
{
    raise_the_mmap_threshold();
    uint64_t before = live(SG_DOMAIN_HEAP);
    int64_t count;
    for (int round = 0; round < 40; round++) {
        void *ptr[7] = {malloc(3 * MIB),
                        calloc(3, MIB),
                        aligned_alloc(4096, 3 * MIB),
                        memalign(64, 3 * MIB),
                        valloc(3 * MIB),
                        realloc(malloc(2 * MIB), 3 * MIB),
                        NULL};
        CHECK_EQUAL(posix_memalign(&ptr[6], 64, 3 * MIB), 0);
        uint64_t sum = 0;
        for (int i = 0; i < 7; i++)
            sum += malloc_usable_size(ptr[i]);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, sum);
        CHECK_EQUAL(at_sites(&count), sum);
        CHECK_EQUAL(count, 7);
        for (int i = 0; i < 7; i++)
            free(ptr[i]);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
        CHECK_EQUAL(at_sites(&count), 0);
        CHECK_EQUAL(count, 0);
    }
}

CASE(refused_after_pairs)
{
    raise_the_mmap_threshold();
    use_credit(8 * MIB);
    CHECK(malloc(3072 * MIB) == NULL);
}

/* ---- threads ---- */

static void *held[THREADS][HELD];

static __attribute__((noinline)) void *at_one_site(size_t size)
{
    void *volatile ptr = malloc(size);
    return ptr;
}

static __attribute__((noinline)) void *at_another_site(size_t size)
{
    void *volatile ptr = malloc(size);
    return ptr;
}

static void *storm(void *argument)
{
    uint64_t me = (uint64_t)(uintptr_t)argument, state = me + 1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int step = 0; step < STEPS; step++) {
            uint64_t at = random_of(&state) % HELD;
            size_t size = ((size_t)200 << 10) << random_of(&state) % 6; /* to 6.25 MiB */
            if (random_of(&state) % 8 == 0) {                           /* what another thread allocated */
                uint64_t other = random_of(&state) % THREADS;
                void *mine = __atomic_exchange_n(&held[other][at], NULL, __ATOMIC_SEQ_CST);
                free(mine);
                continue;
            }
            void *ptr = random_of(&state) % 2 == 0 ? at_one_site(size) : at_another_site(size);
            CHECK(ptr != NULL);
            free(__atomic_exchange_n(&held[me][at], ptr, __ATOMIC_SEQ_CST));
        }
        pthread_barrier_wait(&barrier); /* all stand still */
        pthread_barrier_wait(&barrier); /* the main thread has compared */
    }
    return NULL;
}

static void compare(uint64_t before)
{
    uint64_t sum = 0, of_sites = 0;
    int64_t count, blocks = 0;
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < HELD; k++) {
            uint64_t usable = held[i][k] != NULL ? malloc_usable_size(held[i][k]) : 0;
            sum += usable;
            of_sites += usable > 2 * MIB ? usable : 0; /* as SPARKGUARD_LARGE */
            blocks += usable > 2 * MIB;
        }
    CHECK_EQUAL(live(SG_DOMAIN_HEAP) - before, sum);
    CHECK_EQUAL(at_sites(&count), of_sites);
    CHECK_EQUAL(count, blocks);
    CHECK_EQUAL(segment->unmatched_frees, 0);
    CHECK_EQUAL(segment->faults, 0);
}

CASE(threads_are_counted_to_the_byte)
{
    pthread_t thread[THREADS];
    raise_the_mmap_threshold();
    CHECK_EQUAL(pthread_barrier_init(&barrier, NULL, THREADS + 1), 0);
    uint64_t first = live(SG_DOMAIN_HEAP), seen = 0;
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK_EQUAL(pthread_create(&thread[i], NULL, storm, (void *)i), 0);
    pthread_barrier_wait(&barrier);
    uint64_t others = live(SG_DOMAIN_HEAP); /* with what the threads themselves allocated: their stacks' bookkeeping */
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < HELD; k++)
            others -= held[i][k] != NULL ? malloc_usable_size(held[i][k]) : 0;
    CHECK(others >= first && others - first < MIB);
    for (int round = 0; round < ROUNDS; round++) {
        compare(others);
        seen += credit() != 0;
        pthread_barrier_wait(&barrier);
        if (round + 1 < ROUNDS)
            pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    CHECK(seen > ROUNDS / 2); /* the storm went the way that it is for */
}

/* ---- peaks ---- */

static uint64_t peak(void)
{
    return segment->peak_seen_bytes;
}

CASE(peak_counts_no_credit)
{
    raise_the_mmap_threshold();
    uint64_t before = live(SG_DOMAIN_HEAP);
    void *volatile base = malloc(100 * MIB);
    use_credit(16 * MIB);                                                           /* the peak is now 116 MiB */
    CHECK(peak() - before >= 116 * MIB && peak() - before <= 117 * MIB + PAGE * 8); /* 1 MiB of credit */
    CHECK(credit() >= 16 * MIB);
    void *volatile more = malloc(10 * MIB); /* from the credit: 110 MiB */
    void *next = mmap(NULL, 12 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* 122 MiB */
    CHECK(next != MAP_FAILED);
    CHECK(peak() - before >= 122 * MIB && peak() - before <= 123 * MIB + PAGE * 8);
    free(more);
    munmap(next, 12 * MIB);
    free(base);
}

static void *hold_and_end(void *unused)
{
    use_credit(8 * MIB);
    return unused;
}

CASE(credit_of_ended_threads_is_given_back)
{
    pthread_t thread;
    raise_the_mmap_threshold();
    uint64_t before = 0;
    for (int i = 0; i < 20; i++) {
        CHECK_EQUAL(pthread_create(&thread, NULL, hold_and_end, NULL), 0);
        pthread_join(thread, NULL);
        if (i == 0) /* with what the libc keeps of a first thread */
            before = live(SG_DOMAIN_HEAP);
    }
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    CHECK(credit() <= 2 * 8 * MIB + 1024); /* each thread took the record of the one before it */
}

CASE(forked_child_has_no_credit)
{
    int64_t count;
    raise_the_mmap_threshold();
    void *volatile kept = malloc(4 * MIB);
    uint64_t before = live(SG_DOMAIN_HEAP), usable = malloc_usable_size(kept);
    use_credit(2 * MIB);
    CHECK(credit() >= 2 * MIB);
    if (fork() == 0) {
        use_credit(2 * MIB); /* the child opens a segment of its own */
        segment = find_segment();
        CHECK(segment != NULL);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
        CHECK_EQUAL(at_sites(&count), usable);
        CHECK_EQUAL(count, 1);
        free(kept);
        CHECK_EQUAL(live(SG_DOMAIN_HEAP), before - usable);
        _exit(0);
    }
    int status = 1;
    CHECK(wait(&status) > 0);
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), before);
    free(kept);
}

/* ---- the limit, and other processes of the job ---- */

static uint64_t limit_bytes(void)
{
    CHECK(getenv("TEST_LIMIT_MIB") != NULL);
    return strtoull(getenv("TEST_LIMIT_MIB"), NULL, 10) * MIB;
}

static uint64_t held_sum, held_most;

/* What a thread holds is in held_sum for as long as it is certainly live. */
static void give_up(void *block)
{
    if (block != NULL)
        __atomic_fetch_sub(&held_sum, malloc_usable_size(block), __ATOMIC_SEQ_CST);
    free(block);
}

static void *fill(void *argument)
{
    void *mine[32] = {NULL};
    uint64_t state = (uintptr_t)argument;
    for (int step = 0; step < 6000; step++) {
        uint64_t at = random_of(&state) % 32;
        give_up(mine[at]);
        mine[at] = random_of(&state) % 3 == 0 ? NULL : malloc(((size_t)300 << 10) << random_of(&state) % 5);
        if (mine[at] == NULL)
            continue;
        uint64_t bytes = malloc_usable_size(mine[at]);
        uint64_t now = __atomic_add_fetch(&held_sum, bytes, __ATOMIC_SEQ_CST), most = held_most;
        while (now > most &&
               !__atomic_compare_exchange_n(&held_most, &most, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            ;
    }
    pthread_barrier_wait(&barrier); /* together they want more than there is, one behind the other or at once */
    for (int i = 0; i < 32; i++)
        give_up(mine[i]);
    return NULL;
}

/* Credit pays without a decision, and yet never for more than the limit. */
CASE(threads_stay_within_the_limit)
{
    pthread_t thread[THREADS];
    raise_the_mmap_threshold();
    held_most = held_sum = hold_until_watched();
    CHECK_EQUAL(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK_EQUAL(pthread_create(&thread[i], NULL, fill, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    CHECK(segment->refusal_count != 0); /* the threads met the limit */
    CHECK(held_most <= limit_bytes());
    CHECK(held_most > limit_bytes() / 10 * 8); /* and used most of it */
}

/* A request that fits without the credit is granted. */
CASE(credit_refuses_nothing)
{
    raise_the_mmap_threshold();
    hold_until_watched();
    use_credit(8 * MIB);
    CHECK(credit() >= 8 * MIB);
    uint64_t left = limit_bytes() - live(SG_DOMAIN_HEAP) - live(SG_DOMAIN_MAPPED);
    void *volatile most = malloc(left - 3 * MIB);
    CHECK(most != NULL);
    CHECK_EQUAL(segment->refusal_count, 0);
    CHECK(malloc(4 * MIB) == NULL);
    free(most);
}

/* Says that it holds memory, and ends with its input. */
CASE(hold)
{
    char byte;
    void *volatile block = malloc(3 * MIB);
    CHECK(block != NULL && write(1, "h", 1) == 1);
    CHECK(read(0, &byte, 1) == 0);
    free(block);
}

static pid_t start_another(int *input)
{
    int in[2], out[2];
    char byte, *arguments[] = {"array_cases", "hold", NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, in[0], 0) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, out[1], 1) == 0);
    CHECK_EQUAL(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    CHECK(read(out[0], &byte, 1) == 1);
    close(in[0]);
    close(out[0]);
    close(out[1]);
    *input = in[1];
    return pid;
}

/* Other processes of the job count what this one was granted, so it gives the credit up, though it decides nothing. */
CASE(another_process_of_the_job_ends_credit)
{
    int input, status = 1;
    raise_the_mmap_threshold();
    use_credit(8 * MIB);
    pid_t pid = start_another(&input);
    CHECK(credit() >= 8 * MIB); /* nothing has told it yet */
    time_t end = time(NULL) + 20;
    for (int without = 0; without < 3 && time(NULL) < end; without = credit() == 0 ? without + 1 : 0)
        use_credit(8 * MIB); /* 16384 arrays and 5 ms later it notices */
    CHECK_EQUAL(credit(), 0);
    close(input);
    CHECK_EQUAL(waitpid(pid, &status, 0), pid);
    CHECK_EQUAL(status, 0);
}

/* Holds nothing, and idles: what it has promised and freed before is nobody's. */
CASE(idle)
{
    char byte;
    for (int i = 0; i < 400; i++)
        free(malloc(MIB));
    CHECK(write(1, "h", 1) == 1);
    CHECK(read(0, &byte, 1) == 0);
}

CASE(take_what_is_left)
{
    void *volatile block = malloc(strtoull(getenv("TEST_TAKE_MIB"), NULL, 10) * MIB);
    CHECK(block != NULL);
    free(block);
}

/* ---- the headroom falls ---- */

static const char *meminfo;
static volatile int phase;
static uint64_t taken[8];

static void write_meminfo(unsigned available_mib)
{
    char text[256], name[4096];
    snprintf(name, sizeof name, "%s.new", meminfo);
    int length = snprintf(text, sizeof text, "MemTotal: %u kB\nMemFree: %u kB\nMemAvailable: %u kB\n", 64u << 20,
                          available_mib << 10, available_mib << 10);
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && write(fd, text, (size_t)length) == length);
    close(fd);
    CHECK_EQUAL(rename(name, meminfo), 0);
}

/* Takes and frees arrays; in phase 1 it stands still, in phase 2 it takes what it gets. */
static void *worker(void *argument)
{
    uintptr_t me = (uintptr_t)argument;
    static void *got[8][64];
    while (phase == 0)
        use_credit(16 * MIB);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 64; i++) {
        got[me][i] = malloc(4 * MIB);
        taken[me] += got[me][i] != NULL ? malloc_usable_size(got[me][i]) : 0;
    }
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 64; i++)
        free(got[me][i]);
    return NULL;
}

/* Their promises may be gone: the next arrays are promised ahead. */
CASE(arrays_that_a_decision_has_seen_give_credit)
{
    void *old[20];
    meminfo = getenv("TEST_MEMINFO");
    CHECK(meminfo != NULL);
    write_meminfo(32 << 10);
    raise_the_mmap_threshold();
    for (int i = 0; i < 20; i++)
        old[i] = malloc(MIB);
    CHECK(malloc(40960 * MIB) == NULL); /* looks at everything before it is refused */
    for (int i = 0; i < 20; i++)
        free(old[i]);
    CHECK(credit() >= 4 * MIB);
}

/* The bound: a thread that has credit when the headroom falls takes at most that much more, and nothing after a
 * scan. */
CASE(headroom_that_falls_leaves_credit_at_most)
{
    pthread_t thread[8];
    meminfo = getenv("TEST_MEMINFO");
    CHECK(meminfo != NULL);
    write_meminfo(32 << 10);
    raise_the_mmap_threshold();
    CHECK_EQUAL(pthread_barrier_init(&barrier, NULL, 9), 0);
    for (uintptr_t i = 0; i < 8; i++)
        CHECK_EQUAL(pthread_create(&thread[i], NULL, worker, (void *)i), 0);
    const struct timespec moment = {0, 1000000}, longer_than_a_snapshot = {0, 20000000};
    while (credit() == 0)
        nanosleep(&moment, NULL); /* poll: until they run */
    phase = 1;
    pthread_barrier_wait(&barrier);
    uint64_t had = credit(), sum = 0;
    write_meminfo(512);                       /* somebody took it: less than the reserve is left */
    nanosleep(&longer_than_a_snapshot, NULL); /* pace: the snapshot is out of date */
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 8; i++)
        sum += taken[i];
    CHECK(had != 0 && had <= 8 * 64 * MIB);
    CHECK(sum <= had);
    for (int i = 0; i < 8; i++)
        pthread_join(thread[i], NULL);
    CHECK(malloc(4 * MIB) == NULL); /* the refusals have scanned: no credit is left */
    printf("%llu of %llu\n", (unsigned long long)sum, (unsigned long long)had);
}

int main(int count, char **arguments)
{
    live_begin();
    return run_case(count, arguments);
}
