/* What names a container: the cgroup of a process, the runtime's record, Docker's and Podman's files, and the numbers
 * that a process has in other PID namespaces. One text a file. */
#include "fuzz.h"

#include "common/tool.h"
#include "common/procfs.h"
#include "model/host/host.h"

#define ID "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const char *const file[] = {
    "proc/7/cgroup",
    "proc/7/status",
    "proc/7/stat",
    "containers/" ID ".json",
    "var/lib/docker/containers/" ID "/config.v2.json",
    "var/lib/containers/storage/overlay-containers/containers.json",
};

enum { FILES = sizeof file / sizeof file[0] };

FUZZ_CAPACITY(65536); /* of a record in tools/model/host/containers.c */

static void name(const struct host_containers *containers, const char *id)
{
    char *found = host_container_name(containers, id);
    fuzz_need(found != NULL && found[0] != '\0', "a container without a name");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t mark = tool_arena_mark();
    struct host_containers containers = {0};
    const struct host_container *record;
    procfs_live_root = fuzz_folder();
    fuzz_put_texts(file, FILES, data, size);
    host_containers_read(&containers, fuzz_path("containers"), geteuid());
    fuzz_need(containers.count <= 1, "more records than files");
    char *id = host_container_id(&containers, 7, &record);
    if (id != NULL) {
        fuzz_need(strlen(id) < HOST_ID_CAPACITY, "a long ID");
        name(&containers, id);
    }
    name(&containers, ID);
    name(&containers, "0123456789ab");
    host_pids_forget();
    (void)host_pid_of(1, 1000, 4026531999u);
    (void)host_pid_of(7, 1000, 0);
    tool_arena_release(mark);
    return 0;
}
