/*
 * process.c - see draw.h: draws the time line of one process.
 */
#include "report/draw/draw.h"

#include <inttypes.h>

#include "report/draw/svg.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

enum { TITLE_LEFT = 24, LIVE_HEIGHT = 230, MACHINE_HEIGHT = 120, FIELDS = 3 };

/* The fill of an area: a light background and a pattern of lines. */
static const struct hatching {
    const char *ground, *lines;
} hatchings[] = {
    [SG_DOMAIN_HEAP] = {"#c9d9ec", "M0 0"},           [SG_DOMAIN_MAPPED] = {"#cfe8e2", "M-2 2l4 -4M0 8l8 -8M6 10l4 -4"},
    [SG_DOMAIN_PINNED] = {"#f6e7b4", "M2 2h1M6 6h1"}, [SG_DOMAIN_MANAGED] = {"#e6d3e6", "M-2 6l4 4M0 0l8 8M6 -2l4 4"},
    [SG_DOMAIN_DEVICE] = {"#cde5c4", "M0 4h8"},
};
_Static_assert(sizeof hatchings / sizeof hatchings[0] == SG_DOMAIN_COUNT, "every domain looks different");

static void put_patterns(FILE *stream, const char *name)
{
    fputs("<defs>\n", stream);
    for (int i = 0; i < SG_DOMAIN_COUNT; i++)
        draw_pattern(stream, name, model_domain_name[i], hatchings[i].ground, hatchings[i].lines, "#666");
    fputs("</defs>\n", stream);
}

/* ---- one field --------------------------------------------------------------------------------------------------- */

/* Returns the sum of the domains from this one on: the last domain is at the bottom. */
static uint64_t stacked_of(const struct sg_sample *sample, int domain)
{
    uint64_t sum = 0;
    for (int i = domain; i < SG_DOMAIN_COUNT; i++)
        sum += sample->live_bytes[i];
    return sum;
}

/* Returns the most of one domain, or of it and those above it. */
static uint64_t highest(const struct model_timeline *timeline, int domain, bool is_stacked)
{
    uint64_t most = 0;
    for (size_t i = 0; i < timeline->count; i++) {
        const struct sg_sample *sample = &timeline->samples[i];
        most = bytes_max(most, is_stacked ? stacked_of(sample, domain) : sample->live_bytes[domain]);
    }
    return most;
}

static int64_t end_of_sample(const struct draw_field *field, const struct model_timeline *timeline, size_t i)
{
    return i + 1 < timeline->count ? timeline->samples[i + 1].time_ns : field->end_ns;
}

/* A sample holds until the next one. */
static struct draw_points points_of(const struct draw_field *field, const struct model_timeline *timeline)
{
    struct draw_points points = {tool_allocate(timeline->count, sizeof *points.at), timeline->count};
    for (size_t i = 0; i < timeline->count; i++) {
        const struct sg_sample *sample = &timeline->samples[i];
        points.at[i] = (struct draw_point){draw_x(field, sample->time_ns),
                                           draw_x(field, end_of_sample(field, timeline, i)),
                                           true,
                                           {[DRAW_USABLE] = sample->usable_bytes,
                                            sample->reserve_bytes,
                                            sample->floor_bytes,
                                            sample->live_bytes[SG_DOMAIN_DEVICE]}};
    }
    return points;
}

/* Draws the area between the sums without and with the domain. */
static void put_area(const struct draw_field *field, const struct model_timeline *timeline, int domain)
{
    fprintf(field->stream, "<path fill=\"url(#%s%s)\" stroke=\"#555\" stroke-width=\"0.5\" d=\"", field->name,
            model_domain_name[domain]);
    for (size_t i = 0; i < timeline->count; i++)
        fprintf(field->stream, "%c%.1f %.1fH%.1f", i == 0 ? 'M' : 'L', draw_x(field, timeline->samples[i].time_ns),
                draw_y(field, stacked_of(&timeline->samples[i], domain)),
                draw_x(field, end_of_sample(field, timeline, i)));
    for (size_t i = timeline->count; i-- > 0;)
        fprintf(field->stream, "L%.1f %.1fH%.1f", draw_x(field, end_of_sample(field, timeline, i)),
                draw_y(field, stacked_of(&timeline->samples[i], domain + 1)),
                draw_x(field, timeline->samples[i].time_ns));
    fputs("z\"/>\n", field->stream);
}

/* ---- the drawing ------------------------------------------------------------------------------------------------- */

static void put_peak(struct draw_legend *legend, const struct draw_field *field, const struct model_process *process)
{
    if (process->peak_ns < field->begin_ns || process->peak_ns > field->end_ns)
        return;
    double x = draw_legend_item(legend, text_format("peak %s", text_size(process->peak_bytes)));
    const double places[2][2] = {{draw_x(field, process->peak_ns), draw_y(field, process->peak_bytes)},
                                 {x + 11, legend->y - 4}};
    for (int i = 0; i < 2; i++)
        fprintf(field->stream,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#fff\" stroke=\"#000\" stroke-width=\"1.5\"/>\n",
                places[i][0], places[i][1]);
}

static void put_titles(const struct draw_field *field, const struct model_process *process)
{
    char end[MODEL_END_TEXT];
    char *command = svg_fit(process->command[0] ? process->command : "-", (field->right - TITLE_LEFT) / 1.6);
    char *job = svg_fit(process->job[0] ? process->job : "-", process->is_observing ? 180 : 300);
    bool has_lasted = process->ended_ns > process->started_ns && process->started_ns > 0;
    char *life = text_format("process %" PRIu32 " of job %s, %s%s%s%s", model_process_number(process), job,
                             model_end_text(process, end), has_lasted ? ", ran " : "",
                             has_lasted ? text_duration(process->ended_ns - process->started_ns) : "",
                             process->is_observing ? "; observe: nothing was refused" : "");
    svg_text(field->stream, TITLE_LEFT, 28, "font-size=\"16\" font-weight=\"bold\"", command);
    svg_text(field->stream, TITLE_LEFT, 48, "font-size=\"12\"", life);
}

/* Sets the range of times: from the start of the process, if known, or the first sample, to the last sample. */
static void set_span(struct draw_field *field, const struct model_process *process,
                     const struct model_timeline *timeline)
{
    int64_t first_ns = timeline->samples[0].time_ns;
    field->begin_ns = process->started_ns > 0 && process->started_ns < first_ns ? process->started_ns : first_ns;
    field->end_ns = timeline->samples[timeline->count - 1].time_ns;
    if (field->end_ns - field->begin_ns < 1000000) /* there is a single sample */
        field->end_ns = field->begin_ns + 1000000;
}

static void put_live(const struct draw_field *field, const struct model_process *process,
                     const struct model_timeline *timeline, double legend_y)
{
    struct draw_legend legend = draw_legend_begin(field, legend_y, "Live bytes of the process");
    draw_size_axis(field);
    for (int i = SG_DOMAIN_COUNT - 1; i >= 0; i--) {
        if (highest(timeline, i, false) == 0)
            continue;
        put_area(field, timeline, i);
        draw_legend_area(&legend, model_domain_name[i], "", model_domain_name[i]);
    }
    draw_limit(field, field->left, field->right, process->limit_bytes);
    put_peak(&legend, field, process);
}

/* The sum of the devices that the process used: a sample does not say of which device its bytes are. */
struct devices {
    size_t count;
    const char *name; /* name of one device */
    uint64_t total_bytes, reserve_bytes;
};

/* Returns the devices of a process; none on unified memory. */
static struct devices devices_of(const struct model_process *process)
{
    struct devices devices = {0};
    for (int i = 0; process->machine.unified == 0 && i < SG_DEVICE_CAPACITY; i++) {
        const struct sg_device *device = &process->device[i];
        if (device->is_known != 1 || device->total_bytes == SG_UNKNOWN || device->total_bytes == 0)
            continue;
        devices.count++;
        devices.name = device->name;
        devices.total_bytes = bytes_add(devices.total_bytes, device->total_bytes);
        devices.reserve_bytes += (uint64_t)device->reserve_mib << 20;
    }
    return devices;
}

/* Draws the devices below `above`. Memory that other processes hold there is not in this time line. */
static struct draw_field put_device_field(const struct draw_field *above, const struct draw_points *points,
                                          const struct devices *devices)
{
    enum { TITLE_WIDTH = 200 };
    static const char live[] = "stroke=\"#000\" stroke-width=\"1.5\"";
    static const char total[] = "stroke=\"#333\" stroke-width=\"1.5\" stroke-dasharray=\"12 2 2 2\"";
    static const char least[] = "stroke=\"#a40\" stroke-width=\"1.5\" stroke-dasharray=\"8 3\"";
    const uint64_t most_bytes = bytes_less(devices->total_bytes, devices->reserve_bytes);
    const char *stripes[] = {total, least};
    const uint64_t levels[] = {devices->total_bytes, most_bytes};
    struct draw_field field = *above;
    char *name =
        devices->count > 1 ? text_format("%zu devices, together", devices->count) : text_printable(devices->name, true);
    char *title = svg_fit(name, TITLE_WIDTH);
    struct draw_legend legend = draw_legend_begin(&field, above->bottom + 28, title[0] != '\0' ? title : "Device");
    draw_legend_line(&legend, live, "this process, in the end", draw_last(points, DRAW_DEVICE));
    draw_legend_line(&legend, total, "total", devices->total_bytes);
    draw_legend_line(&legend, least, "less reserve", most_bytes);
    field.top = legend.y + 12;
    field.bottom = field.top + MACHINE_HEIGHT;
    field.most_bytes = draw_scale_top(bytes_max(draw_highest(points, DRAW_DEVICE), devices->total_bytes));
    draw_size_axis(&field);
    for (size_t i = 0; i < 2; i++)
        fprintf(field.stream, "<path fill=\"none\" d=\"M%.1f %.1fH%.1f\" %s/>\n", field.left, draw_y(&field, levels[i]),
                field.right, stripes[i]);
    draw_steps(&field, points, DRAW_DEVICE, live);
    return field;
}

void draw_process(FILE *stream, const struct model_process *process, const struct model_timeline *timeline,
                  const char *name)
{
    struct draw_sheet sheet;
    struct draw_field field[FIELDS] = {draw_sheet_begin(&sheet, name)}, *live = field;
    const struct devices devices = devices_of(process);
    size_t count = devices.count > 0 ? 3 : 2;
    set_span(live, process, timeline);
    live->top = 86 + draw_strips_height(process);
    live->bottom = live->top + LIVE_HEIGHT;
    uint64_t most_bytes = bytes_max(highest(timeline, 0, true), process->peak_bytes);
    live->most_bytes = draw_scale_top(bytes_max(most_bytes, draw_near_limit(process->limit_bytes, most_bytes)));
    const struct draw_points points = points_of(live, timeline);
    put_patterns(live->stream, live->name);
    put_titles(live, process);
    put_live(live, process, timeline, 74);
    field[1] = draw_machine(live, live->bottom + 16, MACHINE_HEIGHT, &points);
    if (devices.count > 0)
        field[2] = put_device_field(&field[1], &points, &devices);
    draw_strips(live, count, process);
    draw_time_axis(&field[count - 1], field[count - 1].bottom);
    draw_sheet_end(
        &sheet, stream, field[count - 1].bottom + 52,
        text_format("Memory of process %" PRIu32 " over time", model_process_number(process)),
        text_format(
            "Live bytes by domain from %s to %s, with a peak of %s. The figures are in the table of the process.",
            text_time_local(live->begin_ns), text_time_local(live->end_ns), text_size(process->peak_bytes)));
}
