/*
 * What a container may have in its own directory, as the host's programs read it: a registry with any header and any
 * entries, whose owners live. Whatever it says, its sum stays within what a sum may be.
 */
#include "fuzz.h"

#include "admit/apart/containers.h"
#include "shared/own_entry.h"
#include "sparkguard_abi.h"

enum { ENTRIES = 8, ENTRY_BYTES = sizeof(struct sg_registry_entry), HEADER_BYTES = sizeof(struct sg_registry) };
enum { ROOM = HEADER_BYTES + ENTRIES * ENTRY_BYTES };

FUZZ_CAPACITY(ROOM);

/* The owners of all entries live as long as this program. */
static void lock_entries(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = SG_ENTRY_CAPACITY};
    fuzz_need(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0, "lock");
}

static void fill(uint8_t bytes[ROOM])
{
    static const struct sg_registry header = {.magic = SG_REGISTRY_MAGIC,
                                              .version = SG_REGISTRY_VERSION,
                                              .entry_bytes = ENTRY_BYTES,
                                              .entry_capacity = SG_ENTRY_CAPACITY,
                                              .entry_used = ENTRIES};
    memset(bytes, 0, ROOM);
    memcpy(bytes, &header, sizeof header);
    for (unsigned i = 0; i < ENTRIES; i++) {
        struct sg_registry_entry entry = {.claim = 1 << 2 | SG_CLAIM_LIVE};
        entry.slot.granted_bytes = entry.slot.promised_bytes = UINT64_C(1) << 21;
        memcpy(bytes + HEADER_BYTES + i * ENTRY_BYTES, &entry, sizeof entry);
    }
}

/* An odd first byte changes the entries alone, an even one the header, too. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t bytes[ROOM];
    static int fd = -1;
    const size_t from = size > 0 && data[0] % 2 != 0 ? HEADER_BYTES : 0;
    if (fd < 0) {
        fd = open(fuzz_path(SG_REGISTRY_NAME), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        lock_entries(open(fuzz_path(SG_REGISTRY_NAME), O_RDWR | O_CLOEXEC));
    }
    fill(bytes);
    if (size > 1)
        fuzz_patch(bytes + from, ROOM - from, data + 1, size - 1);
    fuzz_need(pwrite(fd, bytes, ROOM, 0) == ROOM, "write");
    fuzz_need(sg_containers_read(fd, SG_REGISTRY_BYTES(ENTRY_BYTES)) <= SG_BYTES_MAX, "a sum without bound");
    return 0;
}
