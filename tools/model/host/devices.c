/*
 * devices.c - asks NVML, in a child, which processes use device memory. On a Spark no other counter shows it: CUDA's
 * memory is in no RSS.
 *
 * On a wedged machine NVML's calls do not return for minutes, and the caller cannot be killed (field: nvidia-smi
 * blocked for 491 to 737 s). So the child has no descriptor of ours but the pipe, not even stdout, which a reader may
 * wait for; the parent reads for two seconds, then kills the child and waits for it no longer. As long as such a child
 * is there, no other one is started: a timer would add one every 15 s.
 */
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/procfs.h"
#include "model/host/host.h"
#include "sparkguard_abi.h"
#include "common/tool.h"

#define ASK_NS INT64_C(2000000000)
#define AGE_NS INT64_C(5000000000)   /* the live view shows an answer again until it is this old */
#define CHILD_NAME "sparkguard-nvml" /* 15 bytes, the most that a name may have */

enum { DEVICES_MAX = 64, LIST_MAX = 1024, STUCK_SECONDS = 4 };

/* ---- the child ---------------------------------------------------------------------------------------------------- */

/* Layouts of nvml.h: nvmlProcessInfo_v1_t, and nvmlProcessInfo_v2_t of both _v2 and _v3. */
struct info_v1 {
    unsigned pid;
    unsigned long long bytes;
};
struct info_v2 {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};
#define NOT_AVAILABLE (~0ULL)

struct nvml {
    int (*init)(void);
    int (*count)(unsigned *count);
    int (*device)(unsigned index, void **device);
    int (*list[2])(void *device, unsigned *count, void *infos); /* of compute and of graphics */
    size_t info_bytes;
};

static void find_symbol(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
}

static bool find_lists(void *library, struct nvml *nvml, const char *suffix, size_t info_bytes)
{
    static const char *const kinds[] = {"Compute", "Graphics"};
    char name[64];
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "nvmlDeviceGet%sRunningProcesses%s", kinds[i], suffix);
        find_symbol(library, name, &nvml->list[i]);
    }
    nvml->info_bytes = info_bytes;
    return nvml->list[0] != NULL;
}

static bool load_nvml(struct nvml *nvml)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return false;
    find_symbol(library, "nvmlInit_v2", &nvml->init);
    find_symbol(library, "nvmlDeviceGetCount_v2", &nvml->count);
    find_symbol(library, "nvmlDeviceGetHandleByIndex_v2", &nvml->device);
    return (find_lists(library, nvml, "_v3", sizeof(struct info_v2)) ||
            find_lists(library, nvml, "_v2", sizeof(struct info_v2)) ||
            find_lists(library, nvml, "", sizeof(struct info_v1))) &&
           nvml->init != NULL && nvml->count != NULL && nvml->device != NULL;
}

static bool send_use(int pipe, uint32_t pid, uint64_t bytes)
{
    const struct host_device_use use = {.pid = pid, .bytes = bytes};
    return write(pipe, &use, sizeof use) == (ssize_t)sizeof use; /* below PIPE_BUF: whole or not at all */
}

/* Writes the processes of one list. A process of both kinds is in both lists with the same figure: graphics are
 * written only where compute does not have the process. */
static bool say_list(const struct nvml *nvml, void *device, int pipe)
{
    static struct info_v2 seen[LIST_MAX], infos[LIST_MAX];
    unsigned seen_count = 0;
    for (int kind = 0; kind < 2 && nvml->list[kind] != NULL; kind++) {
        unsigned count = LIST_MAX;
        if (nvml->list[kind](device, &count, infos) != 0) {
            if (kind == 0)
                return false;
            break; /* a device without graphics */
        }
        for (unsigned i = 0; i < count && i < LIST_MAX; i++) {
            struct info_v2 info = {0};
            unsigned known = 0;
            memcpy(&info, (const char *)infos + i * nvml->info_bytes, nvml->info_bytes);
            while (known < seen_count && seen[known].pid != info.pid)
                known++;
            if (info.pid == 0 || (kind == 1 && known < seen_count)) /* PID 0 is the end of an answer */
                continue;
            if (seen_count < LIST_MAX)
                seen[seen_count++] = info;
            if (!send_use(pipe, info.pid, info.bytes == NOT_AVAILABLE ? SG_UNKNOWN : info.bytes))
                return false;
        }
    }
    return true;
}

/* Asks and writes the answer, with PID 0 behind it as the sign that it is complete. */
static void ask(int pipe)
{
    struct nvml nvml = {0};
    unsigned count = 0;
    if (!load_nvml(&nvml) || nvml.init() != 0 || nvml.count(&count) != 0)
        return;
    for (unsigned i = 0; i < count && i < DEVICES_MAX; i++) {
        void *device;
        if (nvml.device(i, &device) != 0 || !say_list(&nvml, device, pipe))
            return;
    }
    (void)send_use(pipe, 0, 0);
}

static void be_child(int pipe)
{
    enum { PIPE_FD = 3 };
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    pipe = fcntl(pipe, F_DUPFD, PIPE_FD + 1); /* where neither copy below overwrites the other */
    int nowhere = fcntl(open("/dev/null", O_RDWR), F_DUPFD, PIPE_FD + 1);
    if (pipe < 0 || nowhere < 0 || dup2(pipe, PIPE_FD) < 0)
        _exit(1);
    for (int fd = 0; fd < PIPE_FD; fd++)
        if (dup2(nowhere, fd) < 0)
            _exit(1);
    (void)syscall(SYS_close_range, PIPE_FD + 1, ~0U, 0); /* its function needs glibc 2.34 */
    for (int number = 1; number < NSIG; number++)
        (void)sigaction(number, &plain, NULL);
    (void)prctl(PR_SET_NAME, CHILD_NAME);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a report that is killed leaves no child that waits */
    ask(PIPE_FD);
    _exit(0);
}

/* ---- the parent --------------------------------------------------------------------------------------------------- */

/* Returns whether a process of that number is a child of an earlier report that NVML has not let go. A zombie is none:
 * init may be slow to collect it. The name may be anybody's who runs as we do. */
static bool is_stuck(const char *number)
{
    char path[300], name[32], text[4096];
    struct stat status;
    struct procfs_stat times;
    snprintf(path, sizeof path, "/proc/%s/comm", number);
    if (procfs_read_text(path, name, sizeof name) <= 0 || strcmp(name, CHILD_NAME "\n") != 0 ||
        stat(path, &status) != 0 || status.st_uid != geteuid())
        return false;
    snprintf(path, sizeof path, "/proc/%s/status", number);
    if (procfs_read_text(path, text, sizeof text) <= 0 || strstr(text, "\nState:\tZ") != NULL ||
        procfs_stat((uint32_t)strtoul(number, NULL, 10), &times) != 0)
        return false;
    int64_t per_second = sysconf(_SC_CLK_TCK),
            now_ticks = tool_clock_ns(CLOCK_BOOTTIME) / (INT64_C(1000000000) / per_second);
    return now_ticks - (int64_t)times.start_ticks > STUCK_SECONDS * per_second;
}

static bool is_any_stuck(void)
{
    const struct dirent *entry;
    bool is_any = false;
    DIR *stream = opendir("/proc");
    while (stream != NULL && !is_any && (entry = readdir(stream)) != NULL)
        is_any = isdigit((unsigned char)entry->d_name[0]) && is_stuck(entry->d_name);
    if (stream != NULL)
        closedir(stream);
    return is_any;
}

/* Enters one answer. One process may use several devices. */
static void add_use(struct host_devices *devices, const struct host_device_use *use)
{
    for (size_t i = 0; i < devices->count; i++)
        if (devices->use[i].pid == use->pid) {
            uint64_t *bytes = &devices->use[i].bytes;
            *bytes = *bytes == SG_UNKNOWN || use->bytes == SG_UNKNOWN ? SG_UNKNOWN : bytes_add(*bytes, use->bytes);
            return;
        }
    if (devices->count < HOST_DEVICE_PROCESSES_MAX)
        devices->use[devices->count++] = *use;
}

/* Reads answers until the last one, the end of the pipe or the deadline. */
static void hear(struct host_devices *devices, int pipe)
{
    int64_t end_ns = tool_clock_ns(CLOCK_MONOTONIC) + ASK_NS;
    while (!devices->is_known) {
        struct host_device_use use;
        struct pollfd ready = {.fd = pipe, .events = POLLIN};
        int64_t left_ns = end_ns - tool_clock_ns(CLOCK_MONOTONIC);
        if (left_ns <= 0)
            return;
        int count = poll(&ready, 1, (int)(left_ns / 1000000) + 1);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0 || read(pipe, &use, sizeof use) != (ssize_t)sizeof use)
            return;
        if (use.pid == 0)
            devices->is_known = true;
        else
            add_use(devices, &use);
    }
}

/* Starts the child and hears it. */
static void ask_anew(struct host_devices *devices)
{
    static pid_t left; /* a child that had not ended when it was last waited for */
    int ends[2];
    devices->is_known = false;
    devices->count = 0;
    if (left > 0 && waitpid(left, NULL, WNOHANG) == 0)
        return;
    left = 0;
    if (is_any_stuck() || pipe2(ends, O_CLOEXEC) != 0)
        return;
    pid_t child = fork();
    if (child == 0)
        be_child(ends[1]);
    close(ends[1]);
    if (child > 0) {
        hear(devices, ends[0]);
        kill(child, SIGKILL);
        struct timespec pause = {.tv_nsec = 1000000};
        pid_t ended = waitpid(child, NULL, WNOHANG);
        for (int i = 0; i < 50 && ended == 0; i++, ended = waitpid(child, NULL, WNOHANG))
            nanosleep(&pause, NULL);
        left = ended == 0 ? child : 0;
    }
    close(ends[0]);
}

const struct host_devices *host_devices_ask(void)
{
    static struct host_devices devices;
    static int64_t asked_ns;
    int64_t begin_ns = tool_clock_ns(CLOCK_MONOTONIC);
    if (asked_ns == 0 || begin_ns - asked_ns >= AGE_NS) {
        ask_anew(&devices);
        asked_ns = tool_clock_ns(CLOCK_MONOTONIC);
    }
    return &devices;
}

uint64_t host_device_bytes(const struct host_devices *devices, uint32_t pid)
{
    if (!devices->is_known)
        return SG_UNKNOWN;
    for (size_t i = 0; i < devices->count; i++)
        if (devices->use[i].pid == pid)
            return devices->use[i].bytes;
    return 0;
}
