/*
 * giving.c - see giving.h.
 */
#include "watch/giving.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/syscall.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

#include <linux/futex.h>
#include <time.h>

static struct {
    void (*callback)(uint64_t, void *); /* (atomic) NULL: none */
    void *data;                         /* (atomic) stored before the callback */
    uint32_t has_thread;                /* (atomic) */
} own SG_AT_FORK;

void sg_giving_set(void (*callback)(uint64_t, void *), void *data)
{
    sg_store(&own.callback, NULL); /* the old function is not called with the new data */
    sg_store(&own.data, data);
    sg_store(&own.callback, callback);
    sg_giving_show();
}

void sg_giving_call(uint64_t bytes)
{
    void (*callback)(uint64_t, void *) = sg_load(&own.callback);
    if (callback != NULL)
        callback(bytes, sg_load(&own.data));
}

bool sg_giving_begin_thread(void)
{
    uint32_t absent = 0;
    return sg_cas_u32(&own.has_thread, &absent, 1);
}

void sg_giving_note_no_thread(void)
{
    sg_store(&own.has_thread, 0);
}

void sg_giving_atfork_child(void)
{
    sg_store(&own.callback, NULL);
    sg_store(&own.has_thread, 0);
    sg_fetch_and(&sg_own->slot.flags, ~(uint32_t)SG_SLOT_GIVES);
}

void sg_giving_show(void)
{
    if (sg_load(&own.callback) != NULL) {
        sg_fetch_or(&sg_own->slot.flags, (uint32_t)SG_SLOT_GIVES);
        sg_fetch_or(&sg_entry_own()->slot.flags, (uint32_t)SG_SLOT_GIVES);
    } else {
        sg_fetch_and(&sg_own->slot.flags, ~(uint32_t)SG_SLOT_GIVES);
        sg_fetch_and(&sg_entry_own()->slot.flags, ~(uint32_t)SG_SLOT_GIVES);
    }
}

uint32_t sg_giving_wait(uint32_t seen, uint64_t timeout_ns, uint64_t *bytes)
{
    struct sg_registry_entry *entry = sg_entry_own();
    const struct timespec timeout = {0, (long)timeout_ns};
    if (sg_load(&entry->pressure_asked) == seen)
        (void)sg_sys_futex(&entry->pressure_asked, FUTEX_WAIT, seen, &timeout);
    uint32_t now = sg_load(&entry->pressure_asked);
    *bytes = now != seen ? sg_load(&entry->pressure_bytes) : 0;
    if (now != seen)
        sg_store(&entry->pressure_bytes, 0);
    return now;
}
