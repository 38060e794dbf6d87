/*
 * job_rounds PROCESSES ROUNDS MIB - all processes of a job grow at one moment, round after round, and give it all
 * back between the rounds. In a round each of them takes some of MIB, by one malloc. Says the most that they held
 * together, in bytes.
 *
 * They spin until all have come, so that they begin within a fraction of a microsecond where each has a processor.
 */
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static struct shared {
    uint32_t come;
    uint64_t held, most;
} * shared;

/* Until all have come `times` times. */
static void meet(uint32_t processes, uint32_t times)
{
    __atomic_add_fetch(&shared->come, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&shared->come, __ATOMIC_SEQ_CST) < processes * times)
        (void)sched_yield();
}

static int work(uint32_t processes, int rounds, size_t bytes, unsigned seed)
{
    uint32_t times = 0;
    for (int i = 0; i < rounds; i++) {
        size_t mine = bytes / 2 + (size_t)rand_r(&seed) % (bytes / 2);
        meet(processes, ++times);
        void *volatile block = malloc(mine);
        if (block == NULL)
            return 1;
        uint64_t held = __atomic_add_fetch(&shared->held, mine, __ATOMIC_SEQ_CST);
        meet(processes, ++times);
        uint64_t most = __atomic_load_n(&shared->most, __ATOMIC_SEQ_CST);
        while (held > most &&
               !__atomic_compare_exchange_n(&shared->most, &most, held, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            ;
        meet(processes, ++times);
        __atomic_sub_fetch(&shared->held, mine, __ATOMIC_SEQ_CST);
        free(block);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    uint32_t processes = (uint32_t)atoi(argv[1]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    for (unsigned i = 0; i < processes; i++)
        if (fork() == 0)
            _exit(work(processes, atoi(argv[2]), (size_t)atoi(argv[3]) * MIB, 17 * i + processes));
    int status = 0, failures = 0;
    while (wait(&status) > 0)
        failures += status != 0;
    printf("%llu\n", (unsigned long long)shared->most);
    return failures;
}
