/*
 * The registry entries of other processes as the library adds them up and as its watchdog ranks them: hostile registry
 * entries in our own ledger, or, with FUZZ_FOREIGN, in another version's, while no ledger of ours can be had. Whatever
 * they say, sums stay within what a sum may be, and this process's own figures are its own.
 */
#ifndef FUZZ_FOREIGN
#define FUZZ_FOREIGN 0
#endif
#include "fuzz.h"

#include <sys/stat.h>

#include "admit/admission.h"
#include "shared/foreign.h"
#include "base/options.h"
#include "watch/victim.h"
#include "admit/headroom.h"
#include "shared/registry_file.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/registry.h"
#include "shared/segment.h"

enum { SEATS = 8 };
#define MOST_BYTES (UINT64_C(1) << 53) /* a saturated sum of sums */

static union {
    struct sg_registry ledger;
    char bytes[SG_REGISTRY_BYTES(SEATS)];
} foreign __attribute__((aligned(64)));

FUZZ_CAPACITY(sizeof foreign);

/* Nobody but us frees the registry entries of owners that do not live: they are held. */
static void lock_seats(unsigned first)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = SEATS};
    int fd = open(fuzz_path("live/" SG_REGISTRY_NAME), O_RDWR | O_CLOEXEC);
    fuzz_need(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0, "lock");
}

static void put_foreign(void)
{
    foreign.ledger.magic = SG_REGISTRY_MAGIC;
    foreign.ledger.version = SG_REGISTRY_VERSION + 1;
    foreign.ledger.entry_bytes = sizeof(struct sg_registry_entry);
    foreign.ledger.entry_capacity = foreign.ledger.entry_used = SEATS;
    for (unsigned i = 0; i < SEATS; i++)
        foreign.ledger.entry[i].claim = 1 << 2 | SG_CLAIM_LIVE;
}

static void begin(void)
{
    strcpy(sg_options.system_root, fuzz_path("root"));
    strcpy(sg_options.dir, fuzz_path("live"));
    fuzz_put("root/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n", 43);
    (void)mkdir(sg_options.dir, 0700);
    if (FUZZ_FOREIGN) {
        put_foreign();
        fuzz_put("live/" SG_REGISTRY_NAME, &foreign, sizeof foreign);
        (void)mkdir(fuzz_path("live/" SG_LEDGER_SECOND_NAME), 0700);
    }
    sg_segment_attach();
    sg_registry_join();
    lock_seats(FUZZ_FOREIGN ? 0 : 1);
}

static void hurt(const uint8_t *data, size_t size)
{
    struct sg_registry *ledger = sg_entry_registry();
    if (FUZZ_FOREIGN) {
        memset(foreign.ledger.entry, 0, SEATS * sizeof foreign.ledger.entry[0]);
        put_foreign();
        fuzz_patch(&foreign, sizeof foreign, data, size);
        fuzz_put("live/" SG_REGISTRY_NAME, &foreign, sizeof foreign);
        return;
    }
    memset(&ledger->entry[1], 0, SEATS * sizeof ledger->entry[1]);
    for (unsigned i = 1; i <= SEATS; i++)
        ledger->entry[i].claim = 1 << 2 | SG_CLAIM_LIVE;
    ledger->entry_used = SEATS + 1;
    fuzz_patch(&ledger->entry[1], SEATS * sizeof ledger->entry[1], data, size);
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
    sg_peers_sum(&peers, 2, true);
    check(&peers.machine);
    check(&peers.device);
    check(&peers.job);
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++)
        check(&peers.level[i]);
    sg_victim_look(&danger);
    fuzz_need(sg_own->slot.granted_bytes == granted, "own figures changed");
    return 0;
}
