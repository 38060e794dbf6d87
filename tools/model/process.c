/*
 * process.c - makes one process of the model from one verified segment.
 *
 * Counters with the top bit set went below zero (frees of blocks whose allocation no hook saw) and count as zero.
 */
#include <stdlib.h>
#include <string.h>

#include "common/procfs.h"
#include "model/model.h"
#include "common/bytes.h"
#include "common/command.h"
#include "common/text.h"
#include "common/tool.h"

static uint64_t not_below_zero(uint64_t bytes)
{
    return bytes > INT64_MAX ? 0 : bytes;
}

/* Returns a time, or 0 (unknown) for times before 1970. Differences of two results do not overflow. */
static int64_t known_time(int64_t time_ns)
{
    return time_ns > 0 ? time_ns : 0;
}

/* Returns whether the segment is a copy in the history of a process from an earlier boot. */
static bool is_of_another_boot(const struct sg_segment *content)
{
    uint64_t now[2];
    return content->saved_time_ns != 0 && (content->boot_id[0] | content->boot_id[1]) != 0 && procfs_boot_id(now) &&
           (content->boot_id[0] != now[0] || content->boot_id[1] != now[1]);
}

/* Determines the state of a process. RUNNING without an owner means: killed if the process is gone; replaced by another
 * program if it lives and no longer maps the segment; still running if the file is a copy of a segment that it maps. */
static enum sg_state conclude_state(const struct model_segment *segment)
{
    const struct sg_segment *content = segment->content;
    const struct sg_slot *slot = &content->slot;
    if (slot->state != SG_STATE_RUNNING || segment->has_owner)
        return (enum sg_state)slot->state;
    if (is_of_another_boot(content))
        return SG_STATE_KILLED;
    uint32_t pid = host_pid_of(slot->pid, slot->start_ticks, content->pid_namespace);
    if (pid != 0)
        return procfs_maps(pid, segment->name) ? SG_STATE_RUNNING : SG_STATE_REPLACED;
    return SG_STATE_KILLED;
}

static void fill_domains(struct model_process *process, const struct sg_segment *content, uint32_t record_count)
{
    int64_t credit_bytes = 0;
    struct model_domain *heap = &process->domain[SG_DOMAIN_HEAP];
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        const struct sg_domain_counters *counters = &content->domain[i];
        struct model_domain *domain = &process->domain[i];
        domain->live_bytes = not_below_zero(counters->granted_bytes);
        domain->peak_bytes = not_below_zero(counters->peak_bytes);
        domain->allocations = counters->allocations;
        domain->frees = counters->frees;
        domain->refused_count = counters->refused_count;
        process->refused_count = bytes_add(process->refused_count, counters->refused_count);
        process->refused_bytes = bytes_add(process->refused_bytes, counters->refused_bytes);
    }
    for (uint32_t i = 0; i < record_count; i++) {
        credit_bytes += content->record[i].credit_bytes; /* bounded by the reader: no overflow */
        credit_bytes += (int64_t)sg_array_credit_bytes(content->record[i].array_credit);
        heap->allocations = bytes_add(heap->allocations, content->record[i].allocations);
        heap->frees = bytes_add(heap->frees, content->record[i].frees);
    }
    int64_t heap_bytes = (int64_t)heap->live_bytes - credit_bytes;
    heap->live_bytes = heap_bytes > 0 ? (uint64_t)heap_bytes : 0;
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        process->live_bytes += process->domain[i].live_bytes;
        process->domain[i].peak_bytes = bytes_max(process->domain[i].peak_bytes, process->domain[i].live_bytes);
    }
}

/* Returns the bytes of the ranges of shared memory that are plausible. A damaged file may contain anything. */
static uint64_t shared_bytes(const struct model_process *process)
{
    uint64_t bytes = 0;
    for (int i = 0; i < SG_FILE_CAPACITY; i++) {
        const struct sg_memory_file *file = &process->file[i];
        uint64_t size = (file->end - file->begin) * SG_FILE_UNIT_BYTES;
        if (file->begin != 0 && file->begin < file->end && file->begin >> 32 == (file->end - 1) >> 32 &&
            file->missing_bytes <= size)
            bytes = bytes_add(bytes, size);
    }
    bool has_more = process->file[SG_FILE_CAPACITY - 1].begin != 0; /* the record lists no more */
    return has_more ? bytes_max(bytes, process->shared_bytes) : bytes;
}

uint64_t model_job_peak(const struct model_process *process)
{
    return bytes_max(process->peak_bytes, bytes_max(process->job_peak_bytes, process->limit_peak_bytes));
}

uint64_t model_process_own_bytes(const struct model_process *process)
{
    uint64_t inherited = bytes_less(process->inherited_bytes, process->inherited_shared_bytes);
    if (!process->is_named)
        return process->live_bytes;
    return bytes_less(bytes_less(process->live_bytes, shared_bytes(process)), inherited);
}

/* Makes the parts of a peak add up to the peak, by correcting the largest part. A process that died between raising the
 * peak and recording its composition leaves the parts of an earlier peak. */
static void match_parts(struct model_process *process)
{
    uint64_t sum_bytes = 0;
    int largest = 0;
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        sum_bytes += process->domain[i].at_peak_bytes;
        if (process->domain[i].at_peak_bytes > process->domain[largest].at_peak_bytes)
            largest = i;
    }
    uint64_t *part = &process->domain[largest].at_peak_bytes;
    if (sum_bytes <= process->peak_bytes)
        *part += process->peak_bytes - sum_bytes;
    else if (sum_bytes - process->peak_bytes <= *part)
        *part -= sum_bytes - process->peak_bytes;
}

/* Fills the peak from the record. If live bytes are higher now, the peak is now and has the present parts. */
static void fill_peak(struct model_process *process, const struct sg_segment *content)
{
    const struct sg_peak *peak = &content->peak[content->peak_index];
    uint64_t recorded_bytes = bytes_max(not_below_zero(peak->total_bytes), not_below_zero(content->peak_seen_bytes));
    bool is_older = not_below_zero(peak->total_bytes) < recorded_bytes;
    bool is_now = process->live_bytes > recorded_bytes;
    process->peak_bytes = is_now ? process->live_bytes : recorded_bytes;
    process->job_peak_bytes = not_below_zero(content->job_peak_bytes);
    process->limit_peak_bytes = not_below_zero(content->limit_peak_bytes);
    process->peak_ns = is_now && process->state == SG_STATE_RUNNING ? tool_now_ns() : known_time(peak->time_ns);
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        struct model_domain *domain = &process->domain[i];
        uint64_t part_bytes = is_older ? content->domain[i].granted_bytes : peak->domain_bytes[i];
        domain->at_peak_bytes = is_now ? domain->live_bytes : not_below_zero(part_bytes);
    }
    match_parts(process);
    for (int i = 0; i < SG_DOMAIN_COUNT; i++)
        process->domain[i].peak_bytes = bytes_max(process->domain[i].peak_bytes, process->domain[i].at_peak_bytes);
}

/* Sorts ring elements, oldest first. Every element starts with its sequence. */
static int compare_sequences(const void *a, const void *b)
{
    uint64_t first, second;
    memcpy(&first, a, sizeof first);
    memcpy(&second, b, sizeof second);
    return (first > second) - (first < second);
}

/* Returns the reserve that had to remain after a refused request. Records of older libraries do not tell it; then it is
 * that of the last snapshot. */
static uint64_t kept_bytes(const struct model_process *process, const struct sg_refusal *entry)
{
    if (entry->kept_mib != 0)
        return (uint64_t)entry->kept_mib << 20;
    return entry->reason == SG_REASON_RESERVE ? process->machine.reserve_bytes : SG_UNKNOWN;
}

static void fill_refusals(struct model_process *process, const struct sg_segment *content)
{
    process->refusals = tool_allocate(SG_REFUSAL_CAPACITY, sizeof *process->refusals);
    for (int i = 0; i < SG_REFUSAL_CAPACITY; i++) {
        const struct sg_refusal *entry = &content->refusal[i];
        if (entry->sequence == 0)
            continue;
        struct model_refusal *refusal = &process->refusals[process->refusal_count++];
        *refusal = (struct model_refusal){.sequence = entry->sequence,
                                          .time_ns = known_time(entry->time_ns),
                                          .size_bytes = entry->size_bytes,
                                          .usable_bytes = entry->usable_bytes,
                                          .kept_bytes = kept_bytes(process, entry),
                                          .domain = (enum sg_domain)entry->domain,
                                          .reason = (enum sg_reason)entry->reason};
        memcpy(refusal->call, entry->call, sizeof entry->call);
    }
    qsort(process->refusals, process->refusal_count, sizeof *process->refusals, compare_sequences);
}

static void fill_phases(struct model_process *process, const struct sg_segment *content)
{
    process->phases = tool_allocate(SG_PHASE_CAPACITY, sizeof *process->phases);
    for (int i = 0; i < SG_PHASE_CAPACITY; i++) {
        const struct sg_phase *entry = &content->phase[i];
        if (entry->sequence == 0)
            continue;
        struct model_phase *phase = &process->phases[process->phase_count++];
        *phase = (struct model_phase){.sequence = entry->sequence,
                                      .time_ns = known_time(entry->time_ns),
                                      .live_bytes = not_below_zero(entry->live_bytes),
                                      .peak_bytes = not_below_zero(entry->peak_bytes)};
        memcpy(phase->name, entry->name, sizeof entry->name);
        if (entry->sequence != content->phase_count)
            continue;
        phase->live_bytes = process->live_bytes; /* the current phase, or the phase in which the process ended */
        uint64_t peak_bytes = bytes_max(phase->peak_bytes, not_below_zero(content->phase_peak_bytes));
        phase->peak_bytes = bytes_max(peak_bytes, phase->live_bytes);
    }
    qsort(process->phases, process->phase_count, sizeof *process->phases, compare_sequences);
}

static void fill_events(struct model_process *process, const struct sg_segment *content)
{
    process->events = tool_allocate(SG_EVENT_CAPACITY, sizeof *process->events);
    for (int i = 0; i < SG_EVENT_CAPACITY; i++) {
        const struct sg_event *entry = &content->event[i];
        if (entry->sequence == 0)
            continue;
        struct model_event *event = &process->events[process->event_count++];
        *event = (struct model_event){.sequence = entry->sequence, .time_ns = known_time(entry->time_ns)};
        memcpy(event->what, entry->what, sizeof entry->what);
    }
    qsort(process->events, process->event_count, sizeof *process->events, compare_sequences);
}

static int compare_sites(const void *a, const void *b)
{
    const struct model_site *first = a, *second = b;
    uint64_t first_bytes = bytes_max(first->live_bytes, first->at_peak_bytes);
    uint64_t second_bytes = bytes_max(second->live_bytes, second->at_peak_bytes);
    if (first_bytes != second_bytes)
        return first_bytes < second_bytes ? 1 : -1;
    return (first->offset > second->offset) - (first->offset < second->offset);
}

/* What the call sites of the heap still count although the threads have freed it (array credit). */
struct site_credit {
    uint64_t bytes[SG_CALLSITE_CAPACITY];
    uint64_t count[SG_CALLSITE_CAPACITY];
};

static struct site_credit credit_of_sites(const struct sg_segment *content, uint32_t record_count)
{
    struct site_credit credit = {0};
    for (uint32_t i = 0; i < record_count; i++) {
        uint64_t word = content->record[i].array_credit;
        credit.bytes[sg_array_site(word)] += sg_array_site_bytes(word);
        credit.count[sg_array_site(word)] += sg_array_site_count(word);
    }
    return credit;
}

static void fill_sites(struct model_process *process, const struct sg_segment *content, uint32_t record_count)
{
    static const int domain_of[] = {
        [SG_CALLSITES_HEAP] = SG_DOMAIN_HEAP, [SG_CALLSITES_MAPPED] = SG_DOMAIN_MAPPED, [SG_CALLSITES_CUDA] = -1};
    bool is_peak_live = content->sites_peak_state == SG_CALLSITES_PEAK_LIVE;
    const struct site_credit credit = credit_of_sites(content, record_count);
    process->sites = tool_allocate((size_t)SG_CALLSITE_CLASSES * SG_CALLSITE_CAPACITY, sizeof *process->sites);
    for (int class = 0; class < SG_CALLSITE_CLASSES; class ++)
        for (int number = SG_CALLSITE_OTHER; number < SG_CALLSITE_CAPACITY; number++) {
            const struct sg_callsite *entry = &content->site[class][number];
            bool is_one = number >= SG_CALLSITE_FIRST;
            int domain = is_one ? (int)(entry->key & 7) : domain_of[class];
            bool is_heap = class == SG_CALLSITES_HEAP;
            uint64_t live_bytes = not_below_zero(entry->live_bytes - (is_heap ? credit.bytes[number] : 0));
            uint64_t at_peak_bytes = not_below_zero(is_peak_live ? entry->live_bytes : entry->at_peak_bytes);
            uint64_t at_refusal_bytes = process->refusal_count > 0 ? not_below_zero(entry->at_refusal_bytes) : 0;
            bool is_empty = (live_bytes | at_peak_bytes | at_refusal_bytes) == 0;
            if (is_empty || (is_one && entry->key == 0) || domain >= SG_DOMAIN_COUNT)
                continue;
            struct model_site *site = &process->sites[process->site_count++];
            *site = (struct model_site){.is_named = is_one && entry->is_named == 1,
                                        .domain = domain,
                                        .offset = entry->offset,
                                        .live_bytes = live_bytes,
                                        .live_count =
                                            not_below_zero(entry->live_count - (is_heap ? credit.count[number] : 0)),
                                        .peak_bytes = bytes_max(not_below_zero(entry->peak_bytes), live_bytes),
                                        .at_peak_bytes = at_peak_bytes,
                                        .at_refusal_bytes = at_refusal_bytes};
            memcpy(site->library, entry->library, sizeof entry->library);
        }
    qsort(process->sites, process->site_count, sizeof *process->sites, compare_sites);
}

static void see(struct model_process *process, int64_t time_ns)
{
    if (time_ns > process->last_seen_ns)
        process->last_seen_ns = time_ns;
}

static void fill_times(struct model_process *process, const struct model_segment *segment)
{
    const struct sg_segment *content = segment->content;
    process->started_ns = known_time(content->started_time_ns);
    process->ended_ns = process->state == SG_STATE_RUNNING ? 0 : known_time(content->ended_time_ns);
    see(process, process->started_ns);
    see(process, process->peak_ns);
    see(process, content->machine.time_ns);
    see(process, content->saved_time_ns);
    see(process, content->seen_time_ns);
    if (process->refusal_count > 0)
        see(process, process->refusals[process->refusal_count - 1].time_ns);
    if (process->phase_count > 0)
        see(process, process->phases[process->phase_count - 1].time_ns);
    if (process->event_count > 0)
        see(process, process->events[process->event_count - 1].time_ns);
    if (process->last_seen_ns == 0) /* the record contains no time */
        process->last_seen_ns = segment->modified_ns > 0 ? segment->modified_ns : 1;
    if (process->ended_ns > 0)
        process->last_seen_ns = process->ended_ns;
}

static void fill_flags(struct model_process *process, const struct sg_segment *content)
{
    uint32_t flags = content->slot.flags;
    process->is_guarding = (flags & SG_SLOT_GUARDING) != 0;
    process->is_observing = (flags & SG_SLOT_OBSERVE) != 0;
    process->is_limit_bound = (flags & SG_SLOT_LIMIT_BOUND) != 0;
    process->is_reserve_bound = (flags & SG_SLOT_RESERVE_BOUND) != 0;
    process->is_sharing = (flags & SG_SLOT_SHARING) != 0;
    process->is_watched = (flags & SG_SLOT_WATCHED) != 0;
    bool has_measured = (flags & SG_SLOT_CUDA) != 0 && content->unaccounted_bytes != SG_UNKNOWN;
    process->unaccounted_bytes = has_measured ? not_below_zero(content->unaccounted_bytes) : SG_UNKNOWN;
}

struct model_process *model_process_from(const struct model_segment *segment)
{
    const struct sg_segment *content = segment->content;
    const struct sg_slot *slot = &content->slot;
    struct model_process *process = tool_allocate(1, sizeof *process);
    process->pid = slot->pid;
    process->parent_pid = content->parent_pid;
    process->start_ticks = slot->start_ticks;
    process->pid_namespace = content->pid_namespace;
    process->user = segment->owner;
    process->record_name = text_copy(segment->name, SIZE_MAX);
    process->record_device = segment->device;
    process->record_inode = segment->inode;
    memcpy(process->container_note, content->container, sizeof content->container);
    process->state = conclude_state(segment);
    if (process->state == SG_STATE_RUNNING)
        process->host_pid = host_pid_of(slot->pid, slot->start_ticks, content->pid_namespace);
    process->command_hash = content->command_hash;
    process->oom = process->state == SG_STATE_KILLED ? content->oom : SG_OOM_UNKNOWN;
    process->is_cut_off = slot->state == SG_STATE_RUNNING && !segment->has_owner && is_of_another_boot(content);
    fill_flags(process, content);
    bool is_killed = process->state == SG_STATE_KILLED, is_exited = process->state == SG_STATE_EXITED;
    process->exit_code = is_exited && content->exit_code >= 0 ? content->exit_code : -1;
    process->signal = is_killed && content->signal > 0 && content->signal <= 64 ? content->signal : 0;
    bool is_running = process->state == SG_STATE_RUNNING; /* promises and requests of a dead process do not count */
    process->in_flight_bytes = is_running ? not_below_zero(slot->in_flight_bytes) : 0;
    process->inherited_shared_bytes = not_below_zero(content->inherited_shared_bytes);
    process->shared_bytes = not_below_zero(content->shared_bytes);
    process->inherited_bytes = bytes_add(not_below_zero(slot->inherited_bytes), process->inherited_shared_bytes);
    process->inherited_device_bytes =
        bytes_min(not_below_zero(content->inherited_domain_bytes[SG_DOMAIN_DEVICE]), process->inherited_bytes);
    process->limit_bytes = slot->limit_bytes == 0 ? SG_UNKNOWN : slot->limit_bytes == 1 ? 0 : slot->limit_bytes;
    process->run_key = content->run;
    process->max_resident_mib = content->max_resident_mib;
    process->registered_bytes = content->registered_bytes;
    process->sparse_resident_bytes = content->sparse_resident_bytes;
    process->unmatched_frees = content->unmatched_frees;
    process->faults = content->faults;
    process->machine = content->machine;
    memcpy(process->device, content->device, sizeof process->device);
    memcpy(process->file, content->file, sizeof process->file);
    memcpy(process->library_version, content->library_version, sizeof content->library_version);
    process->job = text_copy(content->job, sizeof content->job);
    process->job_hash = slot->job_hash;
    process->command = text_copy(content->command, sizeof content->command);
    char *claiming = command_in_claim(process->command);
    process->is_claiming = claiming != NULL;
    if (process->is_claiming)
        process->command = claiming;
    fill_domains(process, content, segment->record_count);
    process->promised_bytes = is_running ? not_below_zero(slot->promised_bytes) : 0;
    fill_peak(process, content);
    fill_refusals(process, content);
    fill_phases(process, content);
    fill_events(process, content);
    fill_sites(process, content, segment->record_count);
    fill_times(process, segment);
    model_process_judge_end(process);
    return process;
}
