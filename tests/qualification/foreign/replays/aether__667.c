/* aether-lang-dev/aether#667, JuliaLang/libuv#22, shadow/shadow#1291: a child of vfork runs on its parent's stack, and
 * prepares for its program. */
#include "replay.h"

#include <fcntl.h>
#include <signal.h>

static int run(int round, int *output)
{
    volatile int kept[64];
    int ways[2];
    for (int i = 0; i < 64; i++)
        kept[i] = round + i;
    NEED(pipe2(ways, O_CLOEXEC) == 0);
    pid_t child = vfork();
    if (child == 0) {
        struct sigaction usual = {.sa_handler = SIG_DFL};
        for (int number = 1; number < 32; number++)
            sigaction(number, &usual, NULL);
        dup2(ways[1], 1);
        if (chdir("/") != 0)
            _exit(126);
        execlp("sh", "sh", "-c", "sh -c 'echo $((6 * 7))'; exit 5", (char *)NULL);
        _exit(127);
    }
    int status = status_of(child);
    char said[8] = "";
    NEED(read(ways[0], said, sizeof said - 1) > 0);
    close(ways[0]);
    close(ways[1]);
    for (int i = 0; i < 64; i++)
        NEED(kept[i] == round + i);
    *output = atoi(said);
    return WEXITSTATUS(status);
}

int main(void)
{
    pthread_t threads[2];
    int sum = 0, output;
    begin(threads, 2);
    for (int round = 0; round < 30; round++) {
        sum += run(round, &output);
        sum += output;
    }
    end(threads, 2);
    printf("%d\n", sum);
    return 0;
}
