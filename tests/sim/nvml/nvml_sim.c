/*
 * nvml_sim.c - a simulated libnvidia-ml.so.1 beside the simulated libcuda.so.1, and without it too.
 *
 * It reads the same variables as the simulated driver (SGSIM_KIND, SGSIM_MEMORY, SGSIM_DEVICES, SGSIM_MEMINFO) and gives
 * its devices the same UUIDs. SGSIM_NVML_MEMORY=yes|no: whether memory can be asked for. The default is as observed: not
 * on a GB10 (nvitop#208, nvtop#466), but on discrete cards. SGSIM_PROCESSES=FOLDER: where the simulated drivers of all
 * processes write what they have on each device; the list of processes is read from there. Default: MEMINFO.processes
 * beside a fake machine. SGSIM_NVML_LIST=none: the list is empty, as in a container. SGSIM_NVML_LATE=MILLISECONDS: that long
 * the list takes. SGSIM_NVML_FAIL=init|list|graphics: that
 * call answers GPU_IS_LOST. SGSIM_NVML_HANG=init|list: it does not return; with SGSIM_NVML_FREEZER=FOLDER the process
 * enters this cgroup of the v1 freezer before and freezes it, so that no signal ends it either. What is free is MemFree of the fake machine, or what the
 * simulated driver of this process, if it has one, has left.
 */
#define _GNU_SOURCE
#include "nvml_sim.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIB (1ull << 30)
#define RESERVED (300ull << 20) /* what a discrete card's driver keeps for itself; any number that is not 0 */
#define DEVICES_MOST 16

struct nvmlDevice_st {
    unsigned int index;
};

static struct nvmlDevice_st devices[DEVICES_MOST];
static int users, asked;
static nvmlReturn_t planned;

int sgsim_nvml_asked(void)
{
    return asked;
}

void sgsim_nvml_fail(nvmlReturn_t error)
{
    planned = error;
}

static bool is_discrete(void)
{
    const char *kind = getenv("SGSIM_KIND");
    return kind && strcmp(kind, "discrete") == 0;
}

static bool has_memory_info(void)
{
    const char *choice = getenv("SGSIM_NVML_MEMORY");
    return choice ? strcmp(choice, "yes") == 0 : is_discrete();
}

static unsigned int device_count(void)
{
    const char *text = getenv("SGSIM_DEVICES");
    unsigned long count = text ? strtoul(text, NULL, 10) : 1;
    return count > DEVICES_MOST ? DEVICES_MOST : (unsigned int)count;
}

static unsigned long long total_bytes(void)
{
    const char *text = getenv("SGSIM_MEMORY");
    if (!text)
        return is_discrete() ? 24 * GIB : 1217 * GIB / 10 / 4096 * 4096; /* as sim_faults.c */
    char *end;
    unsigned long long number = strtoull(text, &end, 10);
    return *end == 'G' ? number * GIB : *end == 'M' ? number << 20 : *end == 'K' ? number << 10 : number;
}

/* MemFree of the fake machine; `otherwise` if there is none. */
static unsigned long long machine_free_bytes(unsigned long long otherwise)
{
    const char *path = getenv("SGSIM_MEMINFO");
    FILE *file = path && !is_discrete() ? fopen(path, "re") : NULL;
    char line[128];
    unsigned long long kib;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemFree: %llu kB", &kib) == 1)
            otherwise = kib * 1024;
    if (file)
        fclose(file);
    return otherwise;
}

/* What the simulated driver of this process has handed out. */
static unsigned long long live_bytes(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), *found = NULL;
    size_t (*live)(const char *);
    if (driver)
        found = dlsym(driver, "sgsim_live_bytes");
    memcpy(&live, &found, sizeof live);
    unsigned long long bytes = found ? live("device") + live("array") + live("context") : 0;
    if (driver)
        dlclose(driver);
    return bytes;
}

static nvmlReturn_t check(nvmlDevice_t device, const void *answer)
{
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    for (unsigned int i = 0; i < device_count(); i++)
        if (device == &devices[i] && answer)
            return NVML_SUCCESS;
    return NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t ask(nvmlMemory_t *memory)
{
    if (planned)
        return planned;
    if (!has_memory_info())
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned long long total = total_bytes(), live = live_bytes();
    unsigned long long left = machine_free_bytes(total > live ? total - live : 0);
    *memory = (nvmlMemory_t){.total = total, .free = left < total ? left : total};
    memory->used = total - memory->free;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlReturn_t result = check(device, memory);
    asked++;
    return result == NVML_SUCCESS ? ask(memory) : result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    nvmlReturn_t result = check(device, memory);
    asked++;
    if (result == NVML_SUCCESS && memory->version != nvmlMemory_v2)
        result = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result == NVML_SUCCESS)
        result = ask(&plain);
    if (result != NVML_SUCCESS)
        return result;
    memory->total = plain.total;
    memory->reserved = RESERVED < plain.free ? RESERVED : plain.free;
    memory->free = plain.free - memory->reserved;
    memory->used = plain.used;
    return NVML_SUCCESS;
}

/* ---- what PyTorch asks while it reports an out-of-memory error ---- */

/* SGSIM_NVML_UNSUPPORTED=NAME: that function answers NOT_SUPPORTED. */
static bool is_unsupported(const char *name)
{
    const char *chosen = getenv("SGSIM_NVML_UNSUPPORTED");
    return chosen && strcmp(chosen, name) == 0;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (is_unsupported("nvmlDeviceGetHandleByPciBusId_v2"))
        return NVML_ERROR_NOT_SUPPORTED;
    *device = &devices[0];
    return bus_id ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* The first version, whose entries have no instances: one process, which is not this one. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)
{
    nvmlReturn_t result = check(device, count);
    if (result == NVML_SUCCESS && is_unsupported("nvmlDeviceGetComputeRunningProcesses"))
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result != NVML_SUCCESS)
        return result;
    if (*count > 0)
        infos[0] = (nvmlProcessInfo_v1_t){1, GIB};
    result = *count > 0 ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
    *count = 1;
    return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, void *pci)
{
    (void)link;
    nvmlReturn_t result = check(device, pci);
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

/* ---- what a client needs on its way there ---- */

static nvmlReturn_t disturb(const char *call);

nvmlReturn_t nvmlInit_v2(void)
{
    nvmlReturn_t result = disturb("init");
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned int i = 0; i < DEVICES_MOST; i++)
        devices[i].index = i;
    if (is_unsupported("nvmlInit_v2"))
        return NVML_ERROR_NOT_SUPPORTED;
    users++;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return nvmlInit_v2();
}

nvmlReturn_t nvmlShutdown(void)
{
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    users--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    return result == NVML_SUCCESS               ? "The operation was successful"
           : result == NVML_ERROR_NOT_SUPPORTED ? "Not Supported"
                                                : "Unknown Error";
}

static nvmlReturn_t copy_text(char *to, unsigned int room, const char *text)
{
    if (strlen(text) >= room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return users == 0 ? NVML_ERROR_UNINITIALIZED : copy_text(version, length, "580.00 (simulated)");
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    *count = device_count();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (index >= device_count())
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = &devices[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    nvmlReturn_t result = check(device, name);
    const char *text = is_discrete() ? "Simulated discrete GPU" : "NVIDIA GB10 (simulated)";
    return result == NVML_SUCCESS ? copy_text(name, length, text) : result;
}

/* "GPU-" and the bytes that cuDeviceGetUuid gives, in groups of 4, 2, 2, 2 and 6: as the real one spells them. */
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    nvmlReturn_t result = check(device, uuid);
    char text[48] = "GPU";
    size_t used = 3;
    if (result != NVML_SUCCESS)
        return result;
    unsigned char bytes[16];
    memcpy(bytes, is_discrete() ? "sgsim-card-gpu-" : "sgsim-gb10-gpu-", 15);
    bytes[15] = (unsigned char)('A' + device->index);
    for (int i = 0; i < 16; i++) {
        bool begins_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        used += (size_t)snprintf(text + used, sizeof text - used, begins_group ? "-%02x" : "%02x", bytes[i]);
    }
    return copy_text(uuid, length, text);
}

/* ---- processes ---- */

static void write_text(const char *folder, const char *name, const char *text)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    if (file) {
        fputs(text, file);
        fclose(file);
    }
}

/* What was asked of a call by its name: to fail, or never to return. */
static nvmlReturn_t disturb(const char *call)
{
    const char *fail = getenv("SGSIM_NVML_FAIL"), *hang = getenv("SGSIM_NVML_HANG"), *freezer;
    if (hang && strcmp(hang, call) == 0) {
        if ((freezer = getenv("SGSIM_NVML_FREEZER")) != NULL) {
            write_text(freezer, "cgroup.procs", "0");
            write_text(freezer, "freezer.state", "FROZEN");
        }
        for (;;)
            pause();
    }
    return fail && strcmp(fail, call) == 0 ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

static unsigned long long bytes_of(const char *folder, const char *pid, unsigned int device)
{
    size_t bytes[DEVICES_MOST] = {0};
    char path[4096 + 256];
    snprintf(path, sizeof path, "/proc/%s", pid);
    if (access(path, F_OK) != 0)
        return 0; /* what is left of a process that has ended */
    snprintf(path, sizeof path, "%s/%s", folder, pid);
    FILE *file = fopen(path, "re");
    size_t count = file ? fread(bytes, sizeof bytes[0], DEVICES_MOST, file) : 0;
    if (file)
        fclose(file);
    return device < count ? bytes[device] : 0;
}

/* Where the list is read from, after the time that it takes. False: it is empty. */
static bool find_list(char *folder, size_t room)
{
    const char *list = getenv("SGSIM_NVML_LIST"), *late = getenv("SGSIM_NVML_LATE");
    const char *path = getenv("SGSIM_PROCESSES"), *meminfo = getenv("SGSIM_MEMINFO");
    if (late)
        usleep((useconds_t)strtoul(late, NULL, 10) * 1000); /* pace: a driver that takes so long */
    if (list && strcmp(list, "none") == 0)
        return false;
    snprintf(folder, room, "%s%s", path ? path : meminfo ? meminfo : "", path || !meminfo ? "" : ".processes");
    return folder[0] != '\0';
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    char folder[4096];
    nvmlReturn_t result = check(device, count);
    unsigned int room = result == NVML_SUCCESS ? *count : 0, found = 0;
    if (result == NVML_SUCCESS)
        result = disturb("list");
    if (result != NVML_SUCCESS)
        return result;
    DIR *stream = find_list(folder, sizeof folder) ? opendir(folder) : NULL;
    for (struct dirent *entry; stream && (entry = readdir(stream));) {
        unsigned long long bytes = entry->d_name[0] == '.' ? 0 : bytes_of(folder, entry->d_name, device->index);
        if (bytes == 0)
            continue;
        if (found < room)
            infos[found] = (nvmlProcessInfo_t){(unsigned int)strtoul(entry->d_name, NULL, 10), bytes, ~0u, ~0u};
        found++;
    }
    if (stream)
        closedir(stream);
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* The first process of the list draws, too: such a process is in both lists with the same figure. */
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_t *infos)
{
    nvmlReturn_t result = disturb("graphics");
    if (is_unsupported("nvmlDeviceGetGraphicsRunningProcesses_v3"))
        return NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS)
        result = nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
    if (result == NVML_SUCCESS && *count > 1)
        *count = 1;
    return result;
}
