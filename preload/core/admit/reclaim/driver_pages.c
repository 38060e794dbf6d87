/*
 * driver_pages.c - see driver_pages.h.
 *
 * How pressure is made. Memory is populated step by step until no zone has free pages above its low watermark. Then
 * kswapd is awake and shrinks caches, the driver's pools among them. From there on only the pages that kswapd frees are
 * populated, in small steps. Free pages never go below the middle of the low and the min watermark: below min,
 * allocations would reclaim by themselves, and could end in the OOM killer.
 *
 * The pressure ends in one of these cases:
 *
 *   - MemAvailable, with the populated memory, has grown by the wanted bytes.
 *   - It has not grown for STALL_NS: the pools are empty.
 *   - Processes are being swapped out.
 *   - The time is up.
 *
 * /proc/zoneinfo has the watermarks. Where it cannot be read, fixed parts of MemTotal stand for them.
 *
 * The populated memory cannot be marked with MADV_FREE, for then kswapd would reclaim it first and stop
 * (docs/assumptions.md, 3). Instead, a separate process populates it, and releases it when this process does not go on
 * (filler.h).
 */
#include "admit/reclaim/driver_pages.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "admit/reclaim/filler.h"
#include "base/options.h"
#include "admit/snapshot.h"
#include "admit/headroom.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/text.h"
#include "base/pages.h"
#include "shared/decision_lock.h"
#include "account/driver_pool.h"

#include <fcntl.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define KEPT_LEAST (32 * MIB)              /* fewer bytes are not worth the pressure */
#define STEP_BYTES (128 * MIB)             /* far above the watermarks */
#define SMALL_STEP_BYTES (16 * MIB)        /* near them: a tenth of the distance from low to min on a DGX Spark */
#define SWAPPED_MAX (64 * MIB)             /* pressure ends when this much is swapped out */
#define GAIN_LEAST MIB                     /* a smaller gain is no progress */
#define STALL_NS UINT64_C(1000000000)      /* without progress: the pools are empty */
#define SETTLE_NS UINT64_C(500000000)      /* pages in per-CPU lists show late in MemAvailable */
#define NOT_AGAIN_NS UINT64_C(60000000000) /* after pressure that was cut short */
#define PAUSE_NS 2000000
#define CONFIRM_NS 20000000

/* ---- how much may be kept ---------------------------------------------------------------------------------------- */

uint64_t sg_driver_pages_kept_bytes(void)
{
    uint64_t kept = sg_load(&sg_entry_registry()->ended_bytes);
    if (kept < KEPT_LEAST || !sg_driver_pool_is_used())
        return 0;
    uint64_t unexplained = sg_headroom_last.snapshot.unexplained_bytes, live = sg_headroom_live_cuda_bytes();
    uint64_t most = unexplained > live ? unexplained - live : 0;
    kept = kept < most ? kept : most;
    return kept < KEPT_LEAST ? 0 : kept;
}

/* ---- announcing -------------------------------------------------------------------------------------------------- */

/* The announcement of this process. The registry holds the time until which an announcement is valid. It is this
 * process's while that time is the one that this process wrote last. A process that was stopped for longer than the
 * lease may find another process's announcement there. */
struct lease {
    uint64_t until_ns;
};

static uint64_t lease_ns; /* (atomic) until_ns of this process's last announcement */

static bool announce(struct lease *lease, uint64_t bytes)
{
    struct sg_registry *registry = sg_entry_registry();
    uint64_t next = sg_clock_ns(CLOCK_MONOTONIC) + SG_DRIVER_POOL_LEASE_NS, until = lease->until_ns;
    if (!sg_cas_u64(&registry->pressure_until_ns, &until, next))
        return false;
    lease->until_ns = next;
    sg_store(&lease_ns, next);
    sg_store(&registry->pressure_bytes, bytes);
    return true;
}

/* The filler calls it after it has released all memory, because this process may be gone or stopped by then. */
static void note_released(void)
{
    struct sg_registry *registry = sg_entry_registry();
    if (sg_load(&registry->pressure_until_ns) == sg_load(&lease_ns))
        sg_store(&registry->pressure_bytes, UINT64_C(0));
}

/* False: another process makes pressure, or pressure was cut short within the last minute. */
static bool begin_pressure(struct lease *lease)
{
    struct sg_registry *registry = sg_entry_registry();
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC), pause_until = sg_load(&registry->pressure_pause_until_ns);
    bool is_paused = pause_until > now && pause_until - now <= NOT_AGAIN_NS;
    lease->until_ns = sg_load(&registry->pressure_until_ns);
    bool is_other_active = lease->until_ns > now && lease->until_ns - now <= SG_DRIVER_POOL_LEASE_NS;
    return !is_paused && !is_other_active && announce(lease, 0);
}

static void end_pressure(struct lease *lease)
{
    if (announce(lease, 0))
        (void)sg_cas_u64(&sg_entry_registry()->pressure_until_ns, &lease->until_ns, 0);
    sg_peers_advance();
}

/* ---- zones ------------------------------------------------------------------------------------------------------- */

/* Free memory above two watermarks, summed over the zones; without the pages that zones keep back (protection). */
struct watermark_sums {
    uint64_t above_low;    /* 0: kswapd is awake */
    uint64_t above_middle; /* above the middle of low and min */
};

struct zone {
    uint64_t free, min, low; /* in pages */
};

static uint64_t above(uint64_t more, uint64_t less)
{
    return more > less ? more - less : 0;
}

static bool skip_word(const char **line, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(*line, word, length) != 0)
        return false;
    *line += length;
    return true;
}

/* Adds a zone to the sums. `line` is the rest of "        protection: (0, 2910, 23937, 23937)": pages that this zone
 * keeps for allocations that can use no higher zone. It is the last line about a zone's watermarks. */
static void end_zone(const struct zone *zone, const char *line, struct watermark_sums *sums)
{
    uint64_t kept = 0;
    for (; *line != '\0'; line++)
        if (*line >= '0' && *line <= '9') {
            uint64_t pages = sg_text_read_number(&line);
            kept = pages > kept ? pages : kept;
            line--;
        }
    sums->above_low += above(zone->free, zone->low + kept) * sg_page_bytes();
    sums->above_middle += above(zone->free, (zone->low + zone->min) / 2 + kept) * sg_page_bytes();
}

static void read_zone_line(const char *line, struct zone *zone, struct watermark_sums *sums)
{
    while (*line == ' ')
        line++;
    if (skip_word(&line, "Node "))
        *zone = (struct zone){0};
    else if (skip_word(&line, "pages free "))
        zone->free = sg_text_read_number(&line);
    else if (skip_word(&line, "min "))
        zone->min = sg_text_read_number(&line);
    else if (skip_word(&line, "low "))
        zone->low = sg_text_read_number(&line);
    else if (skip_word(&line, "protection: "))
        end_zone(zone, line, sums);
}

/* Lines longer than the buffer are cut; the lines that are needed are shorter. */
static bool read_zones(struct watermark_sums *sums)
{
    char path[SG_PATH_CAPACITY + 64], part[512] = "", line[160];
    struct sg_text text = sg_text_begin(path, sizeof path);
    struct zone zone = {0};
    size_t length = 0;
    long got = 0;
    sg_text_add(&text, sg_options.system_root);
    sg_text_add(&text, "/proc/zoneinfo");
    long fd = sg_sys_openat((int)SG_AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    *sums = (struct watermark_sums){0};
    while (fd >= 0 && (got = sg_sys_read((int)fd, part, sizeof part)) > 0)
        for (long i = 0; i < got; i++) {
            if (part[i] != '\n' && length < sizeof line - 1) {
                line[length++] = part[i];
            } else if (part[i] == '\n') {
                line[length] = '\0';
                read_zone_line(line, &zone, sums);
                length = 0;
            }
        }
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
    return fd >= 0 && got == 0;
}

/* ---- making pressure --------------------------------------------------------------------------------------------- */

struct figures {
    uint64_t total_bytes;
    uint64_t available_bytes; /* with the populated memory */
    uint64_t free_bytes;
    uint64_t swap_free_bytes;
    uint64_t cgroup_headroom_bytes; /* above the reserve of every cgroup; UINT64_MAX: none bounds this process */
};

static struct figures refresh(void)
{
    struct sg_lock_state lock;
    struct figures figures = {0};
    sg_lock_acquire(&sg_decision_lock, &lock);
    sg_headroom_refresh(0, false);
    const struct sg_snapshot *now = &sg_headroom_last.snapshot;
    if (now->is_valid)
        figures = (struct figures){now->at[0].limit_bytes, now->at[0].headroom_bytes, now->free_bytes,
                                   now->swap_free_bytes, sg_headroom_in_cgroups()};
    sg_lock_release(&sg_decision_lock, &lock);
    return figures;
}

static struct watermark_sums read_watermark_sums(const struct figures *now)
{
    enum { LOW_PART = 512, MIDDLE_PART = 1024 }; /* of MemTotal */
    struct watermark_sums sums;
    if (!read_zones(&sums)) {
        sums.above_low = above(now->free_bytes, now->total_bytes / LOW_PART);
        sums.above_middle = above(now->free_bytes, now->total_bytes / MIDDLE_PART);
    }
    return sums;
}

/* How much to populate next; 0: wait for kswapd. */
static uint64_t next_step(const struct watermark_sums *sums, uint64_t left)
{
    uint64_t step = sums->above_middle < SMALL_STEP_BYTES ? sums->above_middle : SMALL_STEP_BYTES;
    if (sums->above_low > SMALL_STEP_BYTES)
        step = sums->above_low < STEP_BYTES ? sums->above_low : STEP_BYTES;
    step = step < left ? step : left;
    return step & ~(uint64_t)(SG_PAGE_MAX - 1);
}

static void pause_for(long nanoseconds)
{
    const struct timespec pause = {0, nanoseconds};
    (void)sg_syscall(SYS_nanosleep, (long)&pause, 0, 0, 0, 0, 0);
}

/* Under SPARKGUARD_SYSTEM_ROOT the figures are invented, but populating takes real memory. Then the real machine must
 * have twice the bytes available. */
static bool is_affordable(uint64_t bytes)
{
    char text[256] = ""; /* MemAvailable is in the third line */
    if (sg_options.system_root[0] == '\0')
        return true;
    return sg_text_read_file("/proc/meminfo", text, sizeof text) > 0 &&
           sg_text_read_field(text, "MemAvailable:", 0) >= 2 * bytes / 1024;
}

enum outcome {
    OUTCOME_EMPTIED, /* all wanted bytes have come, or no more come */
    OUTCOME_CUT,     /* pressure had to end earlier */
};

/* One round of pressure by this process. */
struct pressure {
    struct lease lease;
    struct figures before;
    uint64_t wanted_bytes;
    uint64_t most_bytes; /* to populate */
    uint64_t populated_bytes;
    uint64_t gain_bytes; /* by which MemAvailable has grown */
    uint32_t filler;     /* its number, see filler.h */
};

/* Renews the announcement and populates `more_bytes`. False: the filler is gone or failed, or another process has
 * announced pressure meanwhile. */
static bool renew_and_fill(struct pressure *pressure, uint64_t more_bytes)
{
    return sg_filler_fill(pressure->filler, 0) && announce(&pressure->lease, pressure->populated_bytes + more_bytes) &&
           (more_bytes == 0 || sg_filler_fill(pressure->filler, more_bytes));
}

/* Whether pressure must end: processes are swapped out, another process takes the populated memory, or a cgroup's limit
 * is near. */
static bool must_end(const struct figures *before, const struct figures *now)
{
    return now->swap_free_bytes + SWAPPED_MAX < before->swap_free_bytes ||
           now->available_bytes + 2 * STEP_BYTES < before->available_bytes ||
           now->cgroup_headroom_bytes < 2 * STEP_BYTES;
}

static enum outcome press(struct pressure *pressure)
{
    const struct figures *before = &pressure->before;
    const uint64_t wanted = pressure->wanted_bytes;
    uint64_t *gain = &pressure->gain_bytes;
    uint64_t begin_ns = sg_clock_ns(CLOCK_MONOTONIC), progress_ns = begin_ns, best = 0;
    uint32_t is_confirmed = 0;
    for (;;) {
        if (!renew_and_fill(pressure, 0))
            return OUTCOME_CUT;
        struct figures now = refresh();
        struct watermark_sums sums = read_watermark_sums(&now);
        uint64_t now_ns = sg_clock_ns(CLOCK_MONOTONIC);
        *gain = above(now.available_bytes, before->available_bytes);
        if (*gain >= wanted && is_confirmed++)
            return OUTCOME_EMPTIED;
        if (*gain >= wanted) { /* another process may have freed memory for a moment only */
            pause_for(CONFIRM_NS);
            continue;
        }
        is_confirmed = 0;
        if (now_ns - begin_ns >= SG_PRESSURE_LONGEST_NS || must_end(before, &now))
            return OUTCOME_CUT;
        if (sums.above_low != 0 || *gain >= best + GAIN_LEAST) {
            progress_ns = now_ns;
            best = *gain;
        }
        if (now_ns - progress_ns >= STALL_NS || pressure->populated_bytes == pressure->most_bytes)
            return OUTCOME_EMPTIED;
        uint64_t step = next_step(&sums, pressure->most_bytes - pressure->populated_bytes);
        if (step == 0) {
            pause_for(PAUSE_NS);
            continue;
        }
        if (!renew_and_fill(pressure, step))
            return OUTCOME_CUT;
        pressure->populated_bytes += step;
    }
}

/* Released memory shows in the kernel's counters at once, except pages in per-CPU lists. Memory that does not show yet
 * stays announced, or other processes would take the machine to be short of it. */
static void wait_until_shown(struct pressure *pressure)
{
    uint64_t available_bytes = pressure->before.available_bytes + pressure->gain_bytes;
    uint64_t begin_ns = sg_clock_ns(CLOCK_MONOTONIC), announced = pressure->populated_bytes;
    while (announce(&pressure->lease, announced)) {
        uint64_t shown = refresh().available_bytes;
        shown -= shown < announced ? shown : announced;
        uint64_t missing = above(available_bytes, shown + SMALL_STEP_BYTES);
        if (missing == 0 || sg_clock_ns(CLOCK_MONOTONIC) - begin_ns >= SETTLE_NS)
            return;
        announced = missing < pressure->populated_bytes ? missing : pressure->populated_bytes;
        pause_for(PAUSE_NS);
    }
}

static enum outcome press_for(struct pressure *pressure)
{
    const struct figures *before = &pressure->before;
    uint64_t needed = before->free_bytes + pressure->wanted_bytes;
    pressure->most_bytes =
        (before->available_bytes + pressure->wanted_bytes + SG_PAGE_MAX - 1) & ~(uint64_t)(SG_PAGE_MAX - 1);
    if (before->total_bytes == 0 || before->cgroup_headroom_bytes < needed || !is_affordable(needed))
        return OUTCOME_CUT;
    pressure->filler = sg_filler_begin(pressure->most_bytes, note_released);
    if (pressure->filler == 0)
        return OUTCOME_CUT;
    enum outcome outcome = press(pressure);
    sg_filler_end(pressure->filler);
    wait_until_shown(pressure);
    if (outcome == OUTCOME_CUT)
        sg_store(&sg_entry_registry()->pressure_pause_until_ns, sg_clock_ns(CLOCK_MONOTONIC) + NOT_AGAIN_NS);
    return outcome;
}

void sg_driver_pages_reclaim(uint64_t bytes)
{
    struct pressure pressure = {.wanted_bytes = bytes};
    if (bytes == 0 || !begin_pressure(&pressure.lease))
        return;
    pressure.before = refresh();
    if (press_for(&pressure) == OUTCOME_EMPTIED)
        sg_store(&sg_entry_registry()->ended_bytes, UINT64_C(0));
    else
        (void)sg_sub_clamped(&sg_entry_registry()->ended_bytes, pressure.gain_bytes);
    end_pressure(&pressure.lease);
}
