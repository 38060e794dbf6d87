/*
 * check_memory.c - checks the memory itself: how much is available, how much is page cache, reserved as huge pages, or
 * in blocks too small for the GPU.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor/doctor.h"
#include "common/procfs.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

/* The size of the GPU's large pages. On unified memory each is one block of the kernel's buddy allocator; there is no
 * fallback to smaller blocks. */
#define LARGE_BLOCK (UINT64_C(2) << 20)
/* With less than this, the first few large requests of a job find no block. */
#define LARGE_LEAST (UINT64_C(1) << 30)

static void check_memory(struct doctor *doctor, struct finding *finding)
{
    const struct model_machine *machine = &doctor->model->machine;
    uint64_t usable = machine->usable_bytes, reserve = machine->reserve_bytes, total = machine->total_bytes;
    const char *left = text_size(usable), *all = text_size(total), *kept = text_size(reserve);
    if (usable == SG_UNKNOWN || reserve == SG_UNKNOWN) {
        finding_say(finding, FINDING_UNKNOWN, "cat /proc/meminfo", "/proc/meminfo does not say what is available.");
    } else {
        bool is_none = usable <= reserve, is_little = usable < total / 3 * 2; /* on a Spark 80 of 120 GiB are advised */
        finding_say(finding,
                    is_none     ? FINDING_DANGER
                    : is_little ? FINDING_WARNING
                                : FINDING_FINE,
                    is_none || is_little ? "sparkguard-report  # shows who holds it" : NULL,
                    is_none ? "%s of %s is available, all of it kept in reserve (%s)."
                            : "%s of %s is available, of which %s is kept in reserve.",
                    left, all, kept);
    }
    finding_figure(finding, "total_bytes", total);
    finding_figure(finding, "usable_bytes", usable);
    finding_figure(finding, "reserve_bytes", reserve);
}

DOCTOR_CHECK(30, check_memory, "memory",
             "A job that starts on a half-full machine is refused memory that an empty machine would grant.");

static void check_page_cache(struct doctor *doctor, struct finding *finding)
{
    uint64_t active = doctor_meminfo(doctor, "Active(file)"), inactive = doctor_meminfo(doctor, "Inactive(file)");
    uint64_t total = doctor_meminfo(doctor, "MemTotal"), unused = doctor_meminfo(doctor, "MemFree");
    bool is_known = active != SG_UNKNOWN && inactive != SG_UNKNOWN && total != SG_UNKNOWN && unused != SG_UNKNOWN;
    uint64_t cache = is_known ? active + inactive : SG_UNKNOWN;
    const char *cache_text = text_size(cache), *free_text = text_size(unused);
    if (!is_known) {
        finding_say(finding, FINDING_UNKNOWN, "free -h", "/proc/meminfo does not say how much page cache there is.");
    } else if (!doctor->has_gpu) {
        finding_say_absent(finding, "no NVIDIA GPU");
    } else if (doctor->unified == 0) {
        finding_say(finding, FINDING_FINE, NULL, "%s of page cache, which does not affect the GPU's own memory.",
                    cache_text);
        finding->absent = "the GPU has memory of its own";
    } else if (cache > unused && cache > total / 10) {
        finding_say(finding, FINDING_WARNING, NULL, "%s of page cache and %s free.", cache_text, free_text);
        bool has_pools = doctor_has_driver_pools(doctor); /* they are emptied with the kernel's own caches: 1 and 2 */
        finding->fix = text_format("sync && echo %d | sudo tee /proc/sys/vm/drop_caches", has_pools ? 3 : 1);
        finding->step = "page-cache";
        finding->step_word = has_pools ? "3" : "1";
    } else {
        finding_say(finding, FINDING_FINE, NULL, "%s of page cache and %s free.", cache_text, free_text);
    }
    finding_figure(finding, "page_cache_bytes", cache);
    finding_figure(finding, "free_bytes", unused);
}

DOCTOR_CHECK(130, check_page_cache, "page-cache",
             "On unified memory cudaMemGetInfo counts only free pages, and the driver has failed with 20 GiB of "
             "page cache left; the guard reclaims page cache first.");

static void check_huge_pages(struct doctor *doctor, struct finding *finding)
{
    uint64_t pages = procfs_number_after(doctor->meminfo, "HugePages_Total");
    uint64_t unused = procfs_number_after(doctor->meminfo, "HugePages_Free");
    uint64_t size = doctor_meminfo(doctor, "Hugepagesize"), all = doctor_meminfo(doctor, "Hugetlb");
    uint64_t total = doctor_meminfo(doctor, "MemTotal"), pool, free_bytes;
    bool is_known = pages != SG_UNKNOWN && size != SG_UNKNOWN && !__builtin_mul_overflow(pages, size, &pool);
    if (!is_known)
        pool = SG_UNKNOWN;
    else if (all != SG_UNKNOWN) /* Hugetlb counts huge pages of all sizes, HugePages_Total those of the default size */
        pool = bytes_max(pool, all);
    if (!is_known || unused == SG_UNKNOWN || __builtin_mul_overflow(unused, size, &free_bytes))
        free_bytes = SG_UNKNOWN;
    const char *pool_text = text_size(pool), *free_text = text_size(free_bytes);
    if (!is_known) {
        finding_say(finding, FINDING_UNKNOWN, "grep -i huge /proc/meminfo",
                    "/proc/meminfo does not say how many huge pages are reserved.");
    } else if (pool == 0) {
        finding_say(finding, FINDING_FINE, NULL, "No huge pages are reserved.");
    } else {
        bool is_much = total != SG_UNKNOWN && pool > total / 4;
        finding_say(finding, is_much ? FINDING_DANGER : FINDING_WARNING,
                    "echo 0 | sudo tee /sys/kernel/mm/hugepages/*/nr_hugepages",
                    "%s are set aside as huge pages, %s of the default size unused.", pool_text, free_text);
        finding->step = "huge-pages";
    }
    finding_figure(finding, "huge_page_bytes", pool);
    finding_figure(finding, "huge_page_free_bytes", free_bytes);
}

DOCTOR_CHECK(140, check_huge_pages, "huge-pages",
             "Only programs written for them can use these pages, CUDA cannot, and MemAvailable excludes "
             "them.");

/* Sums up the free bytes of all zones, and those in blocks of at least LARGE_BLOCK. Returns false if they cannot be
 * read. */
static bool read_blocks(const struct doctor *doctor, uint64_t *large_bytes, uint64_t *all_bytes)
{
    char *text = tool_allocate(DOCTOR_TEXT_CAPACITY, 1), *rest = NULL;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    bool is_known = false;
    *large_bytes = *all_bytes = 0;
    (void)doctor_read(doctor, "/proc/buddyinfo", text, DOCTOR_TEXT_CAPACITY);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char *at = strstr(line, " zone ");
        if (strncmp(line, "Node ", 5) != 0 || at == NULL)
            continue;
        at += sizeof " zone " - 1;
        at += strspn(at, " ");
        at += strcspn(at, " ");
        uint64_t block = page;
        for (char *end; block <= UINT64_C(1) << 40; block *= 2, at = end) {
            unsigned long long count = strtoull(at, &end, 10);
            uint64_t bytes;
            if (end == at || at[strspn(at, " ")] == '-' || __builtin_mul_overflow(count, block, &bytes))
                break;
            is_known = true;
            *all_bytes = bytes_add(*all_bytes, bytes);
            if (block >= LARGE_BLOCK)
                *large_bytes = bytes_add(*large_bytes, bytes);
        }
    }
    return is_known;
}

static void check_fragmentation(struct doctor *doctor, struct finding *finding)
{
    uint64_t large, all;
    bool is_known = read_blocks(doctor, &large, &all);
    const char *large_text = text_size(large), *all_text = text_size(all);
    if (!is_known) {
        finding_say(finding, FINDING_UNKNOWN, "sudo cat /proc/buddyinfo", "/proc/buddyinfo cannot be read.");
        large = all = SG_UNKNOWN;
    } else if (!doctor->has_gpu) {
        finding_say_absent(finding, "no NVIDIA GPU");
    } else if (large >= bytes_min(LARGE_LEAST, all / 2)) {
        finding_say(finding, FINDING_FINE, NULL, "%s of %s free lie in blocks of 2 MiB and more.", large_text,
                    all_text);
    } else {
        finding_say(finding, large == 0 && doctor_is_at_risk(doctor) ? FINDING_DANGER : FINDING_WARNING, NULL,
                    "Only %s of %s free lie in blocks of 2 MiB and more.", large_text, all_text);
        bool has_pools = doctor_has_driver_pools(doctor);
        finding->fix = text_format(
            "sync && echo %d | sudo tee /proc/sys/vm/drop_caches && echo 1 | sudo tee /proc/sys/vm/compact_memory",
            has_pools ? 3 : 1);
        finding->step = "fragmentation";
        finding->step_word = has_pools ? "3" : "1";
    }
    finding_figure(finding, "large_block_bytes", large);
    finding_figure(finding, "free_bytes", all);
}

DOCTOR_CHECK(160, check_fragmentation, "fragmentation",
             "The GPU's pages of 2 MiB have no smaller fallback: if all blocks are smaller, cudaMalloc fails however "
             "much memory is available.");
