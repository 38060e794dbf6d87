/* The launcher's note of how its child ended: it finds the child's segment among whatever lies there, and writes to no
 * other, except the hash of the command line into those of its run. */
#include "fuzz.h"

#include "common/tool.h"
#include "launch/launch.h"
#include "sparkguard_abi.h"

#define NAME "live/4711-0000000000001267.segment"

enum { BYTES = sizeof(struct sg_segment) };
FUZZ_CAPACITY(BYTES);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t mark = tool_arena_mark();
    static struct sg_segment segment;
    static char before[BYTES], after[BYTES];
    static char *program[] = {"job", NULL};
    const struct launch launch = {.program = program,
                                  .directory = tool_adopt(strdup(fuzz_path("live"))),
                                  .child = 4711,
                                  .child_ticks = 9,
                                  .wait_status = 9};
    segment.slot = (struct sg_slot){
        .magic = SG_ABI_MAGIC, .abi_version = SG_ABI_VERSION, .pid = 4711, .start_ticks = 9, .state = SG_STATE_RUNNING};
    memcpy(before, &segment, BYTES);
    fuzz_patch(before, BYTES, data, size);
    fuzz_put(NAME, before, BYTES);
    launch_record(&launch);
    const struct sg_slot *slot = (const struct sg_slot *)(const void *)before;
    bool is_childs = slot->magic == SG_ABI_MAGIC && slot->abi_version == SG_ABI_VERSION && slot->pid == 4711 &&
                     slot->start_ticks == 9;
    int fd = open(fuzz_path(NAME), O_RDONLY | O_CLOEXEC);
    fuzz_need(fd >= 0 && read(fd, after, BYTES) == BYTES && close(fd) == 0, "read");
    struct sg_segment *was = (struct sg_segment *)(void *)before;
    if (slot->magic == SG_ABI_MAGIC && slot->abi_version == SG_ABI_VERSION && was->run == SG_RUN(4711, 9) &&
        was->command_hash == 0)
        was->command_hash = ((const struct sg_segment *)(const void *)after)->command_hash;
    fuzz_need(is_childs || memcmp(before, after, BYTES) == 0, "another's segment was written to");
    tool_arena_release(mark);
    return 0;
}
