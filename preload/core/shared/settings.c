/*
 * settings.c - see settings.h.
 */
#include "shared/settings.h"

#include "base/compiler.h"
#include "shared/segment.h"

struct sg_settings sg_settings;

/* What was read last. */
static const struct sg_registry *read_in;
static uint64_t read_changes;

struct sg_registry_entry *sg_settings_find(struct sg_registry *registry, uint64_t job, uint32_t *number)
{
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (SG_LIKELY(!sg_entry_is_of_job(entry)) || entry->slot.job_hash != job || !sg_settings_are_in(entry) ||
            !sg_entry_is_live(entry))
            continue;
        *number = i;
        return entry;
    }
    return NULL;
}

uint64_t sg_settings_read(void)
{
    struct sg_registry *registry = sg_entry_registry();
    const struct sg_registry_entry *entry = NULL;
    uint64_t changes = sg_load(&registry->settings); /* before the words: pairs with the end of write_words() */
    uint32_t number;
    if (SG_LIKELY(registry == read_in && changes == read_changes))
        return changes;
    if (changes != 0)
        entry = sg_settings_find(registry, sg_own->slot.job_hash, &number);
    sg_store(&sg_settings.user, entry != NULL ? sg_load(&entry->set_user) : 0);
    sg_store(&sg_settings.limit_bytes, entry != NULL ? sg_load(&entry->set_limit_bytes) : 0);
    sg_store(&sg_settings.reserve_bytes, entry != NULL ? sg_load(&entry->set_reserve_bytes) : 0);
    read_in = registry;
    read_changes = changes;
    return changes;
}
