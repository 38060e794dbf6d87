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

static void check_swap(struct doctor *doctor)
{
    static const char id[] = "swap";
    char total_text[TEXT_SIZE_CAPACITY], used_text[TEXT_SIZE_CAPACITY];
    uint64_t total = doctor_meminfo(doctor, "SwapTotal"), left = doctor_meminfo(doctor, "SwapFree");
    uint64_t used = total == SG_UNKNOWN || left == SG_UNKNOWN ? SG_UNKNOWN : bytes_less(total, left);
    uint64_t available = doctor_meminfo(doctor, "MemAvailable");
    struct doctor_finding *finding;
    if (total == SG_UNKNOWN) {
        finding = doctor_add(doctor, id, DOCTOR_UNKNOWN, "/proc/meminfo does not say how much swap there is.");
        finding->fix = text_copy("swapon --show", 64);
    } else if (total == 0) {
        finding = doctor_add(doctor, id, DOCTOR_FINE, "No swap is on.");
    } else {
        finding =
            doctor_add(doctor, id, doctor_is_at_risk(doctor) ? DOCTOR_DANGER : DOCTOR_WARNING,
                       "%s of swap is on, %s of it used.", text_size(total_text, total), text_size(used_text, used));
        bool is_too_much = used == SG_UNKNOWN || available == SG_UNKNOWN || used > available / 2;
        if (is_too_much)
            finding->fix = text_copy("sparkguard-report  # first end what holds memory, then: sudo swapoff -a", 128);
        else
            finding->fix = text_copy("sudo swapoff -a", 64);
        finding->script = is_too_much ? NULL : "act swapoff -a\n";
        finding->undo = "swapon -a";
    }
    finding->why =
        "When memory runs out, the kernel swaps out all other programs, SSH first, while CUDA's pages stay: the "
        "machine freezes and no job fails.";
    doctor_figure(finding, "swap_total_bytes", total);
    doctor_figure(finding, "swap_used_bytes", used);
}

DOCTOR_CHECK(40, check_swap);

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

static void check_swap_at_boot(struct doctor *doctor)
{
    static const char id[] = "swap-at-boot";
    char *text = tool_allocate(DOCTOR_TEXT_CAPACITY, 1), *rest = NULL;
    long length = doctor_read(doctor, "/etc/fstab", text, DOCTOR_TEXT_CAPACITY);
    struct doctor_finding *finding;
    uint64_t count = 0;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        count += is_swap_line(line);
    if (doctor->is_contained) {
        finding = doctor_add_absent(doctor, id, "the host's, and this is a container");
    } else if (length < 0 && length != -ENOENT) {
        finding = doctor_add(doctor, id, DOCTOR_UNKNOWN, "/etc/fstab cannot be read: %s.", strerror((int)-length));
        finding->fix = text_copy("grep swap /etc/fstab", 64);
        count = SG_UNKNOWN;
    } else if (count == 0) {
        finding = doctor_add(doctor, id, DOCTOR_FINE, "/etc/fstab turns no swap on.");
    } else {
        finding =
            doctor_add(doctor, id, DOCTOR_WARNING, "%" PRIu64 " line%s of /etc/fstab turn%s swap on at each boot.",
                       count, count == 1 ? "" : "s", count == 1 ? "s" : "");
        finding->fix = text_copy("sudo sed -i.sparkguard -E 's/^[^#]\\S*\\s+\\S+\\s+swap(\\s|$)/#&/' /etc/fstab", 128);
        finding->script = "keep /etc/fstab\n"
                          "sed -i -E 's/^[[:space:]]*[^#[:space:]][^[:space:]]*[[:space:]]+[^[:space:]]+[[:space:]]+"
                          "swap([[:space:]]|$)/#&/' \\\n    \"$root/etc/fstab\"\n";
        finding->undo = "mv /etc/fstab.sparkguard /etc/fstab";
    }
    finding->why = "Swap that was turned off by hand is on again after the next boot.";
    doctor_figure(finding, "fstab_swap_count", count);
}

DOCTOR_CHECK(60, check_swap_at_boot);

static void check_swappiness(struct doctor *doctor)
{
    static const char id[] = "swappiness";
    uint64_t total = doctor_meminfo(doctor, "SwapTotal");
    int64_t swappiness;
    struct doctor_finding *finding;
    if (!doctor_read_number(doctor, "/proc/sys/vm/swappiness", &swappiness) || swappiness < 0) {
        finding = doctor_add(doctor, id, DOCTOR_UNKNOWN, "/proc/sys/vm/swappiness cannot be read.");
        finding->fix = text_copy("sysctl vm.swappiness", 64);
        swappiness = -1;
    } else if (total == 0) {
        finding = doctor_add(doctor, id, DOCTOR_FINE, "vm.swappiness is %" PRId64 ", and there is no swap to use.",
                             swappiness);
    } else if (swappiness <= SWAPPINESS_MAX) {
        finding = doctor_add(doctor, id, DOCTOR_FINE, "vm.swappiness is %" PRId64 ".", swappiness);
    } else {
        finding =
            doctor_add(doctor, id, DOCTOR_WARNING,
                       "vm.swappiness is %" PRId64 ": the kernel swaps programs out to keep page cache.", swappiness);
        finding->fix = text_copy("sudo sysctl vm.swappiness=1", 64);
        finding->script = "put 1 /proc/sys/vm/swappiness\n"
                          "put 'vm.swappiness = 1' /etc/sysctl.d/90-sparkguard.conf\n";
        finding->undo = "rm /etc/sysctl.d/90-sparkguard.conf; sysctl vm.swappiness=60, or what it was";
    }
    finding->why = "If swap stays on, a low swappiness makes the kernel drop page cache before it swaps programs "
                   "out.";
    doctor_figure(finding, "swappiness", swappiness < 0 ? SG_UNKNOWN : (uint64_t)swappiness);
}

DOCTOR_CHECK(50, check_swappiness);
