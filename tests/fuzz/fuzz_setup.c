/* What sparkguard-doctor --setup and --setup=undo edit: Docker's daemon.json, as it is and as it was before. One text a
 * file. */
#include "fuzz.h"

#include "common/tool.h"
#include "doctor/setup/setup.h"

static const char *const file[] = {"now", "before"};
static const char *const what[] = {"add,nvidia=runc,=,a", "take,nvidia=runc,=", "name", "next", "others"};

enum { FILES = sizeof file / sizeof file[0], KINDS = sizeof what / sizeof what[0] };

FUZZ_CAPACITY(1 << 20);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t mark = tool_arena_mark();
    fuzz_put_texts(file, FILES, data, size);
    for (size_t i = 0; i < KINDS; i++) {
        int fd[FILES];
        for (size_t k = 0; k < FILES; k++)
            fd[k] = open(fuzz_path(file[k]), O_RDONLY | O_CLOEXEC);
        (void)setup_daemon_json(what[i], fd[0], fd[1], fuzz_nowhere());
        for (size_t k = 0; k < FILES; k++)
            close(fd[k]);
    }
    tool_arena_release(mark);
    return 0;
}
