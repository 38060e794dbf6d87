/*
 * segment_version_1.c - see segment_version_1.h.
 */
#include "model/segment_version_1.h"

#include <string.h>

#include "sparkguard_abi.h"

/* Offsets in version 1 of the fields that have moved since. */
enum {
    FILES_AT = 17264,
    PHASE_PEAK_AT = 17424, /* followed by saved_time_ns, boot_id, job_peak_bytes, as in version 2 */
    SITES_AT = 17472,
    RECORDS_AT = 29760,
    SITE_NAME_AT = 48, /* offset within a call site */
};

enum {
    SITES = SG_CALLSITE_CLASSES * SG_CALLSITE_CAPACITY,
    GROWN_BYTES = (int)offsetof(struct sg_segment, record) - RECORDS_AT,
    MOVED_BYTES = (int)offsetof(struct sg_segment, run) - (int)offsetof(struct sg_segment, phase_peak_bytes),
};
_Static_assert(offsetof(struct sg_segment, file) == FILES_AT, "what is before has not moved");
_Static_assert(sizeof(struct sg_callsite) == 128 && RECORDS_AT - SITES_AT == SITES * 128, "sites have their size");
_Static_assert(MOVED_BYTES == SITES_AT - PHASE_PEAK_AT - 8, "of these nothing but the place has changed");

static void move_site(struct sg_callsite *site)
{
    const char *bytes = (const char *)site;
    char name[SG_CALLSITE_NAME_BYTES];
    memcpy(name, bytes + SITE_NAME_AT, sizeof name);
    site->at_peak_bytes = site->at_refusal_bytes = 0;
    memcpy(site->library, name, sizeof name);
}

size_t model_segment_from_version_1(char *bytes, size_t length, size_t capacity)
{
    struct sg_segment *segment = (struct sg_segment *)bytes;
    char moved[MOVED_BYTES];
    if (length < RECORDS_AT || length > capacity || segment->slot.magic != SG_ABI_MAGIC ||
        segment->slot.abi_version != 1)
        return length;
    size_t records = length - RECORDS_AT, most = capacity - sizeof *segment;
    records = records < most ? records : most;
    memcpy(moved, bytes + PHASE_PEAK_AT, sizeof moved);
    memmove(bytes + sizeof *segment, bytes + RECORDS_AT, records);
    memmove(segment->site, bytes + SITES_AT, sizeof segment->site);
    memset(bytes + FILES_AT, 0, offsetof(struct sg_segment, site) - FILES_AT);
    memcpy(&segment->phase_peak_bytes, moved, sizeof moved);
    for (int i = 0; i < SITES; i++)
        move_site(&segment->site[i / SG_CALLSITE_CAPACITY][i % SG_CALLSITE_CAPACITY]);
    segment->segment_bytes += GROWN_BYTES;
    segment->slot.abi_version = SG_ABI_VERSION;
    return sizeof *segment + records;
}
