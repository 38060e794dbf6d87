/* What sparkguard-doctor --setup and --setup=undo read: settings of container engines and of logins, wrappers and the list of an
 * earlier set-up. One text a file. */
#include "fuzz.h"

#include "doctor/doctor.h"
#include "doctor/setup/setup.h"

static const char *const file[] = {
    "etc/docker/daemon.json",
    "var/lib/sparkguard-setup/manifest",
    "var/lib/sparkguard-setup/before/etc/docker/daemon.json",
    "etc/containerd/config.toml",
    "etc/containers/containers.conf",
    "usr/local/lib/sparkguard/docker-runtime",
    "etc/security/pam_env.conf",
    "etc/systemd/system/ollama.service",
    "etc/sparkguard/runtime.conf",
};
static const char *const fixed[] = {
    "usr/local/lib/libsparkguard.so",
    "usr/bin/sparkguard-runtime",
    "usr/bin/dockerd",
    "usr/bin/podman",
    "usr/bin/containerd",
    "usr/bin/runc",
};

enum { FILES = sizeof file / sizeof file[0], FIXED = sizeof fixed / sizeof fixed[0] };

FUZZ_CAPACITY(1 << 20);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)setenv("SPARKGUARD_SYSTEM_ROOT", fuzz_folder(), 1);
    for (size_t i = 0; i < FIXED; i++)
        fuzz_put(fixed[i], "", 0);
    fuzz_put_texts(file, FILES, data, size);
    struct doctor *doctor = doctor_learn();
    (void)setup_print(doctor, fuzz_nowhere());
    (void)setup_print_undo(doctor, fuzz_nowhere());
    (void)setup_print_cdi(doctor, fuzz_nowhere());
    doctor_free(doctor);
    return 0;
}
