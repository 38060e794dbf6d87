/* What the kernel says of the machine and of cgroups, as the library and the tools read it: one text a file. */
#include "fuzz.h"

#include "common/tool.h"
#include "base/options.h"
#include "admit/snapshot.h"
#include "common/procfs.h"
#include "model/model.h"
#include "admit/cgroup.h"

static const char *const file[] = {
    "proc/meminfo",
    "proc/self/cgroup",
    "sys/fs/cgroup/a/memory.max",
    "sys/fs/cgroup/a/memory.high",
    "sys/fs/cgroup/a/memory.current",
    "sys/fs/cgroup/a/memory.stat",
    "sys/fs/cgroup/memory/a/memory.limit_in_bytes",
    "sys/fs/cgroup/memory/a/memory.usage_in_bytes",
    "sys/fs/cgroup/memory/a/memory.stat",
};

enum { FILES = sizeof file / sizeof file[0] };

FUZZ_CAPACITY(16384); /* of tools/model/machine.c; the core's own scratch has 8192 */

static void look_as_library(void)
{
    uint64_t identity[SG_CONSTRAINT_CAPACITY - 1];
    struct sg_snapshot look = {0};
    uint32_t count = sg_cgroup_find(identity);
    fuzz_need(count < SG_CONSTRAINT_CAPACITY, "more levels than there is room for");
    sg_snapshot_refresh(&look);
    sg_cgroup_refresh(&look);
    fuzz_need(look.count <= SG_CONSTRAINT_CAPACITY, "more constraints than there is room for");
    for (uint32_t i = 0; look.is_valid && i < look.count; i++)
        fuzz_need(look.at[i].headroom_bytes <= look.at[i].limit_bytes &&
                      look.at[i].floor_bytes <= look.at[i].reserve_bytes,
                  "a figure beyond its bound");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t mark = tool_arena_mark();
    if (sg_options.system_root[0] == '\0') {
        strcpy(sg_options.system_root, fuzz_folder());
        (void)setenv("SPARKGUARD_SYSTEM_ROOT", fuzz_folder(), 1);
    }
    fuzz_put_texts(file, FILES, data, size);
    look_as_library();
    char *nowhere = (char[]){"/nonexistent"};
    const struct model_scope scope = {.directories = &nowhere, .directory_count = 1};
    (void)model_build(&scope);
    tool_arena_release(mark);
    return 0;
}
