/*
 * The registry entries of other processes as the library adds them up and as its watchdog ranks them: hostile registry
 * entries in our own ledger, or, with FUZZ_FOREIGN, in one that another version made, with larger entries. Whatever
 * they say, sums stay within what a sum may be, and this process's own figures are its own.
 */
#ifndef FUZZ_FOREIGN
#define FUZZ_FOREIGN 0
#endif
#include "fuzz.h"

#include <sys/stat.h>

#include "admit/admission.h"
#include "base/options.h"
#include "watch/victim.h"
#include "admit/headroom.h"
#include "shared/registry_file.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/registry.h"
#include "shared/segment.h"

enum { ENTRIES = 8 };
#define MOST_BYTES (UINT64_C(1) << 53) /* a saturated sum of sums */

enum { ENTRY_BYTES = sizeof(struct sg_registry_entry) + FUZZ_FOREIGN * 64 };

FUZZ_CAPACITY(ENTRIES *ENTRY_BYTES);

/* Nobody but us frees the registry entries of owners that do not live: they are held. */
static void lock_entries(unsigned first)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = ENTRIES};
    int fd = open(fuzz_path("live/" SG_REGISTRY_NAME), O_RDWR | O_CLOEXEC);
    fuzz_need(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0, "lock");
}

static void put_foreign(void)
{
    static const struct sg_registry header = {.magic = SG_REGISTRY_MAGIC,
                                              .version = SG_REGISTRY_VERSION + 1,
                                              .entry_bytes = ENTRY_BYTES,
                                              .entry_capacity = SG_ENTRY_CAPACITY};
    fuzz_put("live/" SG_REGISTRY_NAME, &header, sizeof header);
    fuzz_need(truncate(fuzz_path("live/" SG_REGISTRY_NAME), (off_t)SG_REGISTRY_BYTES(ENTRY_BYTES)) == 0, "truncate");
}

static void begin(void)
{
    strcpy(sg_options.system_root, fuzz_path("root"));
    strcpy(sg_options.dir, fuzz_path("live"));
    fuzz_put("root/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n", 43);
    (void)mkdir(sg_options.dir, 0700);
    if (FUZZ_FOREIGN)
        put_foreign();
    sg_segment_attach();
    sg_registry_join();
    fuzz_need(sg_entry_shared_registry() != NULL, "join");
    lock_entries(1);
}

static void hurt(const uint8_t *data, size_t size)
{
    struct sg_registry *ledger = sg_entry_registry();
    memset(sg_entry_at(ledger, 1), 0, ENTRIES * ENTRY_BYTES);
    for (unsigned i = 1; i <= ENTRIES; i++)
        sg_entry_at(ledger, i)->claim = 1 << 2 | SG_CLAIM_LIVE;
    ledger->entry_used = ENTRIES + 1;
    fuzz_patch(sg_entry_at(ledger, 1), ENTRIES * ENTRY_BYTES, data, size);
    if (size > 4 && data[3] % 4 == 0)
        ledger->entry_used = UINT32_MAX >> (data[4] % 32); /* also beyond all registry entries */
}

static void check(const struct sg_peer_sums *taken)
{
    fuzz_need(taken->held_bytes < MOST_BYTES && taken->flight_bytes < MOST_BYTES && taken->stalled_bytes < MOST_BYTES &&
                  taken->queued_before_bytes < MOST_BYTES && taken->queued_after_bytes < MOST_BYTES,
              "a sum without bound");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool has_begun;
    struct sg_peers peers;
    struct sg_danger danger;
    if (!has_begun)
        begin();
    has_begun = true;
    uint64_t granted = sg_own->slot.granted_bytes;
    hurt(data, size);
    sg_peers_sum(&peers, 2, true, NULL);
    check(&peers.machine);
    check(&peers.device);
    check(&peers.job);
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++)
        check(&peers.level[i]);
    sg_victim_refresh(&danger);
    fuzz_need(sg_own->slot.granted_bytes == granted, "own figures changed");
    return 0;
}
