/* Segments, live ones and copies kept as history, from the file to every way of showing them. First byte: which it is,
 * whether the file is all of the input or a well made one with changes, and whether that is as long as any can be, or
 * longer. */
#include "fuzz.h"

#include <locale.h>
#include <sys/file.h>

#include "common/tool.h"
#include "report/html/html.h"
#include "report/draw/draw.h"
#include "common/procfs.h"
#include "report/report.h"

#define LIVE "live/4711-0000000000001267.segment"
#define PAST "past/4711-0000000000001267.segment"

enum { RECORDS = 2, IS_PAST = 1, IS_OWNED = 2, IS_WHOLE = 4 };
enum { LONG = 0x6, TOO_LONG = 0xe }; /* the upper half of that byte */
enum { BYTES = SG_SEGMENT_BYTES(RECORDS), MOST = (SG_SEGMENT_BYTES(SG_RECORD_LIMIT) + 65535) / 65536 * 65536 };
FUZZ_CAPACITY(BYTES);

static union {
    struct sg_segment segment;
    char bytes[BYTES];
} file;

static void make_well(void)
{
    struct sg_segment *segment = &file.segment;
    memset(&file, 0, sizeof file);
    segment->slot = (struct sg_slot){
        .magic = SG_ABI_MAGIC, .abi_version = SG_ABI_VERSION, .pid = 4711, .start_ticks = 9, .state = SG_STATE_RUNNING};
    segment->segment_bytes = BYTES;
    segment->record_capacity = RECORDS;
    segment->record_used = 1;
    segment->started_time_ns = INT64_C(1795180000) * 1000000000;
    segment->exit_code = segment->signal = -1;
    strcpy(segment->job, "train");
    strcpy(segment->command, "python train.py");
    segment->domain[0].granted_bytes = segment->peak[0].total_bytes = segment->peak[0].domain_bytes[0] = 1 << 30;
    segment->refusal_count = segment->phase_count = segment->event_count = 1;
    segment->refusal[0] = (struct sg_refusal){.sequence = 1, .reason = SG_REASON_LIMIT, .call = "malloc"};
    segment->phase[0] = (struct sg_phase){.sequence = 1, .name = "epoch 1"};
    segment->event[0] = (struct sg_event){.sequence = 1, .what = "watchdog: ends this process: 1.0 GiB left"};
    segment->site[0][SG_CALLSITE_FIRST] =
        (struct sg_callsite){.key = 4096, .live_bytes = 1 << 20, .is_named = 1, .library = "libc.so.6"};
    segment->saved_time_ns = segment->started_time_ns + 1;
}

/* With all the records that there can be, none of them written. */
static void make_long(void)
{
    file.segment.segment_bytes = SG_SEGMENT_BYTES(SG_RECORD_LIMIT);
    file.segment.record_capacity = file.segment.record_used = SG_RECORD_LIMIT;
}

static void show(const struct model_scope *scope)
{
    struct model *model = model_build(scope);
    const struct style style = style_of(fuzz_nowhere());
    report_render_text(model, scope, &style);
    report_render_json(model, fuzz_nowhere());
    report_render_csv(model, fuzz_nowhere());
    report_render_prometheus(model, scope, fuzz_nowhere());
    (void)report_html_file(model, scope, "/dev/null");
    const struct model_job *job;
    const struct model_process *process;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process) {
            report_render_process(job, process, &style);
            struct model_timeline line = {tool_allocate(1, sizeof *line.samples), 1};
            line.samples[0].time_ns = 1;
            draw_add_known(&line, process);
            draw_process(fuzz_nowhere(), process, &line, NULL);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t mark = tool_arena_mark();
    static char *live, *past;
    if (live == NULL) {
        fuzz_put("root/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n", 46);
        (void)setenv("SPARKGUARD_SYSTEM_ROOT", fuzz_path("root"), 1);
        (void)setlocale(LC_ALL, "C.UTF-8"); /* texts are escaped for one, or for none */
        procfs_live_root = strdup(fuzz_path("root"));
        live = strdup(fuzz_path(LIVE));
        past = strdup(fuzz_path(PAST));
        (void)setenv("SPARKGUARD_DIR", fuzz_path("live"), 1);
        (void)setenv("SPARKGUARD_HISTORY", fuzz_path("past"), 1);
    }
    if (size == 0)
        return 0;
    bool is_past = data[0] & IS_PAST;
    make_well();
    if (data[0] >> 4 == LONG)
        make_long();
    if ((data[0] & IS_WHOLE) == 0)
        fuzz_patch(&file, sizeof file, data + 1, size - 1);
    (void)unlink(is_past ? live : past);
    if (data[0] & IS_WHOLE)
        fuzz_put(is_past ? PAST : LIVE, data + 1, size - 1);
    else
        fuzz_put(is_past ? PAST : LIVE, &file, sizeof file);
    if (data[0] >> 4 == LONG || data[0] >> 4 == TOO_LONG)
        fuzz_need(truncate(is_past ? past : live, MOST + (data[0] >> 4 == TOO_LONG)) == 0, "truncate");
    int owner = open(is_past ? past : live, O_RDONLY | O_CLOEXEC);
    if (data[0] & IS_OWNED)
        (void)flock(owner, LOCK_EX);
    show(&(struct model_scope){.is_all = true, .wants_history = true, .wants_verdicts = true});
    (void)close(owner);
    tool_arena_release(mark);
    return 0;
}
