/*
 * entries.h - a registry of the test's own, which its process has joined, and entries of processes that do not exist.
 */
#ifndef SG_TEST_ENTRIES_H
#define SG_TEST_ENTRIES_H

#include "fixture.h"

#include "base/atomics.h"
#include "base/options.h"
#include "shared/own_entry.h"
#include "shared/registry.h"
#include "shared/segment.h"

FIXTURE void join(void)
{
    strcpy(sg_options.dir, in_folder("live"));
    strcpy(sg_options.job, "unit");
    sg_segment_attach();
    sg_registry_join();
    CHECK((sg_load(&sg_own->slot.flags) & SG_SLOT_SHARING) != 0);
}

/* An entry of this process's job; no lock keeps it, which does not matter here. */
FIXTURE struct sg_registry_entry *sit(unsigned number, uint32_t flags)
{
    struct sg_registry_entry *entry = sg_entry_at(sg_entry_registry(), number);
    memset(entry, 0, sizeof *entry);
    entry->slot.job_hash = sg_own->slot.job_hash;
    entry->slot.flags = flags;
    entry->claim = 1 << 2 | SG_CLAIM_LIVE;
    if (sg_load(&sg_entry_registry()->entry_used) < number + 1)
        sg_store(&sg_entry_registry()->entry_used, number + 1);
    return entry;
}

#endif
