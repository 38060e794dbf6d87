/*
 * check_cuda.c - checks the driver, the toolkit, the architecture, and whether CPU and GPU share one memory, from files
 * alone. It does not initialise CUDA, which would take memory and could hang on a hung driver.
 */
#include <dirent.h>
#include <glob.h>
#include <string.h>
#include <sys/utsname.h>

#include "admit/snapshot.h"
#include "doctor/doctor.h"
#include "common/bytes.h"
#include "common/text.h"
#include "model/host/host.h"

#define VERSION_FILE "/proc/driver/nvidia/version"

/* The oldest driver of CUDA 13, which the Spark's GPU needs. */
#define DRIVER_LEAST 580
#define RUNTIME_LEAST 13
/* The first driver that keeps freed pages in its own pool. */
#define DRIVER_POOLS 590
/* What a pool keeps is worth a warning from this part of the machine on: 7.5 GiB of a Spark. */
#define POOL_LITTLE 16

/* Names of GPUs without their own memory, as the driver spells them, and of machines with such a GPU. */
static const char *const unified_gpus[] = {"GB10", "Orin", "Thor", "Xavier", "Tegra"};
static const char *const unified_machines[] = {"DGX Spark", "DGX_Spark", "DGX-Spark", "Jetson"};

/* Returns the first word of the list that the text contains, or NULL. */
static const char *find_word(const char *text, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcasestr(text, words[i]) != NULL)
            return words[i];
    return NULL;
}

/* Reads the GPU's name from the driver's files, such as "NVIDIA GB10": the first unified GPU, else the first GPU. */
static bool read_gpu(const struct doctor *doctor, char name[128], bool *is_unified)
{
    char *pattern = text_format("%s/proc/driver/nvidia/gpus/*/information", doctor->root), text[4096];
    glob_t found = {0};
    bool is_found = false;
    *is_unified = false;
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc && !*is_unified; i++) {
            long length = doctor_read(doctor, found.gl_pathv[i] + strlen(doctor->root), text, sizeof text);
            const char *model = length > 0 ? strstr(text, "Model:") : NULL;
            if (model == NULL)
                continue;
            model += sizeof "Model:" - 1;
            model += strspn(model, " \t");
            char *line = text_copy(model, bytes_min(strcspn(model, "\n"), 100));
            *is_unified = find_word(line, unified_gpus, sizeof unified_gpus / sizeof unified_gpus[0]) != NULL;
            if (!is_found || *is_unified)
                snprintf(name, 128, "%s", line);
            is_found = true;
        }
    globfree(&found);
    return is_found;
}

/* Reads the machine's name from its firmware. */
static bool read_product(const struct doctor *doctor, char name[128])
{
    static const char *const files[] = {"/sys/class/dmi/id/product_name", "/proc/device-tree/model"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (doctor_read(doctor, files[i], name, 128) > 0) {
            name[strcspn(name, "\n")] = '\0';
            return true;
        }
    return false;
}

/* Returns true if the PCI bus can be read and has no NVIDIA device. A Spark's GPU is on the bus too. */
static bool has_no_gpu(const struct doctor *doctor)
{
    static const char bus[] = "/sys/bus/pci/devices";
    DIR *stream = opendir(text_format("%s%s", doctor->root, bus));
    const struct dirent *entry;
    bool is_found = stream == NULL;
    while (!is_found && (entry = readdir(stream)) != NULL) {
        char vendor[16];
        char *file = text_format("%s/%s/vendor", bus, entry->d_name);
        is_found = entry->d_name[0] != '.' && doctor_read(doctor, file, vendor, sizeof vendor) > 0 &&
                   strncmp(vendor, "0x10de", 6) == 0;
    }
    if (stream != NULL)
        closedir(stream);
    return !is_found;
}

void doctor_learn_unified(struct doctor *doctor)
{
    char gpu[128] = "", product[128] = "";
    const char *variable = getenv("SPARKGUARD_UNIFIED");
    bool is_gpu_unified, has_gpu = read_gpu(doctor, gpu, &is_gpu_unified);
    bool has_product =
        read_product(doctor, product) &&
        find_word(product, unified_machines, sizeof unified_machines / sizeof unified_machines[0]) != NULL;
    doctor->has_driver = doctor_exists(doctor, VERSION_FILE);
    doctor->has_gpu = doctor->has_driver || has_gpu || !has_no_gpu(doctor);
    doctor->unified = doctor->model->machine.unified;
    if (doctor->unified >= 0)
        doctor->how = text_copy("by the driver's answer to a running guarded process", 64);
    else if (has_gpu && is_gpu_unified)
        doctor->how = text_format("by the GPU's name, %s", gpu);
    else if (has_product)
        doctor->how = text_format("by the machine's name, %s", product);
    else if (has_gpu)
        doctor->how = text_format("by the GPU's name, %s, which has memory of its own", gpu);
    else
        doctor->how = text_copy("", 0);
    if (doctor->unified < 0)
        doctor->unified = (has_gpu && is_gpu_unified) || has_product ? 1 : has_gpu ? 0 : -1;
    bool is_on = variable != NULL && strcmp(variable, "on") == 0;
    bool is_off = variable != NULL && strcmp(variable, "off") == 0;
    doctor->is_forced = (is_on && doctor->unified == 0) || (is_off && doctor->unified == 1);
}

static void check_unified(struct doctor *doctor, struct finding *finding)
{
    if (doctor->is_forced) {
        finding_say(finding, doctor->unified == 1 ? FINDING_DANGER : FINDING_WARNING, "unset SPARKGUARD_UNIFIED",
                    "SPARKGUARD_UNIFIED says that CPU and GPU %s one memory, against what was found (%s).",
                    doctor->unified == 1 ? "do not share" : "share", doctor->how);
    } else if (doctor->unified == 1) {
        finding_say(finding, FINDING_FINE, NULL, "CPU and GPU share one memory, %s.", doctor->how);
    } else if (doctor->unified == 0) {
        finding_say(finding, FINDING_FINE, NULL, "The GPU has memory of its own, %s.", doctor->how);
    } else if (doctor->has_driver) {
        finding_say(finding, FINDING_UNKNOWN,
                    "sparkguard python3 -c 'import torch; torch.zeros(1).cuda()'  # asks the driver",
                    "It is unknown whether CPU and GPU share one memory.");
    } else {
        finding_say(finding, FINDING_FINE, NULL, "No NVIDIA driver is loaded: there is no device memory to share.");
        finding->absent = doctor->has_gpu ? "no NVIDIA driver" : "no NVIDIA GPU";
    }
}

DOCTOR_CHECK(210, check_unified, "unified",
             "On unified memory a job's cudaMalloc takes the pages that SSH needs; the guard asks the driver "
             "(CU_DEVICE_ATTRIBUTE_INTEGRATED) and needs no help with it.");

/* Reads the driver's version. Returns its first number, or 0 if it cannot be read. */
static unsigned read_driver_version(const struct doctor *doctor, char version[32])
{
    char text[1024] = "";
    long length = doctor_read(doctor, VERSION_FILE, text, sizeof text);
    unsigned major = 0;
    version[0] = '\0';
    text[strcspn(text, "\n")] = '\0'; /* the next line is the compiler's version */
    /* "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build ..." */
    for (const char *at = text; length > 0 && major == 0 && (at = strpbrk(at, "0123456789")) != NULL;
         at += strspn(at, "0123456789."))
        if ((at == text || at[-1] == ' ') && sscanf(at, "%4u.%*u", &major) == 1 && at[strspn(at, "0123456789")] == '.')
            sscanf(at, "%31[0123456789.]", version);
        else
            major = 0;
    return major;
}

static void check_driver(struct doctor *doctor, struct finding *finding)
{
    char version[32];
    unsigned major = read_driver_version(doctor, version);
    if (!doctor->has_gpu) {
        finding_say(finding, FINDING_FINE, NULL, "There is no NVIDIA GPU: the guard bounds heap and mappings.");
        finding->absent = "no NVIDIA GPU";
    } else if (!doctor->has_driver) {
        finding_say(finding, FINDING_WARNING, "sudo modprobe nvidia", "No NVIDIA driver is loaded.");
    } else if (major == 0) {
        finding_say(finding, FINDING_UNKNOWN, "cat " VERSION_FILE, "The version of the NVIDIA driver cannot be read.");
    } else if (major < DRIVER_LEAST) {
        finding_say(finding, FINDING_WARNING, text_format("sudo apt install nvidia-driver-%d-open", DRIVER_LEAST),
                    "The NVIDIA driver is %s; CUDA 13 needs %d.", version, DRIVER_LEAST);
    } else {
        finding_say(finding, FINDING_FINE, NULL, "The NVIDIA driver is %s.", version);
    }
    finding_figure(finding, "driver_major", major != 0 ? major : SG_UNKNOWN);
}

DOCTOR_CHECK(220, check_driver, "driver",
             "Without a driver that knows the GPU no CUDA program starts; sparkguard itself serves any, from CUDA 11 "
             "on.");

/* Returns the memory of CUDA programs, and of pages that the driver keeps after they were freed. */
static uint64_t unexplained_bytes(const struct doctor *doctor)
{
    bool is_known = doctor_meminfo(doctor, "MemTotal") != SG_UNKNOWN;
    return is_known ? sg_snapshot_unexplained_kib(doctor->meminfo) * 1024 : SG_UNKNOWN;
}

/* Returns the device memory of living programs: NVML's figure for all of them, or what guarded ones have recorded. */
static uint64_t living_bytes(const struct model *model)
{
    uint64_t recorded = model->machine.unaccounted_bytes != SG_UNKNOWN ? model->machine.unaccounted_bytes : 0;
    uint64_t listed = 0;
    const struct host_devices *devices = host_devices_ask();
    for (size_t i = 0; i < SG_DEVICE_CAPACITY; i++)
        recorded = bytes_add(recorded, model->machine.device[i].is_known ? model->machine.device[i].live_bytes : 0);
    for (size_t i = 0; devices != NULL && i < devices->count; i++)
        listed = bytes_add(listed, devices->use[i].bytes != SG_UNKNOWN ? devices->use[i].bytes : 0);
    return listed > recorded ? listed : recorded;
}

/* Returns NVreg_EnableSystemMemoryPools, a mask of page sizes: 0 if the driver has no such option, SG_UNKNOWN if it
 * cannot be read. */
static uint64_t read_pools(const struct doctor *doctor)
{
    static const char key[] = "EnableSystemMemoryPools:";
    char text[8192] = "", version[32];
    unsigned major = read_driver_version(doctor, version);
    if (doctor_read(doctor, "/proc/driver/nvidia/params", text, sizeof text) <= 0)
        return major != 0 && major < DRIVER_POOLS ? 0 : SG_UNKNOWN;
    const char *at = strstr(text, key);
    return at != NULL ? strtoull(at + sizeof key - 1, NULL, 10) : 0;
}

bool doctor_has_driver_pools(const struct doctor *doctor)
{
    uint64_t pools = doctor->has_driver && doctor->unified != 0 ? read_pools(doctor) : 0;
    return pools != 0 && pools != SG_UNKNOWN;
}

static void check_driver_pools(struct doctor *doctor, struct finding *finding)
{
    uint64_t pools = doctor->has_driver ? read_pools(doctor) : 0, unexplained = unexplained_bytes(doctor);
    bool has_pools = pools != 0 && pools != SG_UNKNOWN;
    uint64_t living = has_pools ? living_bytes(doctor->model) : 0;
    uint64_t kept = unexplained == SG_UNKNOWN ? SG_UNKNOWN : bytes_less(unexplained, living);
    const char *kept_text = text_size(kept);
    if (!doctor->has_driver || doctor->unified == 0) {
        finding_say(finding, FINDING_FINE, NULL, "Device memory is not the machine's, so the driver keeps none of it.");
        finding->absent = doctor->has_driver ? "the GPU has memory of its own"
                          : doctor->has_gpu  ? "no NVIDIA driver"
                                             : "no NVIDIA GPU";
    } else if (pools == 0) {
        finding_say(finding, FINDING_FINE, NULL, "The driver gives freed pages back to the machine at once.");
    } else if (pools == SG_UNKNOWN) {
        finding_say(finding, FINDING_UNKNOWN, "sudo cat /proc/driver/nvidia/params",
                    "It is unknown whether the driver keeps freed pages.");
    } else {
        bool is_little = kept == SG_UNKNOWN || kept < doctor_meminfo(doctor, "MemTotal") / POOL_LITTLE;
        finding_say(finding, is_little ? FINDING_FINE : FINDING_WARNING, NULL,
                    "The driver keeps freed pages for itself; %s of the machine is in no counter of the "
                    "kernel, and no device memory that is known of a program that runs.",
                    kept_text);
        if (!is_little) {
            finding->fix = "echo 2 | sudo tee /proc/sys/vm/drop_caches";
            finding->step = "driver-pools";
        }
    }
    finding_figure(finding, "driver_pools_mask", pools);
    finding_figure(finding, "unexplained_bytes", unexplained);
    finding_figure(finding, "living_device_bytes", living);
}

DOCTOR_CHECK(
    230, check_driver_pools, "driver-pools",
    "CUDA programs are served from these pages first. To all others MemAvailable stays low by them, and programs "
    "that size themselves by it do not start. Dropping the kernel's caches empties the pool within a second; the "
    "next CUDA program that ends fills it again. The module option NVreg_EnableSystemMemoryPools=0 and a reboot "
    "end that for good; then the driver clears each allocation, which makes the load of a model slower.");

/* Returns the highest N of libNAME.so.N in the folders of the dynamic linker and of CUDA's installer, or 0 if there is
 * none. */
static unsigned find_soname(const struct doctor *doctor, const char *name)
{
    static const char *const folders[] = {
        "/usr/lib/*-linux-gnu",
        "/lib/*-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/cuda/lib64",
        "/usr/local/cuda*/targets/*/lib",
        "/usr/local/cuda*/lib64",
        "/usr/lib/*-linux-gnu/nvidia",
        "/usr/lib/*-linux-gnu/tegra",
        "/usr/lib/wsl/lib",
    };
    unsigned highest = 0;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char *pattern = text_format("%s%s/%s.so.*", doctor->root, folders[i], name);
        glob_t found = {0};
        if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0)
            for (size_t k = 0; k < found.gl_pathc; k++) {
                const char *number = strrchr(found.gl_pathv[k], '/') + strlen(name) + sizeof "/.so." - 1;
                unsigned value = (unsigned)strtoul(number, NULL, 10);
                highest = value < 1000 && value > highest ? value : highest;
            }
        globfree(&found);
    }
    return highest;
}

/* Reads the version from the toolkit's file, {"cuda": {"name": "CUDA SDK", "version": "13.0.2"}, ...}; "" if there is
 * none. */
static void read_toolkit(const struct doctor *doctor, char version[32])
{
    char text[1024];
    version[0] = '\0';
    long length = doctor_read(doctor, "/usr/local/cuda/version.json", text, sizeof text);
    const char *at = length > 0 ? strstr(text, "\"cuda\"") : NULL;
    at = at != NULL ? strstr(at, "\"version\"") : NULL;
    if (at != NULL)
        sscanf(at + sizeof "\"version\"" - 1, " : \"%31[0-9.]", version);
}

static void check_toolkit(struct doctor *doctor, struct finding *finding)
{
    char version[32];
    read_toolkit(doctor, version);
    const char *name = version[0] != '\0' ? ", toolkit " : "";
    unsigned driver = find_soname(doctor, "libcuda"), runtime = find_soname(doctor, "libcudart");
    if (!doctor->has_gpu) {
        finding_say_absent(finding, "no NVIDIA GPU");
    } else if (driver == 0 && doctor->has_driver) {
        finding_say(finding, FINDING_WARNING, text_format("sudo apt install libnvidia-compute-%d", DRIVER_LEAST),
                    "The driver is loaded, but libcuda.so.1 was not found.");
    } else if (runtime >= RUNTIME_LEAST) {
        finding_say(finding, FINDING_FINE, NULL, "libcudart.so.%u was found%s%s%s.", runtime,
                    driver != 0 ? ", and libcuda.so.1" : "", name, version);
    } else if (runtime > 0) {
        finding_say(finding, doctor->unified == 1 ? FINDING_WARNING : FINDING_FINE, NULL,
                    "libcudart.so.%u was found, but not that of CUDA %d%s%s.", runtime, RUNTIME_LEAST, name, version);
        if (finding->state == FINDING_WARNING)
            finding->fix = text_format("sudo apt install cuda-toolkit-%d-0", RUNTIME_LEAST);
    } else {
        finding_say(finding, doctor->has_driver ? FINDING_UNKNOWN : FINDING_FINE, NULL,
                    "No libcudart.so was found; Python wheels bring their own.");
        if (doctor->has_driver)
            finding->fix = "pip list | grep -i cuda";
    }
    finding_figure(finding, "libcuda_soname", driver != 0 ? driver : SG_UNKNOWN);
    finding_figure(finding, "libcudart_soname", runtime != 0 ? runtime : SG_UNKNOWN);
}

DOCTOR_CHECK(240, check_toolkit, "toolkit",
             "CUDA 13 is the first that supports the Spark's GPU: programs built against CUDA 12 look for "
             "libcudart.so.12 and "
             "do not start.");

static void check_architecture(struct doctor *doctor, struct finding *finding)
{
    char name[64] = "";
    struct utsname own;
    if (doctor_read(doctor, "/proc/sys/kernel/arch", name, sizeof name) <= 0 && doctor->root[0] == '\0' &&
        uname(&own) == 0)
        snprintf(name, sizeof name, "%.63s", own.machine);
    name[strcspn(name, "\n")] = '\0';
    if (name[0] == '\0') {
        finding_say(finding, FINDING_UNKNOWN, "uname -m", "/proc/sys/kernel/arch cannot be read.");
    } else if (strcmp(name, "aarch64") == 0 || strcmp(name, "x86_64") == 0) {
        finding_say(finding, FINDING_FINE, NULL, "The machine is %s.", name);
    } else {
        finding_say(finding, FINDING_WARNING, "make test  # says whether it works there",
                    "The machine is %s, which sparkguard does not support.", name);
    }
}

DOCTOR_CHECK(250, check_architecture, "architecture", "sparkguard is built and tested for aarch64 and x86-64.");
