/* What the doctor reads of a machine: one text a file. */
#include "fuzz.h"

#include "common/tool.h"
#include "doctor/doctor.h"

static const char *const file[] = {
    "proc/meminfo",
    "proc/buddyinfo",
    "proc/swaps",
    "proc/sys/vm/swappiness",
    "proc/self/oom_score_adj",
    "proc/7/stat",
    "proc/7/status",
    "etc/fstab",
    "etc/default/earlyoom",
    "etc/systemd/system/ssh.service.d/a.conf",
    "usr/local/cuda/version.json",
    "proc/driver/nvidia/version",
};

enum { FILES = sizeof file / sizeof file[0] };

FUZZ_CAPACITY(DOCTOR_TEXT_CAPACITY);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t mark = tool_arena_mark();
    (void)setenv("SPARKGUARD_SYSTEM_ROOT", fuzz_folder(), 1);
    fuzz_put_texts(file, FILES, data, size);
    struct doctor *doctor = doctor_examine();
    const struct style style = {.stream = fuzz_nowhere(), .columns = 80};
    doctor_render_text(doctor, &style);
    doctor_render_json(doctor, fuzz_nowhere());
    doctor_render_script(doctor, fuzz_nowhere());
    tool_arena_release(mark);
    return 0;
}
