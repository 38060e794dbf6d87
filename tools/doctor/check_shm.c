/*
 * check_shm.c - checks how far shared memory may grow: /dev/shm, and that of each container, which its engine mounts at
 * a path that ends in /shm.
 */
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include "common/bytes.h"
#include "common/text.h"
#include "doctor/doctor.h"

#define MACHINES_OWN "/dev/shm"
#define UNBOUNDED (UINT64_C(1) << 62)

/* The mount that may grow most. */
struct shared_memory {
    char *path; /* "": none */
    uint64_t size_bytes, used_bytes;
    size_t count; /* mounts that may grow past the room */
};

static bool is_shared_memory(const struct mntent *entry)
{
    size_t length = strlen(entry->mnt_dir), ending = sizeof "/shm" - 1;
    return strcmp(entry->mnt_type, "tmpfs") == 0 && length >= ending &&
           strcmp(entry->mnt_dir + length - ending, "/shm") == 0;
}

/* The size of a mount: its option, in bytes or with k, m, g or %; without one half of the memory, as the kernel
 * does. */
static uint64_t size_of(const struct mntent *entry, uint64_t total)
{
    const char *option = hasmntopt(entry, "size");
    char *rest;
    if (option == NULL || strncmp(option, "size=", 5) != 0)
        return total / 2;
    unsigned long long number = strtoull(option + 5, &rest, 10);
    unsigned shift = *rest == 'k' ? 10 : *rest == 'm' ? 20 : *rest == 'g' ? 30 : 0;
    if (*rest == '%')
        return bytes_min(total / 100 * bytes_min(number, 1000), UNBOUNDED);
    return number == 0 || number > (UNBOUNDED) >> shift ? UNBOUNDED : (uint64_t)number << shift;
}

/* What is in it now, where that can be seen. */
static uint64_t used_of(const struct doctor *doctor, const struct mntent *entry)
{
    struct statfs status;
    char *path = text_format("%s%s", doctor->root, entry->mnt_dir);
    bool is_known = statfs(path, &status) == 0 && (uint64_t)status.f_type == TMPFS_MAGIC;
    return is_known ? (uint64_t)(status.f_blocks - status.f_bfree) * (uint64_t)status.f_bsize : 0;
}

/* Finds the mount that may grow most beyond `room_bytes`. Returns false if the mounts cannot be read. */
static bool find_largest(const struct doctor *doctor, uint64_t total, uint64_t room_bytes,
                         struct shared_memory *largest)
{
    struct stat status;
    struct mntent entry;
    char line[PATH_MAX + 1024], *mounts = text_format("%s/proc/self/mounts", doctor->root);
    bool is_file = stat(mounts, &status) == 0 && S_ISREG(status.st_mode); /* open(2) can have effects on devices */
    FILE *stream = is_file ? setmntent(mounts, "re") : NULL;
    while (stream != NULL && getmntent_r(stream, &entry, line, sizeof line) != NULL) {
        if (!is_shared_memory(&entry))
            continue;
        uint64_t size = size_of(&entry, total), used = used_of(doctor, &entry);
        uint64_t growth = size > used ? size - used : 0, most = largest->size_bytes - largest->used_bytes;
        largest->count += growth > room_bytes;
        if (largest->path != NULL && growth <= most)
            continue;
        largest->path = text_copy(entry.mnt_dir, strlen(entry.mnt_dir));
        largest->size_bytes = size;
        largest->used_bytes = used;
    }
    if (stream != NULL)
        endmntent(stream);
    return stream != NULL;
}

static void say_found(struct finding *finding, const struct shared_memory *largest, uint64_t room_bytes)
{
    char others[48] = "";
    const char *size = text_size(largest->size_bytes), *room = text_size(room_bytes);
    if (largest->count == 0) {
        finding_say(finding, FINDING_FINE, NULL, "%s may grow to %s; %s can be taken.", largest->path, size, room);
        return;
    }
    if (largest->count > 1)
        snprintf(others, sizeof others, " (and %zu more)", largest->count - 1);
    finding_say(finding, FINDING_WARNING, NULL, "%s%s may grow to %s, but the room is only %s.", largest->path, others,
                size, room);
    if (strcmp(largest->path, MACHINES_OWN) == 0)
        finding->fix = text_format("sudo mount -o remount,size=%" PRIu64 "M " MACHINES_OWN,
                                   bytes_add(largest->used_bytes, room_bytes / 2) >> 20);
    else
        finding->fix = "docker run --shm-size=8g ...  # where the container is started";
}

static void check_shm(struct doctor *doctor, struct finding *finding)
{
    const struct model_machine *machine = &doctor->model->machine;
    uint64_t total = doctor_meminfo(doctor, "MemTotal"), usable = machine->usable_bytes;
    uint64_t reserve = machine->reserve_bytes;
    bool is_known = total != SG_UNKNOWN && usable != SG_UNKNOWN && reserve != SG_UNKNOWN;
    uint64_t room = is_known && usable > reserve ? usable - reserve : 0;
    struct shared_memory largest = {0};
    if (!is_known || !find_largest(doctor, total, room, &largest)) {
        finding_say(finding, FINDING_UNKNOWN, "df -h /dev/shm", "How far shared memory may grow is unknown.");
        is_known = false;
    } else if (largest.path == NULL) {
        finding_say_absent(finding, "no " MACHINES_OWN);
    } else {
        say_found(finding, &largest, room);
    }
    finding_figure(finding, "shared_memory_bytes", is_known && largest.path != NULL ? largest.size_bytes : SG_UNKNOWN);
    finding_figure(finding, "room_bytes", is_known ? room : SG_UNKNOWN);
}

DOCTOR_CHECK(290, check_shm, "shared-memory",
             "Files in it are memory until they are removed, and nothing but the size of the mount bounds them.");
