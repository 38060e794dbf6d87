/* What people write: variables of the environment as the library reads them, sizes, seconds and numbers, times for
 * --since, parameters, durations and models for the sweep. The input is texts that end with NUL, each a
 * "NAME=value". */
#include "fuzz.h"

#include "../../preload/core/base/log.h"

#define sg_log_line(line) fuzz_need(strlen(line) < 512, "a line too long") /* what the library complains of */
#include "../../preload/core/base/options.c"

#include "report/since.h"
#include "common/text.h"
#include "common/tool.h"
#include "sweep/sweep.h"

enum { TEXTS = 16 };
FUZZ_CAPACITY(SG_PATH_CAPACITY);

static void read_as_library(char *const *environment)
{
    state = UNREAD;
    memset(&sg_options, 0, sizeof sg_options);
    sg_options_read(environment);
    fuzz_need(strnlen(sg_options.dir, sizeof sg_options.dir) < sizeof sg_options.dir &&
                  strnlen(sg_options.job, sizeof sg_options.job) < sizeof sg_options.job &&
                  strnlen(sg_options.history, sizeof sg_options.history) < sizeof sg_options.history,
              "a text without an end");
}

static void read_as_sweep(const char *text)
{
    struct sweep sweep = {0};
    int64_t duration_ns = 0, since_ns = 0;
    size_t mark = tool_arena_mark();
    char *cut = text_copy(text, SIZE_MAX);
    struct fits_model model = {0};
    (void)sweep_take_parameter(&sweep, cut);
    if (fits_is_shape(text) && fits_read_shape(&model, text))
        fuzz_need(model.weight_bytes <= FITS_MOST && model.cache.numbers <= FITS_MOST, "sums");
    (void)sweep_take_duration(text, &duration_ns);
    if (report_since_parse(text, INT64_C(1795180000) * 1000000000, &since_ns))
        fuzz_need(since_ns > 0, "a time before 1970");
    tool_arena_release(mark);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size), *environment[TEXTS + 1] = {0};
    size_t count = 0;
    for (char *at = text; at < text + size && count < TEXTS; at += strlen(at) + 1) {
        environment[count++] = at;
        read_as_sweep(at);
    }
    read_as_library(environment);
    free(text);
    return 0;
}
