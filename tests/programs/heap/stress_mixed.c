/*
 * stress_mixed SEED THREADS ROUNDS STEPS - a stress test: random heap and mapping calls in several threads, with blocks
 * and mappings freed by other threads. After each round, while nothing moves, the guard's live bytes are compared with
 * what the program counted itself, to the byte: malloc_usable_size of its blocks, and a page-by-page model of its
 * mappings.
 *
 * Blocks and floating mappings (where the kernel likes) lie in places shared by all threads; whoever swaps one out of
 * its place owns it. Beside them each thread has an arena of its own at a fixed address, far from where the kernel puts
 * things, for calls that need to know what lies around.
 */
#include "heap_case.h"

#include <malloc.h>
#include <pthread.h>

enum { BLOCKS = 512, FLOATS = 96, ARENA = 256, FLOAT_MAX = 64, THREADS_MAX = 8 };
enum { READ_WRITE = PROT_READ | PROT_WRITE, ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS, DONTUNMAP = 4 };

/* What a page of the program is, by the rules of libsparkguard(7). */
enum page { HOLE, RESERVED, COUNTED, SPARSE, IN_FILE };

struct floating {
    char *address;
    size_t pages;
    unsigned char page[FLOAT_MAX];
};

/* What a page of the arena shows: of which shared object, 0 is none, which page. */
struct view {
    unsigned object, unit;
};

struct worker {
    pthread_t thread;
    uint64_t random;
    char *arena;
    unsigned char page[ARENA];
    struct view view[ARENA];
    unsigned objects;
};

static void *block[BLOCKS];
static struct floating *place[FLOATS];
static struct worker worker[THREADS_MAX];
static pthread_barrier_t quiet, go;
static unsigned threads, rounds, steps;
static int file;
static uint64_t mapping_steps, heap_steps;

static unsigned draw(struct worker *self, unsigned most)
{
    self->random = self->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(self->random >> 33) % most;
}

/* ---- heap ---- */

static size_t draw_size(struct worker *self)
{
    switch (draw(self, 12)) {
    case 0:
        return 60000 + draw(self, 200000);
    case 1:
        return draw(self, 8) == 0 ? 900000 + draw(self, 800000) : 10;
    default:
        return draw(self, 3000);
    }
}

static void *allocate(struct worker *self)
{
    size_t size = draw_size(self), alignment = (size_t)16 << draw(self, 9);
    void *ptr = NULL;
    switch (draw(self, 9)) {
    case 0:
        return calloc(size / 8 + 1, 8);
    case 1:
        return realloc(NULL, size);
    case 2:
        return reallocarray(NULL, size / 3 + 1, 3);
    case 3:
        CHECK_EQUAL(posix_memalign(&ptr, alignment, size), 0);
        return ptr;
    case 4:
        return aligned_alloc(alignment, size);
    case 5:
        return memalign(alignment, size);
    case 6:
        return draw(self, 2) ? valloc(size) : pvalloc(size);
    default:
        return malloc(size);
    }
}

static void step_heap(struct worker *self)
{
    void **slot = &block[draw(self, BLOCKS)];
    void *ptr = __atomic_exchange_n(slot, NULL, __ATOMIC_ACQ_REL);
    if (ptr == NULL)
        ptr = allocate(self);
    else if (draw(self, 3) == 0)
        ptr = draw(self, 2) ? realloc(ptr, draw_size(self) + 1) : reallocarray(ptr, draw_size(self) / 2 + 1, 2);
    else {
        free(ptr);
        return;
    }
    CHECK(ptr != NULL);
    if (malloc_usable_size(ptr) > 0)
        *(char *)ptr = 1;
    free(__atomic_exchange_n(slot, ptr, __ATOMIC_ACQ_REL)); /* somebody may have filled the place meanwhile */
}

/* ---- floating mappings ---- */

static struct floating *float_new(struct worker *self)
{
    static const struct {
        int prot, flags;
        enum page page;
    } kinds[] = {{READ_WRITE, ANONYMOUS, COUNTED},
                 {READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, COUNTED},
                 {PROT_NONE, ANONYMOUS, RESERVED},
                 {READ_WRITE, ANONYMOUS | MAP_NORESERVE, SPARSE}};
    unsigned kind = draw(self, 4);
    struct floating *it = malloc(sizeof *it);
    it->pages = 1 + draw(self, FLOAT_MAX);
    it->address = mmap(NULL, it->pages * PAGE - draw(self, PAGE), kinds[kind].prot, kinds[kind].flags, -1, 0);
    CHECK(it->address != MAP_FAILED);
    memset(it->page, kinds[kind].page, it->pages);
    return it;
}

static void float_end(struct floating *it)
{
    CHECK_EQUAL(munmap(it->address, it->pages * PAGE), 0);
    free(it);
}

/* Shrinks, grows, mostly moves. Across different pages the kernel refuses it. */
static void float_resize(struct worker *self, struct floating *it)
{
    size_t pages = 1 + draw(self, FLOAT_MAX);
    char *moved = mremap(it->address, it->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED)
        return;
    if (pages > it->pages)
        memset(it->page + it->pages, it->page[it->pages - 1], pages - it->pages);
    it->address = moved;
    it->pages = pages;
}

static void protect(char *address, unsigned char *page, size_t count, int prot)
{
    if (memchr(page, HOLE, count) != NULL)
        return; /* the kernel would do a part of it and fail */
    CHECK_EQUAL(mprotect(address, count * PAGE, prot), 0);
    for (size_t i = 0; i < count && (prot & PROT_WRITE) != 0; i++)
        if (page[i] == RESERVED)
            page[i] = COUNTED;
}

static void step_float(struct worker *self)
{
    struct floating **slot = &place[draw(self, FLOATS)];
    struct floating *it = __atomic_exchange_n(slot, NULL, __ATOMIC_ACQ_REL);
    if (it == NULL)
        it = float_new(self);
    size_t from = draw(self, (unsigned)it->pages), count = 1 + draw(self, (unsigned)(it->pages - from));
    switch (draw(self, 6)) {
    case 0:
        protect(it->address + from * PAGE, it->page + from, count, draw(self, 2) ? READ_WRITE : PROT_READ);
        break;
    case 1: /* head or tail */
        if (count < it->pages) {
            char *at = from == 0 ? it->address : it->address + (it->pages - count) * PAGE;
            CHECK_EQUAL(munmap(at, count * PAGE), 0);
            if (from == 0) {
                it->address += count * PAGE;
                memmove(it->page, it->page + count, it->pages - count);
            }
            it->pages -= count;
        }
        break;
    case 2:
        (void)madvise(it->address + from * PAGE, count * PAGE, MADV_DONTNEED);
        break;
    case 3:
        float_end(it);
        return;
    default:
        float_resize(self, it);
    }
    it = __atomic_exchange_n(slot, it, __ATOMIC_ACQ_REL);
    if (it != NULL)
        float_end(it);
}

/* ---- the arena ---- */

static void arena_map(struct worker *self, size_t at, size_t count)
{
    static const struct {
        int prot, flags;
        enum page page;
    } kinds[] = {{READ_WRITE, ANONYMOUS, COUNTED},
                 {READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, COUNTED},
                 {PROT_READ, ANONYMOUS, RESERVED},
                 {PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, RESERVED},
                 {READ_WRITE, ANONYMOUS | MAP_NORESERVE, SPARSE},
                 {READ_WRITE, MAP_PRIVATE, IN_FILE}};
    unsigned kind = draw(self, 6);
    void *mapped = mmap(self->arena + at * PAGE, count * PAGE, kinds[kind].prot, kinds[kind].flags | MAP_FIXED,
                        kinds[kind].page == IN_FILE ? file : -1, 0);
    CHECK(mapped == self->arena + at * PAGE);
    memset(self->page + at, kinds[kind].page, count);
    unsigned object = (kinds[kind].flags & MAP_SHARED) != 0 ? ++self->objects : 0;
    for (size_t i = 0; i < count; i++)
        self->view[at + i] = (struct view){object, (unsigned)i};
}

static void arena_look(struct worker *self, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        if (msync(self->arena + i * PAGE, PAGE, MS_ASYNC) != 0)
            self->page[i] = HOLE;
}

/* The kernel says whether it can be done; if so, this is what it means. If not, Linux 6.1 may have made room for it all
 * the same. */
static void arena_move(struct worker *self, size_t from, size_t old, size_t to, size_t new)
{
    int keeps = draw(self, 3) == 0 && old == new;
    char *moved = mremap(self->arena + from * PAGE, old * PAGE, new *PAGE,
                         MREMAP_MAYMOVE | MREMAP_FIXED | (keeps ? DONTUNMAP : 0), self->arena + to * PAGE);
    unsigned char carried[ARENA];
    if (moved == MAP_FAILED) {
        arena_look(self, to, to + new);
        arena_look(self, from + new, from + old);
        return;
    }
    CHECK(moved == self->arena + to * PAGE);
    struct view views[ARENA];
    memcpy(carried, self->page + from, old);
    memcpy(views, self->view + from, old * sizeof views[0]);
    for (size_t i = 0; i < new; i++) {
        size_t last = i < old ? i : old - 1; /* what is gained goes on where the last page was */
        self->view[to + i] = (struct view){views[last].object, views[last].unit + (unsigned)(i - last)};
    }
    if (!keeps)
        memset(self->page + from, HOLE, old);
    memset(self->page + to, carried[old - 1], new);
    memcpy(self->page + to, carried, old < new ? old : new);
}

static void step_arena(struct worker *self)
{
    size_t at = draw(self, ARENA - 40), count = 1 + draw(self, 40), to = draw(self, ARENA - 40);
    switch (draw(self, 8)) {
    case 0:
    case 1:
        arena_map(self, at, count);
        break;
    case 2:
        CHECK_EQUAL(munmap(self->arena + at * PAGE, count * PAGE), 0);
        memset(self->page + at, HOLE, count);
        break;
    case 3:
        protect(self->arena + at * PAGE, self->page + at, count, READ_WRITE);
        break;
    case 4:
        protect(self->arena + at * PAGE, self->page + at, count, draw(self, 2) ? PROT_NONE : PROT_READ);
        break;
    case 5: /* all of it: the kernel takes one mapping only, unless it merely moves */
        count = 1 + draw(self, 3);
        if ((to + 40 <= at || at + count <= to) && memchr(self->page + at, HOLE, count) == NULL &&
            self->page[at] == self->page[at + count - 1])
            arena_move(self, at, count, to, 1 + draw(self, 40));
        break;
    case 6: /* moves only, and of one kind, so that it is done whole or not at all */
        if ((to + count <= at || at + count <= to) && self->page[at] != HOLE) {
            for (count = 1; at + count < ARENA && count < 40 && self->page[at + count] == self->page[at]; count++)
                ;
            if (to + count <= at || at + count <= to)
                arena_move(self, at, count, to, count);
        }
        break;
    default: /* what fails changes nothing */
        CHECK_EQUAL(munmap(self->arena + at * PAGE + 1, count * PAGE), -1);
        CHECK(mmap(self->arena + at * PAGE, count * PAGE, READ_WRITE, MAP_PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED);
        CHECK(mremap(self->arena + at * PAGE, count * PAGE, count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
                     self->arena + at * PAGE) == MAP_FAILED);
    }
}

/* ---- the stress test ---- */

static void *work(void *argument)
{
    struct worker *self = argument;
    pthread_barrier_wait(&go);
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned step = 0; step < steps; step++) {
            unsigned kind = draw(self, 10);
            if (kind < 5)
                step_heap(self);
            else if (kind < 8)
                step_float(self);
            else
                step_arena(self);
            __atomic_fetch_add(kind < 5 ? &heap_steps : &mapping_steps, 1, __ATOMIC_RELAXED);
        }
        pthread_barrier_wait(&quiet);
        pthread_barrier_wait(&go);
    }
    return NULL;
}

static uint64_t counted(const unsigned char *page, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += page[i] == COUNTED ? PAGE : 0;
    return bytes;
}

/* Bytes of shared memory that pages of the arena show once more: a page of an object counts once, however often it
 * is mapped. */
static uint64_t seen_twice(const struct worker *self)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < ARENA; i++)
        for (size_t j = 0; j < i && self->page[i] == COUNTED && self->view[i].object != 0; j++)
            if (self->page[j] == COUNTED && self->view[j].object == self->view[i].object &&
                self->view[j].unit == self->view[i].unit) {
                bytes += PAGE;
                break;
            }
    return bytes;
}

static void compare(uint64_t heap_base, uint64_t mapped_base, unsigned round)
{
    uint64_t heap = 0, mapped = 0;
    for (unsigned i = 0; i < BLOCKS; i++)
        heap += block[i] != NULL ? malloc_usable_size(block[i]) : 0;
    for (unsigned i = 0; i < FLOATS; i++)
        if (place[i] != NULL) {
            heap += malloc_usable_size(place[i]);
            mapped += counted(place[i]->page, place[i]->pages);
        }
    for (unsigned i = 0; i < threads; i++)
        mapped += counted(worker[i].page, ARENA) - seen_twice(&worker[i]);
    uint64_t heap_is = live(SG_DOMAIN_HEAP) - heap_base, mapped_is = live(SG_DOMAIN_MAPPED) - mapped_base;
    if (heap_is != heap || mapped_is != mapped) {
        printf("round %u: ", round);
        fflush(stdout);
        CHECK_EQUAL(heap_is, heap);
        CHECK_EQUAL(mapped_is, mapped);
    }
}

int main(int count, char **arguments)
{
    char name[] = "/var/tmp/stress-XXXXXX";
    if (count != 5)
        return 2;
    threads = (unsigned)atoi(arguments[2]);
    rounds = (unsigned)atoi(arguments[3]);
    steps = (unsigned)atoi(arguments[4]);
    CHECK(threads <= THREADS_MAX);
    file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0 && ftruncate(file, ARENA * PAGE) == 0);
    pthread_barrier_init(&quiet, NULL, threads + 1);
    pthread_barrier_init(&go, NULL, threads + 1);
    printf("stress %s\n", arguments[1]); /* stdio has its buffer now */
    live_begin();
    for (unsigned i = 0; i < threads; i++) {
        worker[i].random = strtoull(arguments[1], NULL, 10) * 1000 + i;
        worker[i].arena = (char *)(UINT64_C(0x100000000000) + i * UINT64_C(0x40000000));
        CHECK_EQUAL(pthread_create(&worker[i].thread, NULL, work, &worker[i]), 0);
    }
    /* The libc's own blocks for the threads live as long as they do: the base is taken while they wait. */
    uint64_t heap_base = live(SG_DOMAIN_HEAP), mapped_base = live(SG_DOMAIN_MAPPED);
    pthread_barrier_wait(&go);
    for (unsigned round = 0; round < rounds; round++) {
        pthread_barrier_wait(&quiet);
        compare(heap_base, mapped_base, round);
        pthread_barrier_wait(&go);
    }
    CHECK_EQUAL(segment->unmatched_frees, 0);
    CHECK_EQUAL(segment->faults, 0);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    printf("heap %llu mapping %llu\n", (unsigned long long)heap_steps, (unsigned long long)mapping_steps);
    return 0;
}
