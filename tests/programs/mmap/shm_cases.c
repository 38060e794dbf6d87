/*
 * shm_cases CASE - System V shared memory, step by step: the guard's live bytes against what the program attached.
 */
#include "heap_case.h"

#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/wait.h>

static uint64_t base; /* live bytes at the beginning of the case */

#define CHECK_MAPPED(bytes) CHECK_EQUAL(live(SG_DOMAIN_MAPPED) - base, bytes)
#define NOWHERE ((char *)-1)

/* A segment that goes with the last who has it attached: it is attached here, too. */
static int make(size_t bytes, char **attached)
{
    int id = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
    CHECK(id >= 0);
    *attached = shmat(id, NULL, 0);
    CHECK_EQUAL(shmctl(id, IPC_RMID, NULL), 0);
    CHECK(*attached != NOWHERE);
    return id;
}

CASE(attached_counts_until_it_is_detached)
{
    char *ptr;
    make(5 * MIB + 1, &ptr);
    CHECK_MAPPED(5 * MIB + PAGE);
    ptr[5 * MIB] = 1;
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_MAPPED(0);
}

CASE(a_segment_that_nobody_attached_is_nothing)
{
    int id = shmget(IPC_PRIVATE, 5 * MIB, IPC_CREAT | 0600);
    CHECK(id >= 0);
    CHECK_MAPPED(0);
    CHECK_EQUAL(shmctl(id, IPC_RMID, NULL), 0);
}

CASE(a_segment_counts_once_however_often_it_is_attached)
{
    char *one, *two, *three;
    int id = make(3 * MIB, &one);
    two = shmat(id, NULL, 0); /* beside the first, as a rule */
    three = shmat(id, NULL, 0);
    CHECK(two != NOWHERE && three != NOWHERE);
    CHECK_MAPPED(3 * MIB);
    CHECK_EQUAL(shmdt(two), 0);
    CHECK_EQUAL(munmap(three, MIB), 0);
    CHECK_MAPPED(3 * MIB);
    CHECK_EQUAL(shmdt(one), 0);
    CHECK_MAPPED(2 * MIB);
    CHECK_EQUAL(shmdt(three), 0);
    CHECK_MAPPED(0);
}

CASE(read_only_does_not_count)
{
    char *ptr;
    int id = make(3 * MIB, &ptr);
    char *read_only = shmat(id, NULL, SHM_RDONLY);
    CHECK(read_only != NOWHERE);
    CHECK_MAPPED(3 * MIB);
    CHECK_EQUAL(mprotect(read_only, PAGE, PROT_READ | PROT_WRITE), -1);
    CHECK_MAPPED(3 * MIB);
    CHECK_EQUAL(shmdt(read_only), 0);
    CHECK_MAPPED(3 * MIB);
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_MAPPED(0);
}

CASE(remap_replaces_what_it_covers)
{
    char *ptr, *room = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    int id = make(3 * MIB, &ptr);
    CHECK_MAPPED(11 * MIB);
    CHECK(shmat(id, room + 4 * MIB, SHM_REMAP) == room + 4 * MIB);
    CHECK_MAPPED(8 * MIB);
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_MAPPED(8 * MIB);
    CHECK_EQUAL(shmdt(room + 4 * MIB), 0);
    CHECK_MAPPED(5 * MIB);
    munmap(room, 8 * MIB);
    CHECK_MAPPED(0);
}

/* Two attachments of one base, then: shmdt takes them one after the other. */
CASE(what_is_left_behind_a_remap_is_detached_too)
{
    char *ptr, *other;
    int id;
    make(4 * MIB, &ptr);
    id = make(MIB, &other);
    CHECK(shmat(id, ptr, SHM_REMAP) == ptr);
    CHECK_EQUAL(shmdt(other), 0);
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_MAPPED(3 * MIB);
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_MAPPED(0);
}

static char *room_of(size_t bytes)
{
    char *room = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    return room;
}

CASE(a_segment_remapped_over_its_own_middle_is_two_attachments)
{
    char *ptr, *room = room_of(8 * MIB);
    int id = make(4 * MIB, &ptr);
    CHECK(shmat(id, room, SHM_REMAP) == room);
    CHECK(shmat(id, room + MIB, SHM_REMAP) == room + MIB);
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(shmdt(room + MIB), 0);
    CHECK_MAPPED(MIB);
    CHECK_EQUAL(shmdt(room), 0);
    CHECK_MAPPED(0);
}

CASE(moved_by_mremap_is_detached_where_it_is)
{
    char *ptr, *room = room_of(8 * MIB);
    make(4 * MIB, &ptr);
    CHECK(mremap(ptr, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
    CHECK_MAPPED(4 * MIB);
    CHECK(shmdt(ptr) == -1 && errno == EINVAL);
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(shmdt(room), 0);
    CHECK_MAPPED(0);
}

/* A piece keeps its distance from where the segment would begin. */
CASE(a_piece_moved_by_mremap_is_an_attachment_by_itself)
{
    char *ptr, *room = room_of(8 * MIB);
    make(4 * MIB, &ptr);
    CHECK(mremap(ptr + MIB, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, room + 4 * MIB) == room + 4 * MIB);
    CHECK_MAPPED(4 * MIB);
    CHECK(shmdt(room + 4 * MIB) == -1 && errno == EINVAL);
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_MAPPED(MIB);
    CHECK_EQUAL(shmdt(room + 3 * MIB), 0);
    CHECK_MAPPED(0);
}

CASE(a_second_view_is_detached_by_itself)
{
    char *ptr;
    make(4 * MIB, &ptr);
    char *view = mremap(ptr, 0, 4 * MIB, MREMAP_MAYMOVE);
    CHECK(view != MAP_FAILED);
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(shmdt(view), 0);
    CHECK_MAPPED(0);
}

CASE(what_mremap_added_or_took_is_part_of_it)
{
    char *ptr, *room = room_of(8 * MIB);
    make(4 * MIB, &ptr);
    CHECK(mremap(ptr, 4 * MIB, 6 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
    CHECK_MAPPED(6 * MIB);
    CHECK(mremap(room, 6 * MIB, 5 * MIB, 0) == room);
    CHECK_MAPPED(5 * MIB);
    CHECK_EQUAL(shmdt(room), 0);
    CHECK_MAPPED(0);
}

CASE(mremap_that_fails_leaves_it_where_it_is)
{
    char *ptr;
    make(4 * MIB, &ptr);
    CHECK(mremap(ptr, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, ptr + MIB) == MAP_FAILED); /* overlaps */
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_MAPPED(0);
}

CASE(munmap_gives_back_too)
{
    char *ptr;
    make(4 * MIB, &ptr);
    CHECK_EQUAL(munmap(ptr + MIB, MIB), 0);
    CHECK_MAPPED(3 * MIB);
    CHECK_EQUAL(shmdt(ptr), 0); /* the rest of it */
    CHECK_MAPPED(0);
}

CASE(what_was_mapped_into_it_stays)
{
    char *ptr;
    make(4 * MIB, &ptr);
    CHECK(mmap(ptr + MIB, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == ptr + MIB);
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_MAPPED(MIB);
    munmap(ptr + MIB, MIB);
    CHECK_MAPPED(0);
}

CASE(failing_calls_change_nothing)
{
    char *ptr;
    int id = make(4 * MIB, &ptr);
    errno = 0;
    CHECK(shmat(id, ptr, 0) == NOWHERE && errno == EINVAL); /* there it is already */
    CHECK(shmat(id, ptr + 1, 0) == NOWHERE && errno == EINVAL);
    CHECK(shmat(-1, NULL, 0) == NOWHERE && errno == EINVAL);
    CHECK(shmdt(ptr + PAGE) == -1 && errno == EINVAL);
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    CHECK_EQUAL(munmap(ptr, 4 * MIB), 0);
    char *other = mmap(ptr, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(other == ptr);
    CHECK(shmdt(ptr) == -1 && errno == EINVAL); /* something else is there now */
    CHECK_MAPPED(4 * MIB);
    munmap(other, 4 * MIB);
    CHECK_MAPPED(0);
}

CASE(errno_is_left_alone)
{
    char *ptr;
    errno = 77;
    make(2 * MIB, &ptr);
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_EQUAL(errno, 77);
}

CASE(forked_child_detaches_its_own)
{
    char *ptr;
    int id = make(4 * MIB, &ptr), status = 0;
    pid_t child = fork();
    if (child == 0) {
        live_begin();
        char *again = shmat(id, NULL, 0);
        CHECK(again != NOWHERE);
        CHECK_EQUAL(live(SG_DOMAIN_MAPPED) - base, 4 * MIB);
        CHECK_EQUAL(shmdt(ptr) | shmdt(again), 0);
        CHECK_EQUAL(live(SG_DOMAIN_MAPPED) - base, 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(shmdt(ptr), 0);
    CHECK_MAPPED(0);
}

/* Under SPARKGUARD_LIMIT=32M: -1 and ENOMEM, and nobody has it attached. */
CASE(refused)
{
    char *ptr;
    int id = make(4 * MIB, &ptr), large = shmget(IPC_PRIVATE, 64 * MIB, IPC_CREAT | 0600);
    struct shmid_ds info;
    CHECK(large >= 0);
    char *refused_ptr = shmat(large, NULL, 0);
    int error = errno, answer = shmctl(large, IPC_STAT, &info);
    shmctl(large, IPC_RMID, NULL);
    CHECK(refused_ptr == NOWHERE && error == ENOMEM);
    CHECK(answer == 0 && info.shm_nattch == 0);
    CHECK_MAPPED(4 * MIB);
    CHECK_EQUAL(refused_count(SG_DOMAIN_MAPPED), 1);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    char *again = shmat(id, NULL, 0);
    CHECK(again != NOWHERE);
    CHECK_MAPPED(4 * MIB);
}

int main(int count, char **arguments)
{
    live_begin();
    base = live(SG_DOMAIN_MAPPED);
    return run_case(count, arguments);
}
