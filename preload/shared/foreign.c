/*
 * foreign.c - see foreign.h. The other registry is read with read() and not mapped: its owners may truncate the file,
 * and a mapping would then end this process by SIGBUS.
 */
#include "shared/foreign.h"

#include "base/atomics.h"
#include "shared/registry_file.h"
#include "shared/own_entry.h"
#include "base/syscall.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>

enum { ENTRIES_MAX = 65536, ENTRY_BYTES_MAX = 65536 };

static bool is_foreign_met;

bool sg_foreign_is_met(void)
{
    return is_foreign_met;
}

void sg_foreign_refork(void)
{
    is_foreign_met = false;
    sg_registry_file_give_way(false);
}

/* Reads the header. False if it does not describe entries that contain at least the frozen part. */
static bool read_header(int fd, struct sg_registry *header)
{
    if (sg_sys_pread(fd, header, sizeof *header, 0) != (long)sizeof *header || header->magic != SG_REGISTRY_MAGIC)
        return false;
    return header->entry_bytes >= SG_ENTRY_FROZEN_BYTES && header->entry_bytes <= ENTRY_BYTES_MAX &&
           header->entry_bytes % sizeof(uint64_t) == 0 && header->entry_capacity <= ENTRIES_MAX;
}

/* Sets has_second in the other version's header. This happens before this process queues its first request: processes
 * that read our registry afterwards see the request, and we see the requests of those that did not read it. */
static void set_has_second(void)
{
    static struct sg_registry header;
    const uint64_t yes = 1;
    long fd = sg_registry_file_open_foreign(O_RDWR);
    if (fd < 0)
        return;
    if (read_header((int)fd, &header) && header.version != SG_REGISTRY_VERSION)
        (void)sg_sys_pwrite((int)fd, &yes, sizeof yes, offsetof(struct sg_registry, has_second));
    (void)sg_sys_close((int)fd);
}

void sg_foreign_meet(void)
{
    is_foreign_met = true;
    sg_registry_file_give_way(true);
    set_has_second();
}

static bool read_entry(int fd, const struct sg_registry *header, uint64_t number, struct sg_registry_entry *entry)
{
    const uint64_t at = sizeof *header + number * header->entry_bytes;
    return sg_sys_pread(fd, entry, SG_ENTRY_FROZEN_BYTES, at) == SG_ENTRY_FROZEN_BYTES;
}

/* Decides whether a child's inherited promises count: only after its parent has ended. This must be done here, because
 * the parent's entry number is one of the other registry. The copy then names the parent as dead, so that peers.c does
 * not look for it in our registry. */
static void resolve_parent(int fd, const struct sg_registry *header, struct sg_registry_entry *entry)
{
    static struct sg_registry_entry parent; /* too large for a stack; only its frozen part is read */
    uint64_t number = entry->parent_entry, claim = entry->parent_claim;
    if (number != 0 && number <= header->entry_capacity && SG_CLAIM_STATE(claim) == SG_CLAIM_LIVE &&
        read_entry(fd, header, number - 1, &parent) && parent.claim == claim &&
        sg_registry_file_has_owner(fd, (uint32_t)number - 1))
        entry->slot.inherited_promise_bytes = 0;
    entry->parent_claim = (claim & ~UINT64_C(3)) | SG_CLAIM_DEAD;
}

void sg_foreign_visit(void (*visit)(void *context, uint32_t number, struct sg_registry_entry *entry), void *context)
{
    static struct sg_registry header; /* both too large for a stack */
    static struct sg_registry_entry entry;
    if (!is_foreign_met && sg_load(&sg_entry_registry()->has_second) == 0)
        return;
    long fd = sg_registry_file_open_foreign(O_RDONLY);
    if (fd < 0)
        return;
    uint32_t entry_count = read_header((int)fd, &header) ? header.entry_capacity : 0;
    for (uint32_t i = 0; i < entry_count && i < header.entry_used; i++) {
        if (!read_entry((int)fd, &header, i, &entry))
            break;
        if (SG_CLAIM_STATE(entry.claim) != SG_CLAIM_LIVE || !sg_registry_file_has_owner((int)fd, i))
            continue;
        resolve_parent((int)fd, &header, &entry);
        visit(context, i, &entry);
    }
    (void)sg_sys_close((int)fd);
}

uint64_t sg_foreign_bytes_of(const struct sg_registry_entry *entry)
{
    uint64_t queued_bytes = entry->ticket != SG_TICKET_NONE ? entry->queued_bytes : 0;
    return queued_bytes + entry->slot.in_flight_bytes + entry->slot.promised_bytes;
}

static void add_bytes(void *sum, uint32_t number, struct sg_registry_entry *entry)
{
    (void)number;
    *(uint64_t *)sum += sg_foreign_bytes_of(entry);
}

uint64_t sg_foreign_bytes(void)
{
    uint64_t sum = 0;
    sg_foreign_visit(add_bytes, &sum);
    return sum;
}
