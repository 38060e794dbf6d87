/*
 * The registry as the observer copies it for the tools: a hostile header and hostile entries in a file that nobody
 * owns. Whatever they say, nothing behind the copy is read, and no figure is beyond its bound.
 */
#include "fuzz.h"

#include "base/options.h"
#include "observer/observe.h"
#include "shared/registry_file.h"

enum { ENTRIES = 8 };

FUZZ_CAPACITY(sizeof(struct sg_registry) + ENTRIES * sizeof(struct sg_registry_entry));

/* Puts the registry into a segment, which the file names, as where a group shares the directory. The last bytes of an
 * input change what the file says. */
static void put_segment(const void *registry, uint64_t bytes, const uint8_t *data, size_t size)
{
    static void *segment;
    struct sg_registry_link link;
    if (segment != NULL)
        sg_registry_link_detach(segment);
    fuzz_need(sg_registry_link_make(bytes, getegid(), &link, &segment) == 0, "segment");
    memcpy(segment, registry, bytes);
    if (size % 3 == 0)
        memcpy(&link.version, data + size - (size < 20 ? size : 20), size < 20 ? size : 20);
    fuzz_put("live/" SG_REGISTRY_NAME, &link, sizeof link);
}

/* A registry with entries whose owners live. The first byte of an input decides which version made it, where it ends,
 * and whether the file names a segment. */
static void put_registry(const uint8_t *data, size_t size)
{
    static union {
        struct sg_registry registry;
        char bytes[SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry))];
    } whole;
    uint8_t kind = size > 0 ? data[0] : 0;
    uint32_t entry_bytes = kind % 2 == 0 ? (uint32_t)sizeof(struct sg_registry_entry) : SG_ENTRY_FROZEN_BYTES;
    memset(&whole, 0, sizeof whole);
    whole.registry = (struct sg_registry){.magic = SG_REGISTRY_MAGIC,
                                          .version = SG_REGISTRY_VERSION + kind % 2,
                                          .entry_bytes = entry_bytes,
                                          .entry_capacity = SG_ENTRY_CAPACITY,
                                          .entry_used = ENTRIES,
                                          .claim_places = 1};
    for (unsigned i = 0; i < ENTRIES; i++)
        ((struct sg_registry_entry *)(void *)((char *)whole.registry.entry + (size_t)i * entry_bytes))->claim =
            1 << 2 | SG_CLAIM_LIVE;
    if (size > 1)
        fuzz_patch(&whole, fuzz_room, data + 1, size - 1);
    fuzz_put("live/" SG_REGISTRY_NAME, &whole, SG_REGISTRY_BYTES(entry_bytes));
    if (kind % 8 >= 4)
        put_segment(&whole, SG_REGISTRY_BYTES(entry_bytes), data, size);
    if (kind % 4 >= 2) /* its owner cuts it */
        fuzz_need(truncate(fuzz_path("live/" SG_REGISTRY_NAME), kind * 64) == 0, "truncate");
}

/* An open file whose locks make the entries those of living processes. */
static int lock_entries(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = ENTRIES};
    int fd = open(fuzz_path("live/" SG_REGISTRY_NAME), O_RDWR | O_CLOEXEC);
    fuzz_need(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0, "lock");
    return fd;
}

static void check(const struct sg_observation *seen)
{
    fuzz_need(seen->is_known && seen->count >= 1 && seen->count <= SG_CONSTRAINT_CAPACITY, "no machine");
    for (uint32_t i = 0; i < seen->count; i++)
        fuzz_need(seen->at[i].usable_bytes <= seen->at[i].headroom_bytes && seen->at[i].taken_bytes <= UINT64_C(1)
                                                                                                           << 60,
                  "a figure beyond its bound");
    fuzz_need(seen->host_bytes <= seen->at[0].headroom_bytes && seen->device_bytes <= seen->at[0].headroom_bytes,
              "more than there is");
    fuzz_need(sg_observe_count() <= SG_ENTRY_CAPACITY, "more entries than there is room for");
    for (uint32_t i = 0; i < sg_observe_count(); i++) {
        const struct sg_registry_entry *entry = sg_observe_entry(i);
        if (entry != NULL)
            fuzz_need(sg_observe_claim_rest(i) <= UINT64_C(1) << 52 &&
                          sg_observe_promise(i) <= entry->slot.promised_bytes,
                      "more than the entry says");
    }
    (void)sg_observe_held_by(0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sg_observation seen;
    if (sg_options.system_root[0] == '\0') {
        fuzz_put("root/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n", 46);
        (void)setenv("SPARKGUARD_SYSTEM_ROOT", fuzz_path("root"), 1);
    }
    put_registry(data, size);
    int owner = lock_entries(), fd = open(fuzz_path("live/" SG_REGISTRY_NAME), O_RDONLY | O_CLOEXEC);
    for (uint64_t job = 0; job < 2; job++) {
        sg_observe(fd, &(const struct sg_observer){.job = job}, &seen);
        check(&seen);
    }
    (void)close(owner); /* now all owners have ended */
    sg_observe(fd, &(const struct sg_observer){.job = 0}, &seen);
    for (uint32_t i = 0; i < sg_observe_count(); i++)
        fuzz_need(i >= ENTRIES || sg_observe_entry(i) == NULL, "an entry without an owner");
    (void)close(fd);
    return 0;
}
