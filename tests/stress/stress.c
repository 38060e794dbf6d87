/*
 * stress SEED - allocates, maps, frees, forks, execs and begins threads until it is killed. At most a few hundred MiB
 * at a time are promised, and hardly any of it is touched. Its children do the same for a while and end in one way or
 * another; they die with their parent.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLACES = 12, CHILDREN_MAX = 2, DEPTH_MAX = 2 };

struct part {
    unsigned long state;
    void *block[PLACES], *map[PLACES];
    size_t mapped[PLACES];
};

static char *program;
static int depth, children;

static unsigned long next(struct part *part)
{
    part->state = part->state * 6364136223846793005u + 1442695040888963407u;
    return part->state >> 33;
}

/* Mostly small, sometimes up to 16 MiB. */
static size_t some_size(struct part *part)
{
    return (next(part) % 1024 + 1) << next(part) % 15;
}

static void take_or_give(struct part *part)
{
    unsigned long i = next(part) % PLACES;
    switch (next(part) % 4) {
    case 0:
        part->block[i] = realloc(part->block[i], some_size(part));
        break;
    case 1:
        free(part->block[i]);
        part->block[i] = malloc(some_size(part));
        if (part->block[i] != NULL)
            *(volatile char *)part->block[i] = 1;
        break;
    case 2:
        if (part->map[i] != NULL)
            munmap(part->map[i], part->mapped[i]);
        part->mapped[i] = (some_size(part) + 4095) & ~4095ul;
        part->map[i] = mmap(NULL, part->mapped[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (part->map[i] == MAP_FAILED)
            part->map[i] = NULL;
        break;
    default:
        free(part->block[i]);
        part->block[i] = NULL;
    }
}

static void *blow(void *seed)
{
    struct part part = {.state = (unsigned long)seed};
    long steps = (long)(next(&part) % 2000);
    for (long i = 0; i < steps; i++)
        take_or_give(&part);
    for (int i = 0; i < PLACES; i++) {
        free(part.block[i]);
        if (part.map[i] != NULL)
            munmap(part.map[i], part.mapped[i]);
    }
    return NULL;
}

static void replace(struct part *part)
{
    char seed[24], level[8], *arguments[] = {program, seed, level, NULL};
    snprintf(seed, sizeof seed, "%lu", next(part));
    snprintf(level, sizeof level, "%d", depth);
    execv(next(part) % 4 == 0 ? "/nonexistent" : program, arguments);
}

static void end(struct part *part)
{
    switch (next(part) % 4) {
    case 0:
        _exit(0);
    case 1:
        syscall(SYS_exit_group, 0);
    case 2:
        raise(SIGKILL);
        break;
    default:
        exit(0);
    }
}

static void have_child(struct part *part)
{
    unsigned long seed = next(part);
    pid_t parent = getpid();
    if (children >= CHILDREN_MAX || depth >= DEPTH_MAX)
        return;
    pid_t child = next(part) % 4 == 0 ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    children += child > 0;
    if (child != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    depth++;
    children = 0;
    part->state ^= seed;
}

int main(int count, char **arguments)
{
    struct part part = {.state = strtoul(count > 1 ? arguments[1] : "1", NULL, 10)};
    program = arguments[0];
    depth = count > 2 ? atoi(arguments[2]) : 0;
    for (;;) {
        pthread_t thread;
        unsigned long what = next(&part) % 400;
        while (children > 0 && waitpid(-1, NULL, WNOHANG) > 0)
            children--;
        if (what < 4)
            have_child(&part);
        else if (what == 4)
            replace(&part);
        else if (what == 5 && depth > 0)
            end(&part);
        else if (what < 9 && pthread_create(&thread, NULL, blow, (void *)next(&part)) == 0)
            pthread_detach(thread);
        else
            take_or_give(&part);
    }
}
