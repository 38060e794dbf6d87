/* WhiteBeamSec/WhiteBeam#39: a preloaded library left a descriptor to the programs that its process starts. */
#include "replay.h"

#include <dirent.h>
#include <sys/syscall.h>

static int open_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    NEED(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count - 1;
}

int main(int count, char **words)
{
    if (count > 1) {
        printf("%s %d\n", words[1], open_descriptors());
        return 0;
    }
    NEED(syscall(SYS_close_range, 3, ~0u, 0) == 0 || errno == ENOSYS);
    free(malloc(300 * MIB));
    for (int round = 0; round < 3; round++) {
        pid_t child = round == 1 ? vfork() : fork();
        if (child == 0) {
            execl("/proc/self/exe", words[0], "child", (char *)NULL);
            _exit(1);
        }
        NEED(status_of(child) == 0);
    }
    int lowest = dup(0);
    printf("lowest %d\n", lowest);
    return 0;
}
