/* pytorch/pytorch#5247, #161910, open-mpi/ompi#4166: a file in memory that is longer than its file system has room
 * for. */
#include "replay.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mount.h>

static sigjmp_buf back;

static void on_bus(int number)
{
    siglongjmp(back, number);
}

int main(void)
{
    char place[] = "/tmp/replay-XXXXXX";
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || !mkdtemp(place) ||
        mount("replay", place, "tmpfs", 0, "size=2m") != 0) {
        puts("no mounts here");
        return 0;
    }
    NEED(chdir(place) == 0 && rmdir(place) != 0);
    int sparse = open("sparse", O_RDWR | O_CREAT, 0600), taken = open("taken", O_RDWR | O_CREAT, 0600);
    NEED(ftruncate(sparse, 8 * MIB) == 0);
    volatile char *map = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, sparse, 0);
    NEED(map != MAP_FAILED);
    signal(SIGBUS, on_bus);
    int number = sigsetjmp(back, 1), written = 0;
    if (number == 0)
        for (size_t at = 0; at < 8 * MIB; at += 4096)
            map[at] = 1;
    number = number == SIGBUS;
    for (size_t at = 0; at < MIB; at += 4096)
        written += map[at];
    printf("%d %d\n", number, written);
    printf("%d %d\n", posix_fallocate(taken, 0, 8 * MIB), ftruncate(sparse, 0));
    printf("%d\n", posix_fallocate(taken, 0, MIB));
    map = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, taken, 0);
    NEED(map != MAP_FAILED);
    map[MIB - 1] = 3;
    NEED(chdir("/") == 0);
    umount2(place, MNT_DETACH);
    rmdir(place);
    return 0;
}
