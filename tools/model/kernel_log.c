/*
 * kernel_log.c - see model.h. The log is read from /dev/kmsg below SPARKGUARD_SYSTEM_ROOT, once per tool.
 *
 * A line of it is "priority,number,microseconds,flags;text". The microseconds are those of CLOCK_MONOTONIC, within
 * seconds after a long time.
 */
#include "model/model.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"

/* The clocks of the log and of the records may differ by this much. */
#define TOLERANCE_NS (INT64_C(10) * 1000000000)

/* Lines read at most. The kernel's buffer holds about 20,000 lines of the usual size of 1 MiB. */
enum { LINES_MAX = 200000, KILLS_MAX = 256, BUFFER_BYTES = 16384 };

struct kill {
    uint32_t pid;
    int64_t time_ns; /* CLOCK_REALTIME */
};

static struct {
    bool is_read;
    size_t count;
    struct kill at[KILLS_MAX]; /* the last ones; the oldest goes first */
} kills;

/* Returns CLOCK_REALTIME at the boot, as far as CLOCK_MONOTONIC tells. */
static int64_t boot_ns(void)
{
    return tool_now_ns() - tool_clock_ns(CLOCK_MONOTONIC);
}

static void parse_line(const char *line, int64_t since_ns)
{
    static const char words[] = "ut of memory: Killed process ";
    uint64_t microseconds;
    uint32_t pid;
    const char *killed = strstr(line, words);
    if (killed == NULL || sscanf(line, "%*u,%*u,%" SCNu64, &microseconds) != 1 ||
        sscanf(killed + strlen(words), "%" SCNu32, &pid) != 1 || microseconds > INT64_MAX / 2000)
        return;
    kills.at[kills.count++ % KILLS_MAX] = (struct kill){pid, since_ns + (int64_t)microseconds * 1000};
}

static void read_log(void)
{
    const char *root = getenv("SPARKGUARD_SYSTEM_ROOT");
    char *path = text_format("%s/dev/kmsg", root != NULL ? root : ""), *line = NULL;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    FILE *stream = fd >= 0 ? fdopen(fd, "r") : NULL;
    int64_t since_ns = boot_ns();
    size_t capacity = 0;
    if (stream == NULL) {
        if (fd >= 0)
            close(fd);
        return;
    }
    setvbuf(stream, NULL, _IOFBF, BUFFER_BYTES); /* a read of /dev/kmsg fails if one line does not fit */
    for (int i = 0; i < LINES_MAX; i++) {
        errno = 0;
        if (getline(&line, &capacity, stream) >= 0)
            parse_line(line, since_ns);
        else if (errno == EPIPE) /* the kernel has overwritten the next lines meanwhile */
            clearerr(stream);
        else
            break;
    }
    free(line);
    fclose(stream);
}

bool model_kernel_log_names(uint32_t pid, int64_t from_ns, int64_t until_ns)
{
    if (!kills.is_read)
        read_log();
    kills.is_read = true;
    size_t count = kills.count < KILLS_MAX ? kills.count : KILLS_MAX;
    for (size_t i = 0; i < count; i++) {
        int64_t late_ns = kills.at[i].time_ns - TOLERANCE_NS, early_ns = kills.at[i].time_ns + TOLERANCE_NS;
        if (kills.at[i].pid == pid && early_ns >= from_ns && late_ns <= until_ns)
            return true;
    }
    return false;
}
