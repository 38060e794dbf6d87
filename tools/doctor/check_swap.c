/*
 * check_swap.c - checks swap now, swap after the next boot, and how eagerly the kernel uses it.
 *
 * CUDA's pages on unified memory are never swapped. With swap, the kernel swaps out all other programs first: SSH, the
 * shell, the desktop. Swap is never headroom for a job.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "doctor/doctor.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

/* Above this value the kernel swaps programs out although it could drop page cache. The kernel's default is 60. */
#define SWAPPINESS_MAX 10

static void check_swap(struct doctor *doctor, struct finding *finding)
{
    uint64_t total = doctor_meminfo(doctor, "SwapTotal"), left = doctor_meminfo(doctor, "SwapFree");
    uint64_t used = total == SG_UNKNOWN || left == SG_UNKNOWN ? SG_UNKNOWN : bytes_less(total, left);
    uint64_t available = doctor_meminfo(doctor, "MemAvailable");
    if (total == SG_UNKNOWN) {
        finding_say(finding, FINDING_UNKNOWN, "swapon --show", "/proc/meminfo does not say how much swap there is.");
    } else if (total == 0) {
        finding_say(finding, FINDING_FINE, NULL, "No swap is on.");
    } else {
        finding_say(finding, doctor_is_at_risk(doctor) ? FINDING_DANGER : FINDING_WARNING, NULL,
                    "%s of swap is on, %s of it used.", text_size(total), text_size(used));
        bool is_too_much = used == SG_UNKNOWN || available == SG_UNKNOWN || used > available / 2;
        finding->fix =
            is_too_much ? "sparkguard-report  # first end what holds memory, then: sudo swapoff -a" : "sudo swapoff -a";
        finding->step = is_too_much ? NULL : "swap";
    }
    finding_figure(finding, "swap_total_bytes", total);
    finding_figure(finding, "swap_used_bytes", used);
}

DOCTOR_CHECK(40, check_swap, "swap",
             "When memory runs out, the kernel swaps out all other programs, SSH first, while CUDA's pages stay: the "
             "machine freezes and no job fails.");

/* Returns whether a line of fstab(5) turns swap on, by its third field. */
static bool is_swap_line(const char *line)
{
    static const char blank[] = " \t";
    const char *field = line + strspn(line, blank);
    if (*field == '#')
        return false;
    for (int i = 0; i < 2; i++) {
        field += strcspn(field, blank);
        field += strspn(field, blank);
    }
    return strncmp(field, "swap", 4) == 0 && (field[4] == '\0' || strchr(blank, field[4]) != NULL);
}

static void check_swap_at_boot(struct doctor *doctor, struct finding *finding)
{
    char *text = tool_allocate(DOCTOR_TEXT_CAPACITY, 1), *rest = NULL;
    long length = doctor_read(doctor, "/etc/fstab", text, DOCTOR_TEXT_CAPACITY);
    uint64_t count = 0;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        count += is_swap_line(line);
    if (doctor->is_contained) {
        finding_say_absent(finding, "the host's, and this is a container");
    } else if (length < 0 && length != -ENOENT) {
        finding_say(finding, FINDING_UNKNOWN, "grep swap /etc/fstab", "/etc/fstab cannot be read: %s.",
                    strerror((int)-length));
        count = SG_UNKNOWN;
    } else if (count == 0) {
        finding_say(finding, FINDING_FINE, NULL, "/etc/fstab turns no swap on.");
    } else {
        finding_say(finding, FINDING_WARNING,
                    "sudo sed -i.sparkguard -E 's/^[^#]\\S*\\s+\\S+\\s+swap(\\s|$)/#&/' /etc/fstab",
                    "%" PRIu64 " line%s of /etc/fstab turn%s swap on at each boot.", count, count == 1 ? "" : "s",
                    count == 1 ? "s" : "");
        finding->step = "swap-at-boot";
    }
    finding_figure(finding, "fstab_swap_count", count);
}

DOCTOR_CHECK(60, check_swap_at_boot, "swap-at-boot",
             "Swap that was turned off by hand is on again after the next boot.");

static void check_swappiness(struct doctor *doctor, struct finding *finding)
{
    uint64_t total = doctor_meminfo(doctor, "SwapTotal");
    int64_t swappiness;
    if (!doctor_read_number(doctor, "/proc/sys/vm/swappiness", &swappiness) || swappiness < 0) {
        finding_say(finding, FINDING_UNKNOWN, "sysctl vm.swappiness", "/proc/sys/vm/swappiness cannot be read.");
        swappiness = -1;
    } else if (total == 0) {
        finding_say(finding, FINDING_FINE, NULL, "vm.swappiness is %" PRId64 ", and there is no swap to use.",
                    swappiness);
    } else if (swappiness <= SWAPPINESS_MAX) {
        finding_say(finding, FINDING_FINE, NULL, "vm.swappiness is %" PRId64 ".", swappiness);
    } else {
        finding_say(finding, FINDING_WARNING, "sudo sysctl vm.swappiness=1",
                    "vm.swappiness is %" PRId64 ": the kernel swaps programs out to keep page cache.", swappiness);
        finding->step = "swappiness";
    }
    finding_figure(finding, "swappiness", swappiness < 0 ? SG_UNKNOWN : (uint64_t)swappiness);
}

DOCTOR_CHECK(50, check_swappiness, "swappiness",
             "If swap stays on, a low swappiness makes the kernel drop page cache before it swaps programs "
             "out.");
