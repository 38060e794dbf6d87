/*
 * plot.c - see plot.h: draws the fields and their content.
 */
#define _GNU_SOURCE
#include "report/plot/plot.h"

#include <inttypes.h>

#include "report/report.h"
#include "report/plot/svg.h"
#include "common/bytes.h"
#include "common/text.h"

enum { WIDTH = 960, LEFT = 84, RIGHT = 916, LIVE_HEIGHT = 230, MACHINE_HEIGHT = 120 };

/* The fill of an area: a light background and a pattern of lines. */
static const struct hatching {
    const char *ground, *lines;
} hatchings[] = {
    [SG_DOMAIN_HEAP] = {"#c9d9ec", ""},
    [SG_DOMAIN_MAPPED] = {"#cfe8e2", "M-2 2l4 -4M0 8l8 -8M6 10l4 -4"},
    [SG_DOMAIN_PINNED] = {"#f6e7b4", "M2 2h1M6 6h1"},
    [SG_DOMAIN_MANAGED] = {"#e6d3e6", "M-2 6l4 4M0 0l8 8M6 -2l4 4"},
    [SG_DOMAIN_DEVICE] = {"#cde5c4", "M0 4h8"},
};
_Static_assert(sizeof hatchings / sizeof hatchings[0] == SG_DOMAIN_COUNT, "every domain looks different");

static void put_patterns(FILE *stream, const char *name)
{
    fputs("<defs>\n", stream);
    for (int i = 0; i < SG_DOMAIN_COUNT; i++)
        fprintf(stream,
                "<pattern id=\"%s%s\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">"
                "<rect width=\"8\" height=\"8\" fill=\"%s\"/><path d=\"%s\" stroke=\"#666\" "
                "stroke-width=\"0.8\"/></pattern>\n",
                name, model_domain_name[i], hatchings[i].ground, hatchings[i].lines[0] ? hatchings[i].lines : "M0 0");
    fputs("</defs>\n", stream);
}

/* ---- one field --------------------------------------------------------------------------------------------------- */

typedef uint64_t value_of(const struct sg_sample *sample, int domain);

static uint64_t usable_of(const struct sg_sample *sample, int unused)
{
    (void)unused;
    return sample->usable_bytes;
}

static uint64_t reserve_of(const struct sg_sample *sample, int unused)
{
    (void)unused;
    return sample->reserve_bytes;
}

static uint64_t floor_of(const struct sg_sample *sample, int unused)
{
    (void)unused;
    return sample->floor_bytes;
}

static uint64_t device_of(const struct sg_sample *sample, int unused)
{
    (void)unused;
    return sample->live_bytes[SG_DOMAIN_DEVICE];
}

static uint64_t live_of(const struct sg_sample *sample, int domain)
{
    return sample->live_bytes[domain];
}

/* Returns the sum of the domains from this one on: the last domain is at the bottom. */
static uint64_t stacked_of(const struct sg_sample *sample, int domain)
{
    uint64_t sum = 0;
    for (int i = domain; i < SG_DOMAIN_COUNT; i++)
        sum += sample->live_bytes[i];
    return sum;
}

static uint64_t highest(const struct model_timeline *timeline, value_of *value, int domain)
{
    uint64_t most = 0;
    for (size_t i = 0; i < timeline->count; i++) {
        uint64_t bytes = value(&timeline->samples[i], domain);
        most = bytes != SG_UNKNOWN && bytes > most ? bytes : most;
    }
    return most;
}

static int64_t end_of(const struct plot_field *field, const struct model_timeline *timeline, size_t i)
{
    return i + 1 < timeline->count ? timeline->samples[i + 1].time_ns : field->end_ns;
}

/* Draws a line of steps: a sample holds until the next one. Unknown values are gaps. */
static void put_steps(const struct plot_field *field, const struct model_timeline *timeline, value_of *value,
                      const char *attributes)
{
    bool is_drawing = false;
    fputs("<path fill=\"none\" d=\"", field->stream);
    for (size_t i = 0; i < timeline->count; i++) {
        uint64_t bytes = value(&timeline->samples[i], 0);
        double x = plot_x(field, timeline->samples[i].time_ns), end = plot_x(field, end_of(field, timeline, i));
        if (bytes == SG_UNKNOWN) {
            is_drawing = false;
            continue;
        }
        if (!is_drawing)
            fprintf(field->stream, "M%.1f %.1fH%.1f", x, plot_y(field, bytes), end);
        else
            fprintf(field->stream, "V%.1fH%.1f", plot_y(field, bytes), end);
        is_drawing = true;
    }
    fprintf(field->stream, "\" %s/>\n", attributes);
}

/* Draws the area between the sums without and with the domain. */
static void put_area(const struct plot_field *field, const struct model_timeline *timeline, int domain)
{
    fprintf(field->stream, "<path fill=\"url(#%s%s)\" stroke=\"#555\" stroke-width=\"0.5\" d=\"", field->name,
            model_domain_name[domain]);
    for (size_t i = 0; i < timeline->count; i++)
        fprintf(field->stream, "%c%.1f %.1fH%.1f", i == 0 ? 'M' : 'L', plot_x(field, timeline->samples[i].time_ns),
                plot_y(field, stacked_of(&timeline->samples[i], domain)), plot_x(field, end_of(field, timeline, i)));
    for (size_t i = timeline->count; i-- > 0;)
        fprintf(field->stream, "L%.1f %.1fH%.1f", plot_x(field, end_of(field, timeline, i)),
                plot_y(field, stacked_of(&timeline->samples[i], domain + 1)),
                plot_x(field, timeline->samples[i].time_ns));
    fputs("z\"/>\n", field->stream);
}

/* ---- legends ----------------------------------------------------------------------------------------------------- */

struct legend {
    FILE *stream;
    const char *name;
    double x, y;
};

static void begin_legend(struct legend *legend, const struct plot_field *field, double y, const char *title)
{
    *legend = (struct legend){field->stream, field->name, LEFT, y};
    report_svg_text(field->stream, legend->x, y, "font-weight=\"bold\"", title);
    legend->x += report_svg_width(title) * 1.15 + 20;
}

static void end_item(struct legend *legend, const char *words)
{
    report_svg_text(legend->stream, legend->x + 28, legend->y, "", words);
    legend->x += 28 + report_svg_width(words) + 14;
}

static void put_area_item(struct legend *legend, int domain)
{
    fprintf(legend->stream,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"22\" height=\"12\" fill=\"url(#%s%s)\" stroke=\"#555\"/>\n", legend->x,
            legend->y - 10, legend->name, model_domain_name[domain]);
    end_item(legend, model_domain_name[domain]);
}

static void put_line_item(struct legend *legend, const char *attributes, const char *words, uint64_t bytes)
{
    char size[TEXT_SIZE_CAPACITY];
    char *text = text_format("%s %s", words, text_size(size, bytes));
    fprintf(legend->stream, "<path d=\"M%.1f %.1fh22\" fill=\"none\" %s/>\n", legend->x, legend->y - 4, attributes);
    end_item(legend, text);
}

static void put_peak(struct legend *legend, const struct plot_field *field, const struct model_process *process)
{
    char size[TEXT_SIZE_CAPACITY];
    if (process->peak_ns < field->begin_ns || process->peak_ns > field->end_ns)
        return;
    const double places[2][2] = {{plot_x(field, process->peak_ns), plot_y(field, process->peak_bytes)},
                                 {legend->x + 11, legend->y - 4}};
    for (int i = 0; i < 2; i++)
        fprintf(legend->stream,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#fff\" stroke=\"#000\" stroke-width=\"1.5\"/>\n",
                places[i][0], places[i][1]);
    char *text = text_format("peak %s", text_size(size, process->peak_bytes));
    end_item(legend, text);
}

/* ---- the drawing ------------------------------------------------------------------------------------------------- */

static void put_titles(FILE *stream, const struct model_process *process)
{
    char end[MODEL_END_TEXT], lasted[TEXT_TIME_CAPACITY];
    char *command = report_svg_fit(process->command[0] ? process->command : "-", (RIGHT - 24) / 1.6);
    char *job = report_svg_fit(process->job[0] ? process->job : "-", process->is_observing ? 180 : 300);
    bool has_lasted = process->ended_ns > process->started_ns && process->started_ns > 0;
    char *life = text_format("process %" PRIu32 " of job %s, %s%s%s%s", model_process_number(process), job,
                             model_end_text(process, end), has_lasted ? ", ran " : "",
                             has_lasted ? text_duration(lasted, process->ended_ns - process->started_ns) : "",
                             process->is_observing ? "; observe: nothing was refused" : "");
    report_svg_text(stream, 24, 28, "font-size=\"16\" font-weight=\"bold\"", command);
    report_svg_text(stream, 24, 48, "font-size=\"12\"", life);
}

/* Sets the range of times: from the start of the process, if known, or the first sample, to the last sample. */
static void set_span(struct plot_field *field, const struct model_process *process,
                     const struct model_timeline *timeline)
{
    int64_t first_ns = timeline->samples[0].time_ns;
    field->begin_ns = process->started_ns > 0 && process->started_ns < first_ns ? process->started_ns : first_ns;
    field->end_ns = timeline->samples[timeline->count - 1].time_ns;
    if (field->end_ns - field->begin_ns < 1000000) /* there is a single sample */
        field->end_ns = field->begin_ns + 1000000;
}

static void put_live(const struct plot_field *field, const struct model_process *process,
                     const struct model_timeline *timeline, double legend_y)
{
    struct legend legend;
    begin_legend(&legend, field, legend_y, "Live bytes of the process");
    plot_size_axis(field);
    for (int i = SG_DOMAIN_COUNT - 1; i >= 0; i--) {
        if (highest(timeline, live_of, i) == 0)
            continue;
        put_area(field, timeline, i);
        put_area_item(&legend, i);
    }
    put_peak(&legend, field, process);
}

static void put_machine(const struct plot_field *field, const struct model_timeline *timeline, double legend_y)
{
    static const char usable[] = "stroke=\"#000\" stroke-width=\"1.5\"";
    static const char reserve[] = "stroke=\"#a40\" stroke-width=\"1.5\" stroke-dasharray=\"8 3\"";
    static const char floor[] = "stroke=\"#b00\" stroke-width=\"1.5\" stroke-dasharray=\"2 2\"";
    const struct sg_sample *last = &timeline->samples[timeline->count - 1];
    struct legend legend;
    begin_legend(&legend, field, legend_y, "Memory of the machine");
    plot_size_axis(field);
    put_steps(field, timeline, floor_of, floor);
    put_steps(field, timeline, reserve_of, reserve);
    put_steps(field, timeline, usable_of, usable);
    put_line_item(&legend, usable, "usable, in the end", last->usable_bytes);
    put_line_item(&legend, reserve, "reserve", last->reserve_bytes);
    put_line_item(&legend, floor, "floor", last->floor_bytes);
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

/* Draws the devices. Memory that other processes hold there is not in this time line. */
static void put_devices(const struct plot_field *field, const struct model_timeline *timeline,
                        const struct devices *devices, double legend_y)
{
    enum { TITLE_WIDTH = 200 };
    static const char live[] = "stroke=\"#000\" stroke-width=\"1.5\"";
    static const char total[] = "stroke=\"#333\" stroke-width=\"1.5\" stroke-dasharray=\"12 2 2 2\"";
    static const char least[] = "stroke=\"#a40\" stroke-width=\"1.5\" stroke-dasharray=\"8 3\"";
    const uint64_t most_bytes = bytes_less(devices->total_bytes, devices->reserve_bytes);
    const char *stripes[] = {total, least};
    const uint64_t levels[] = {devices->total_bytes, most_bytes};
    struct legend legend;
    char *name =
        devices->count > 1 ? text_format("%zu devices, together", devices->count) : text_printable(devices->name, true);
    char *title = report_svg_fit(name, TITLE_WIDTH);
    begin_legend(&legend, field, legend_y, title[0] != '\0' ? title : "Device");
    plot_size_axis(field);
    for (size_t i = 0; i < 2; i++)
        fprintf(field->stream, "<path fill=\"none\" d=\"M%.1f %.1fH%.1f\" %s/>\n", field->left,
                plot_y(field, levels[i]), field->right, stripes[i]);
    put_steps(field, timeline, device_of, live);
    put_line_item(&legend, live, "this process, in the end",
                  timeline->samples[timeline->count - 1].live_bytes[SG_DOMAIN_DEVICE]);
    put_line_item(&legend, total, "total", devices->total_bytes);
    put_line_item(&legend, least, "less reserve", most_bytes);
}

/* Returns the field below. */
static struct plot_field field_below(const struct plot_field *field, uint64_t most_bytes)
{
    struct plot_field below = *field;
    below.top = field->bottom + 40;
    below.bottom = below.top + MACHINE_HEIGHT;
    below.most_bytes = plot_scale_top(most_bytes);
    return below;
}

static void begin_drawing(FILE *stream, const struct model_process *process, double height, const char *name)
{
    if (name == NULL)
        fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", stream);
    fprintf(stream,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\" "
            "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"11\" fill=\"#111\"",
            WIDTH, height, WIDTH, height);
    if (name != NULL)
        fprintf(stream, " role=\"img\"><title>Memory of process %" PRIu32 " over time</title",
                model_process_number(process));
    fputs(">\n", stream);
    put_patterns(stream, name != NULL ? name : "");
    fputs("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n", stream);
}

void report_plot(FILE *stream, const struct model_process *process, const struct model_timeline *timeline,
                 const char *name)
{
    struct plot_field field[PLOT_FIELDS] = {
        {.stream = stream, .name = name != NULL ? name : "", .left = LEFT, .right = RIGHT, .top = 86}};
    struct plot_field *live = field;
    const struct devices devices = devices_of(process);
    size_t fields = devices.count > 0 ? 3 : 2;
    set_span(live, process, timeline);
    live->top += plot_strips_height(process);
    live->bottom = live->top + LIVE_HEIGHT;
    live->most_bytes = plot_scale_top(bytes_max(highest(timeline, stacked_of, 0), process->peak_bytes));
    field[1] = field_below(live, bytes_max(highest(timeline, usable_of, 0), highest(timeline, reserve_of, 0)));
    field[2] = field_below(&field[1], bytes_max(highest(timeline, device_of, 0), devices.total_bytes));
    begin_drawing(stream, process, field[fields - 1].bottom + 52, name);
    put_titles(stream, process);
    put_live(live, process, timeline, 74);
    put_machine(&field[1], timeline, field[1].top - 12);
    if (devices.count > 0)
        put_devices(&field[2], timeline, &devices, field[2].top - 12);
    plot_strips(live, fields, process);
    plot_time_axis(&field[fields - 1], field[fields - 1].bottom);
    fputs("</svg>\n", stream);
}
