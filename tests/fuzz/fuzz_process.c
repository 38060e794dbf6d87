/* What the kernel says of processes: stat, statm, smaps_rollup and maps as the library reads them, stat and status as
 * the tools do. A program chooses its own name, which is in the midst of them. */
#include "fuzz.h"

#include "common/tool.h"
#include "../../preload/core/base/text.h"

static long fuzz_read_file(const char *path, char *buffer, size_t room);

#define sg_text_read_file fuzz_read_file
#include "../../preload/core/base/procfs.c"
#include "../../preload/guard/watch/own_process.c"
#undef sg_text_read_file
#include "../../preload/core/account/callsites.c"

#include "common/procfs.h"
#include "model/model.h"

static const char *const file[] = {"proc/7/stat", "proc/7/statm", "proc/7/smaps_rollup", "proc/7/status",
                                   "proc/7/cmdline"};

enum { FILES = sizeof file / sizeof file[0] };

FUZZ_CAPACITY(8192); /* of a status in tools/model/unguarded.c and tools/common/procfs.c */

/* The library's own reading, from the target's folder. */
static long fuzz_read_file(const char *path, char *buffer, size_t room)
{
    char name[64];
    (void)snprintf(name, sizeof name, "proc/7%s", strrchr(path, '/'));
    return sg_text_read_file(fuzz_path(name), buffer, room);
}

static void name_site(const uint8_t *data, size_t size)
{
    struct line line = {.field = BEGIN};
    struct sg_callsite site = {0};
    struct search search = {.site = &site, .address = 0x1000};
    for (size_t i = 0; i < size; i++) {
        if (data[i] != '\n') {
            read_character(&line, (char)data[i]);
            continue;
        }
        if (!look_at(&search, &line.mapping))
            fuzz_need(memchr(site.library, '\0', sizeof site.library) != NULL, "a name without an end");
        line = (struct line){.field = BEGIN};
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t mark = tool_arena_mark();
    uint64_t least, most;
    struct model model = {0};
    procfs_live_root = fuzz_folder();
    fuzz_put_texts(file, FILES, data, size);
    (void)sg_procfs_anonymous_bytes(7);
    (void)sg_procfs_start_ticks(7);
    (void)sg_own_process_minor_faults();
    (void)sg_own_process_is_left_to(1);
    if (sg_own_process_private_bytes(&least, &most))
        fuzz_need(least <= most, "the least is more than the most");
    model.machine.total_bytes = SG_UNKNOWN;
    model_unguarded_fill(&model, false);
    name_site(data, size);
    tool_arena_release(mark);
    return 0;
}
