/*
 * refusal.c - see refusal.h.
 */
#include "admit/refusal.h"

#include "base/compiler.h"
#include "base/atomics.h"
#include "admit/holder.h"
#include "admit/reclaim/pool_room.h"
#include "admit/repeat.h"
#include "account/ledger.h"
#include "base/log.h"
#include "base/options.h"
#include "shared/segment.h"
#include "shared/settings.h"
#include "account/callsites.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/text.h"
#include "account/thread_record.h"
#include "account/timeline.h"
#include "shared/own_entry.h"
#include "sparkguard_bounds.h"

#include <string.h>

uint32_t sg_refusal_trust;

/* Bytes that the request would have added. */
static uint64_t asked_bytes(const struct sg_request *request)
{
    uint64_t replaced = request->replaced_bytes;
    if (request->wording.asked_bytes != 0)
        return request->wording.asked_bytes;
    return request->size_bytes > replaced ? request->size_bytes - replaced : request->size_bytes;
}

/* The source of what was kept. */
enum source {
    BY_OPTION,
    BY_BOUND, /* the administrator, for all jobs of the user */
    BY_SET    /* sparkguard --set */
};

static enum source source_of(uint32_t bound, uint64_t kept_bytes, uint64_t set_bytes)
{
    if ((sg_load_relaxed(&sg_own->slot.flags) & bound) != 0)
        return BY_BOUND;
    return set_bytes != 0 && set_bytes == kept_bytes ? BY_SET : BY_OPTION;
}

static enum source source_of_limit(const struct sg_answer *answer)
{
    return source_of(answer->kept_bytes == sg_own->slot.limit_bytes ? SG_SLOT_LIMIT_BOUND : 0, answer->kept_bytes,
                     sg_load(&sg_settings.limit_bytes));
}

static enum source source_of_reserve(const struct sg_answer *answer)
{
    bool is_machine = answer->reason == SG_REASON_RESERVE && answer->cgroup_bytes == 0;
    return source_of(is_machine ? SG_SLOT_RESERVE_BOUND : 0, answer->kept_bytes, sg_load(&sg_settings.reserve_bytes));
}

static void add_source(struct sg_text *text, const char *option, enum source source)
{
    sg_text_add(text, " (");
    sg_text_add(text, source == BY_BOUND ? SG_BOUNDS_FILE : source == BY_SET ? "sparkguard --set" : option);
    sg_text_add(text, ")");
}

static void add_reason(struct sg_text *text, const struct sg_request *request, const struct sg_answer *answer)
{
    switch (answer->reason) {
    case SG_REASON_LIMIT:
        sg_text_add_size(text, answer->usable_bytes);
        sg_text_add(text, " of room in the ");
        sg_text_add_size(text, answer->kept_bytes);
        sg_text_add(text, " this job may hold");
        add_source(text, "SPARKGUARD_LIMIT", source_of_limit(answer));
        return;
    case SG_REASON_DEVICE:
        sg_text_add_size(text, answer->usable_bytes);
        sg_text_add(text, " free on device ");
        sg_text_add_number(text, request->card.number);
        sg_text_add(text, ", ");
        sg_text_add_size(text, answer->kept_bytes);
        sg_text_add(text, " kept in reserve (SPARKGUARD_DEVICE_RESERVE)");
        return;
    case SG_REASON_RESERVE:
    case SG_REASON_FLOOR:
        sg_text_add_size(text, answer->usable_bytes);
        sg_text_add(text, " usable");
        if (answer->cgroup_bytes != 0) {
            sg_text_add(text, " in a cgroup of ");
            sg_text_add_size(text, answer->cgroup_bytes);
        }
        sg_text_add(text, ", ");
        sg_text_add_size(text, answer->kept_bytes);
        sg_text_add(text, " kept in reserve");
        add_source(text, "SPARKGUARD_RESERVE", source_of_reserve(answer));
        if (answer->claimed_bytes != 0 && answer->reason == SG_REASON_RESERVE) {
            sg_text_add(text, ", ");
            sg_text_add_size(text, answer->claimed_bytes);
            sg_text_add(text, " claimed by other jobs");
        }
        return;
    }
}

static void add_size(struct sg_text *text, const struct sg_request *request)
{
    sg_text_add_size(text, request->wording.block_bytes != 0 ? request->wording.block_bytes : asked_bytes(request));
    if (request->wording.asked_bytes != 0 && request->size_bytes > request->wording.asked_bytes) {
        sg_text_add(text, ", for which its pool takes ");
        sg_text_add_size(text, request->size_bytes);
    }
    if (request->wording.block_bytes == 0)
        return;
    sg_text_add(text, " (");
    sg_text_add_size(text, request->growth_bytes);
    sg_text_add(text, " more)");
}

/* Appends that a memory file is mapped. Its whole size is judged, however sparse it is meant to stay. */
static void add_file(struct sg_text *text, const struct sg_wording *wording)
{
    if (wording->file_bytes == 0)
        return;
    sg_text_add(text, " of a memory file, which has ");
    sg_text_add_size(text, wording->allocated_bytes);
    sg_text_add(text, " of its ");
    sg_text_add_size(text, wording->file_bytes);
    sg_text_add(text, " allocated");
}

/* Appends where the size may come from. PyTorch and LMCache ask for the next power of two, up to twice of what they
 * need. */
static void add_rounding(struct sg_text *text, const struct sg_request *request)
{
    uint64_t bytes = request->size_bytes;
    if (request->domain == SG_DOMAIN_PINNED && bytes > UINT64_C(1) << 30 && (bytes & (bytes - 1)) == 0)
        sg_text_add(text, ", a power of two, to which PyTorch and LMCache round pinned memory up");
}

/* Whether the refusal is worth a line on stderr. A large block is, however little it grows. */
static bool is_large(const struct sg_request *request)
{
    return asked_bytes(request) >= sg_options.large_bytes || request->wording.block_bytes >= sg_options.large_bytes;
}

/* The bytes that a request and the reserve it must leave need together, and those that there are of both at all; 0:
 * unknown. */
struct need {
    uint64_t bytes, whole_bytes;
};

static struct need need_of(const struct sg_request *request, const struct sg_answer *answer)
{
    bool is_limit = answer->reason == SG_REASON_LIMIT, is_device = answer->reason == SG_REASON_DEVICE;
    uint64_t replaced = request->replaced_bytes < request->size_bytes ? request->replaced_bytes : 0;
    uint64_t asked = is_limit    ? request->growth_bytes
                     : is_device ? request->size_bytes
                                 : sg_pool_room_with_lists(request) - replaced;
    uint64_t whole = is_device ? request->card.total_bytes : sg_load_relaxed(&sg_own->machine.total_bytes);
    uint64_t kept = is_limit ? 0 : answer->kept_bytes;
    return (struct need){.bytes = asked > UINT64_MAX - kept ? UINT64_MAX : asked + kept, .whole_bytes = whole};
}

uint64_t sg_refusal_missing_bytes(const struct sg_request *request, const struct sg_answer *answer)
{
    const struct need need = need_of(request, answer);
    if (need.bytes > need.whole_bytes || need.bytes <= answer->usable_bytes)
        return 0;
    return need.bytes - answer->usable_bytes + (answer->reason == SG_REASON_LIMIT ? answer->over_limit_bytes : 0);
}

/* Appends the setting of a limit "1.6 GiB", as a shell takes it: "SPARKGUARD_LIMIT=1.6G", or "--limit 1.6G" where the
 * user has typed that; or as the line of the file that has set it. */
static void add_limit(struct sg_text *text, const struct sg_answer *answer, const char *size)
{
    char value[16];
    size_t digits = strcspn(size, " ");
    bool is_of_file = (sg_options.given & SG_GIVEN_FILE_LIMIT) != 0;
    enum source source = source_of_limit(answer);
    if (source == BY_BOUND) {
        sg_text_add(text, "a smaller request, or ask who keeps " SG_BOUNDS_FILE);
        return;
    }
    if (source == BY_SET) {
        sg_text_add(text, "sparkguard --set ");
        sg_text_add(text, sg_options.job);
        sg_text_add(text, " limit=");
    } else {
        bool is_typed = (sg_options.given & SG_GIVEN_TYPED_LIMIT) != 0;
        sg_text_add(text, is_typed ? "--limit " : is_of_file ? "limit=" : "SPARKGUARD_LIMIT=");
    }
    memcpy(value, size, digits);
    value[digits] = size[digits + 1]; /* the letter of its unit */
    value[digits + 1] = '\0';
    sg_text_add(text, value);
    if (source == BY_OPTION && is_of_file) {
        bool is_of_folder = (sg_options.given & SG_GIVEN_CONFIG_HOME) != 0;
        sg_text_add(text, is_of_folder ? " in $XDG_CONFIG_HOME/sparkguard.conf" : " in ~/.config/sparkguard.conf");
    }
}

/* Appends how the machine, a cgroup or a device may get room, and who holds most of it. */
static void add_room(struct sg_text *text, const struct sg_request *request, const struct sg_answer *answer)
{
    size_t begin = text->length;
    if (answer->pooled_bytes != 0) {
        sg_text_add(text, "echo 2 | sudo tee /proc/sys/vm/drop_caches; the driver's pool may hold up to ");
        sg_text_add_size(text, answer->pooled_bytes);
        return;
    }
    sg_text_add(text, "end or shrink another program");
    size_t end = text->length;
    sg_holder_add(text, request, answer);
    if (text->length != end)
        return;
    text->length = begin; /* nobody else holds much */
    sg_text_add(text, answer->cgroup_bytes != 0 ? "a larger limit of the cgroup" : "a smaller request");
}

/* For a request that no room would be enough for. */
static void add_smaller(struct sg_text *text, const struct sg_request *request, const struct sg_answer *answer)
{
    const struct need need = need_of(request, answer);
    sg_text_add(text, "a smaller request");
    if (need.whole_bytes == 0 || need.bytes <= need.whole_bytes)
        return;
    sg_text_add(text, "; this one needs more than this ");
    sg_text_add(text, answer->reason == SG_REASON_DEVICE ? "device has" : "machine has");
    if (answer->reason != SG_REASON_LIMIT)
        sg_text_add(text, " above its reserve");
}

/* Appends the next step, who holds the rest, and what would have been enough. Nothing of that helps a request for more
 * than there is. */
static void add_way_out(struct sg_text *text, const struct sg_request *request, const struct sg_answer *answer)
{
    char size[16];
    uint64_t missing = sg_refusal_missing_bytes(request, answer);
    bool is_limit = answer->reason == SG_REASON_LIMIT, is_device = answer->reason == SG_REASON_DEVICE;
    sg_text_add(text, "try: ");
    if (missing == 0) {
        add_smaller(text, request, answer);
        return;
    }
    if (is_limit) {
        sg_format_limit_up(size, answer->kept_bytes + missing, answer->kept_bytes);
        add_limit(text, answer, size);
        sg_holder_add(text, request, answer);
        sg_text_add(text, "; a limit of ");
        sg_text_add(text, size);
    } else {
        sg_format_size_up(size, missing);
        add_room(text, request, answer);
        sg_text_add(text, "; ");
        sg_text_add(text, size);
        sg_text_add(text, is_device                   ? " more of the device's memory"
                          : answer->cgroup_bytes != 0 ? " more of the cgroup's memory"
                                                      : " more of the machine's memory");
    }
    sg_text_add(text, " would have been enough for this request");
}

struct sg_refusal_last sg_refusal_last SG_AT_FORK;

static uint64_t refused_count(void)
{
    uint64_t count = 0;
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++)
        count += sg_load(&sg_own->domain[i].refused_count);
    return count;
}

/* Appends a number with commas: "36,838". */
static void add_count(struct sg_text *text, uint64_t count)
{
    uint64_t group = 1;
    while (count / group >= 1000)
        group *= 1000;
    sg_text_add_number(text, count / group);
    for (group /= 1000; group != 0; group /= 1000) {
        sg_text_add(text, ",");
        sg_text_add_padded(text, count / group % 1000, 3);
    }
}

static void add_span(struct sg_text *text, uint64_t span_ns)
{
    uint64_t milliseconds = span_ns / 1000000;
    if (milliseconds < 1000) {
        sg_text_add_number(text, milliseconds);
        sg_text_add(text, " ms");
    } else if (milliseconds < 60000) {
        sg_text_add_number(text, milliseconds / 1000);
        sg_text_add(text, ".");
        sg_text_add_number(text, milliseconds / 100 % 10);
        sg_text_add(text, " s");
    } else {
        sg_text_add_number(text, milliseconds / 60000);
        sg_text_add(text, " min ");
        sg_text_add_number(text, milliseconds / 1000 % 60);
        sg_text_add(text, " s");
    }
}

/* Appends "36,838 more refused in 12.3 s": the refusals since the last line, less those that this line reports. Nothing
 * and false if there are none. */
static bool add_unreported(struct sg_text *text, const char *before, uint64_t reported)
{
    uint64_t then_ns = sg_load_relaxed(&sg_refusal_last.reported_ns),
             count = refused_count() - sg_load_relaxed(&sg_refusal_last.reported_count);
    if (then_ns == 0 || count <= reported || count > INT64_MAX)
        return false;
    sg_text_add(text, before);
    add_count(text, count - reported);
    sg_text_add(text, sg_options.mode_observe ? " more that would have been refused in " : " more refused in ");
    add_span(text, sg_clock_ns(CLOCK_MONOTONIC) - then_ns);
    return true;
}

static void add_report(struct sg_text *text)
{
    if (!sg_segment_is_shared())
        return;
    sg_text_add(text, "; see sparkguard-report ");
    sg_text_add_number(text, sg_sys_getpid());
}

static void print_refusal(const struct sg_request *request, const struct sg_answer *answer)
{
    enum { WAY_OUT = 320 };
    char lines[880]; /* of the 4 KiB that a handler may have: the longest first line has some 550 */
    struct sg_text text = sg_text_begin(lines, sizeof lines - WAY_OUT);
    sg_text_add(&text, sg_refusal_is_observed(request) ? "sparkguard: would have refused " : "sparkguard: refused ");
    sg_text_add(&text, request->wording.call);
    sg_text_add(&text, " of ");
    add_size(&text, request);
    add_file(&text, &request->wording);
    add_rounding(&text, request);
    sg_text_add(&text, ": ");
    add_reason(&text, request, answer);
    sg_text_add(&text, "; this process holds ");
    sg_text_add_size(&text, sg_ledger_live_bytes());
    uint64_t sparse_bytes = sg_load(&sg_own->slot.sparse_bytes);
    if (answer->reason == SG_REASON_LIMIT && sparse_bytes != 0) {
        sg_text_add(&text, " and ");
        sg_text_add_size(&text, sparse_bytes);
        sg_text_add(&text, " of MAP_NORESERVE memory");
    }
    sg_text_add(&text, ", peak ");
    sg_text_add_size(&text, sg_load(&sg_own->peak_seen_bytes));
    add_report(&text);
    (void)add_unreported(&text, "; and ", 1);
    struct sg_text way_out = sg_text_begin(lines + text.length + 1, sizeof lines - text.length - 1);
    add_way_out(&way_out, request, answer);
    sg_store_relaxed(&sg_refusal_last.reported_count, refused_count());
    sg_store_relaxed(&sg_refusal_last.reported_ns, sg_clock_ns(CLOCK_MONOTONIC));
    sg_log_lines(lines, way_out.bytes);
}

void sg_refusal_report_rest(void)
{
    char line[160];
    struct sg_text text = sg_text_begin(line, sizeof line);
    if (!add_unreported(&text, "sparkguard: and ", 0))
        return;
    add_report(&text);
    sg_store_relaxed(&sg_refusal_last.reported_ns, UINT64_C(0));
    sg_log_line(line);
}

/* Returns the reserve that kept the request out, in MiB; 0: it was something else. */
static uint32_t kept_mib(const struct sg_answer *answer)
{
    uint64_t mib = (answer->kept_bytes + (UINT64_C(1) << 20) - 1) >> 20;
    bool is_reserve = answer->reason == SG_REASON_RESERVE || answer->reason == SG_REASON_DEVICE;
    return !is_reserve ? 0 : mib > UINT32_MAX ? UINT32_MAX : (uint32_t)mib;
}

/* Not inlined, so that its frame is gone while the line is made: a handler's stack may be small. */
static SG_APART void record(const struct sg_request *request, const struct sg_answer *answer)
{
    struct sg_refusal entry = {
        .time_ns = (int64_t)sg_clock_ns(CLOCK_REALTIME),
        .size_bytes = asked_bytes(request),
        .usable_bytes = answer->usable_bytes,
        .domain = (uint8_t)request->domain,
        .reason = (uint8_t)answer->reason,
        .observed = sg_refusal_is_observed(request),
        .kept_mib = kept_mib(answer),
    };
    struct sg_text call = sg_text_begin(entry.call, sizeof entry.call);
    sg_text_add(&call, request->wording.call);
    sg_segment_add_refusal(&entry);
}

/* Counts and records the refusal. False: it was only counted. A program that keeps trying small sizes must not push
 * other refusals out of the ring. */
static bool count(const struct sg_request *request, const struct sg_answer *answer)
{
    static uint64_t small_recorded_ns;
    struct sg_domain_counters *counters = &sg_own->domain[request->domain];
    sg_add_relaxed(&counters->refused_count, 1);
    sg_add_relaxed(&counters->refused_bytes, asked_bytes(request));
    sg_self.refused_count += !sg_refusal_is_observed(request);
    sg_segment_attach();
    if (request->kind == SG_REQUEST_SMALL && !sg_log_may_speak(&small_recorded_ns))
        return false;
    record(request, answer);
    return true;
}

bool sg_refusal_repeats(const struct sg_request *request)
{
    struct sg_answer answer;
    if (SG_LIKELY(!sg_repeat_is_refused(request, &answer)))
        return false;
    (void)count(request, &answer);
    return true;
}

/* Whether nothing can be done about the refusal but to mend the limit, as a line before it has said. Such refusals are
 * counted, and told together at the end. */
static bool is_told(const struct sg_answer *answer, const uint64_t *printed_ns)
{
    return answer->reason == SG_REASON_LIMIT && answer->kept_bytes < SG_LIMIT_LEAST && sg_load_relaxed(printed_ns) != 0;
}

void sg_refusal_report(const struct sg_request *request, const struct sg_answer *answer)
{
    static uint64_t printed_ns;
    sg_repeat_note(request, answer, sg_refusal_missing_bytes(request, answer));
    if (!count(request, answer))
        return;
    sg_ledger_take_back_arrays(); /* what was freed is not at fault */
    sg_callsites_keep_refusal();
    sg_timeline_begin();
    if (request->kind != SG_REQUEST_SMALL && is_large(request) && !is_told(answer, &printed_ns) &&
        sg_log_may_speak(&printed_ns))
        print_refusal(request, answer);
}
