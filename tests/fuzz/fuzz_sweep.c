/* The record of a sweep, from the file to the tables that are made of it. */
#include "fuzz.h"

#include "common/tool.h"
#include "report/report.h"
#include "sweep/sweep.h"

FUZZ_CAPACITY(8 << 20); /* FILE_LIMIT of tools/sweep/state_read.c */

#define BOOT "017cbb0a-cfb7-44ba-907b-59939254ff35"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t mark = tool_arena_mark();
    char parameter[] = "batch=1,2,4,8", why[SWEEP_WHY_CAPACITY];
    char *command[] = {strdup("python"), strdup("{batch}"), NULL};
    struct sweep sweep = {.command = command, .lock_fd = -1};
    const struct style style = {.stream = fuzz_nowhere(), .columns = 80};
    fuzz_need(sweep_take_parameter(&sweep, parameter) == NULL && sweep_plan(&sweep) == NULL, "plan");
    sweep.identity = (char[]){"/tmp python"}; /* the real one names the folder that this was started in */
    fuzz_put("state", data, size);
    if (sweep_state_read(&sweep, fuzz_path("state"), BOOT, why) == 0) {
        sweep_render_text(&sweep, &style);
        sweep_render_json(&sweep, fuzz_nowhere());
        for (size_t i = 0; i < sweep.run_count; i++)
            (void)sweep_predict(&sweep, &sweep.run[i]);
    }
    free(command[0]);
    free(command[1]);
    tool_arena_release(mark);
    return 0;
}
