/*
 * check_handover.c - finds memory that the kernel sets aside for kexec handover (KHO).
 *
 * A kernel with KHO reserves scratch regions at boot, for the kernel that follows a kexec. Only movable pages of
 * programs may live there: the driver's pages, and so cudaMalloc's, may not. The regions are marked as CMA without
 * being one, so /proc/meminfo shows CmaFree without CmaTotal, and MemAvailable counts what CUDA cannot have.
 */
#include <stdlib.h>
#include <string.h>

#include "doctor/doctor.h"
#include "common/bytes.h"
#include "common/text.h"

/* Less than this does not matter. A kernel without KHO shows none. */
#define SCRATCH_LEAST (UINT64_C(256) << 20)

/* Reads the value of `kho` on the kernel's command line; the last one counts. Returns false if there is none. */
static bool read_switch(const struct doctor *doctor, char value[16])
{
    char text[4096], *rest = text;
    bool is_found = false;
    if (doctor_read(doctor, "/proc/cmdline", text, sizeof text) <= 0)
        return false;
    for (char *word; (word = strsep(&rest, " \t\n")) != NULL;)
        if (strncmp(word, "kho=", 4) == 0) {
            snprintf(value, 16, "%s", word + 4);
            is_found = true;
        }
    return is_found;
}

static bool is_off(const char *value)
{
    return strcmp(value, "off") == 0 || strcmp(value, "0") == 0 || strcasecmp(value, "n") == 0;
}

static void check_handover(struct doctor *doctor, struct finding *finding)
{
    char value[16] = "";
    uint64_t total = doctor_meminfo(doctor, "CmaTotal"), unused = doctor_meminfo(doctor, "CmaFree");
    bool is_known = total != SG_UNKNOWN && unused != SG_UNKNOWN, is_switched = read_switch(doctor, value);
    uint64_t hidden = is_known ? bytes_less(unused, total) : SG_UNKNOWN;
    const char *hidden_text = text_size(hidden);
    if (!is_known) { /* a kernel without CMA, which KHO needs */
        finding_say(finding, FINDING_FINE, NULL, "The kernel sets no memory aside for kexec handover.");
    } else if (hidden < SCRATCH_LEAST) {
        finding_say(finding, FINDING_FINE, NULL, "The kernel sets no memory aside for kexec handover%s.",
                    doctor_exists(doctor, "/sys/kernel/debug/kho") ? ", which it supports" : "");
    } else if (doctor->unified == 0 || !doctor->has_gpu) {
        finding_say_absent(finding, doctor->has_gpu ? "the GPU has memory of its own" : "no NVIDIA GPU");
    } else if (is_switched && is_off(value)) {
        finding_say(finding, FINDING_WARNING,
                    "uname -r; sudo ls /sys/kernel/debug/kho  # an older or newer kernel may help",
                    "%s of free memory is closed to CUDA (CmaFree above CmaTotal), though kho=%s is set: the "
                    "kernel may not know that option.",
                    hidden_text, value);
    } else {
        finding_say(finding, FINDING_WARNING,
                    "echo 'GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT kho=off\"' | sudo tee "
                    "/etc/default/grub.d/sparkguard-kho.cfg && sudo update-grub  # then reboot",
                    "The kernel sets %s aside for kexec handover (KHO): it is shown as available, and CUDA "
                    "cannot have it.",
                    hidden_text);
        finding->step = "kexec-handover";
    }
    finding_figure(finding, "cma_total_bytes", total);
    finding_figure(finding, "cma_free_bytes", unused);
    finding_figure(finding, "hidden_bytes", hidden);
}

DOCTOR_CHECK(150, check_handover, "kexec-handover",
             "A job may be granted these bytes and then fail in the driver. Handover serves updates of a running "
             "host; on a Spark it is of no use.");
