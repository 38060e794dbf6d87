/*
 * machine.c - the machine as a bar and its legend.
 *
 *   [guarded][other use][promised][room][kept: reserve, of which floor]      room = what admission would grant now
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "report/render.h"
#include "common/text.h"

/* How a part looks. */
static const struct look {
    const char *glyph; /* one column */
    const char *ascii_glyph;
    enum report_colour colour;
} looks[] = {
    [REPORT_PART_GUARDED] = {"█", "#", REPORT_GREEN},   [REPORT_PART_OTHER] = {"▓", "%", REPORT_CYAN},
    [REPORT_PART_PROMISED] = {"▒", "+", REPORT_YELLOW}, [REPORT_PART_ROOM] = {"·", ".", REPORT_PLAIN},
    [REPORT_PART_RESERVE] = {"╱", "/", REPORT_DIM},     [REPORT_PART_FLOOR] = {"╳", "x", REPORT_RED},
};

static size_t cells_of(uint64_t bytes, uint64_t total, size_t width)
{
    return total == 0 ? 0 : (size_t)((double)bytes / (double)total * (double)width + 0.5);
}

static void put_bar(const struct report_machine *machine, const struct report_part part[REPORT_PART_COUNT],
                    const struct report_style *style)
{
    size_t width = report_min(style->columns, 120) - 2, cell = 0;
    uint64_t bytes = 0;
    fputc('[', style->stream);
    for (int i = 0; i < REPORT_PART_COUNT; i++) {
        if (i == REPORT_PART_RESERVE) { /* at the right end */
            bytes = machine->total_bytes - part[REPORT_PART_RESERVE].shown_bytes - part[REPORT_PART_FLOOR].shown_bytes;
            for (size_t end = cells_of(bytes, machine->total_bytes, width); cell < end; cell++)
                fputc(' ', style->stream);
        }
        bytes += part[i].shown_bytes;
        fputs(report_colour_on(style, looks[i].colour), style->stream);
        for (size_t end = cells_of(bytes, machine->total_bytes, width); cell < end && cell < width; cell++)
            fputs(style->is_utf8 ? looks[i].glyph : looks[i].ascii_glyph, style->stream);
        fputs(report_colour_off(style, looks[i].colour), style->stream);
    }
    fputs("]\n", style->stream);
}

static void put_legend(const struct report_part part[REPORT_PART_COUNT], const struct report_style *style)
{
    size_t column = 0;
    for (int i = 0; i < REPORT_PART_COUNT; i++) {
        char size[REPORT_SIZE_TEXT];
        if (part[i].bytes == 0 && (i == REPORT_PART_PROMISED || i == REPORT_PART_FLOOR))
            continue;
        char *piece = report_text_format("%s %s %s", style->is_utf8 ? looks[i].glyph : looks[i].ascii_glyph,
                                         report_part_name[i], report_size_text(size, part[i].bytes));
        bool is_full = i == REPORT_PART_ROOM && part[i].bytes == 0;
        report_flow(style, &column, "  ", is_full ? REPORT_RED : looks[i].colour, piece);
        free(piece);
    }
    fputc('\n', style->stream);
}

/* One piece of a line, in words and bytes; nothing where the bytes are unknown. */
static void put_figure(const struct report_style *style, size_t *column, const char *word, uint64_t bytes)
{
    char size[REPORT_SIZE_TEXT];
    if (bytes == SG_UNKNOWN)
        return;
    char *piece = report_text_format("%s %s", word, report_size_text(size, bytes));
    report_flow(style, column, ", ", REPORT_PLAIN, piece);
    free(piece);
}

static void put_headline(const struct report_machine *machine, const struct report_style *style)
{
    char size[REPORT_SIZE_TEXT], used[REPORT_SIZE_TEXT];
    size_t column = 0;
    char *piece = report_text_format("machine %s", report_size_text(size, machine->total_bytes));
    report_flow(style, &column, "", REPORT_BOLD, piece);
    free(piece);
    if (machine->unified == 1)
        report_flow(style, &column, ", ", REPORT_PLAIN, "unified memory");
    put_figure(style, &column, "usable", machine->usable_bytes);
    if (machine->swap_total_bytes == 0)
        report_flow(style, &column, ", ", REPORT_PLAIN, "no swap");
    else if (machine->swap_total_bytes != SG_UNKNOWN) {
        piece = report_text_format("swap %s of %s", report_size_text(used, machine->swap_used_bytes),
                                   report_size_text(size, machine->swap_total_bytes));
        report_flow(style, &column, ", ", REPORT_PLAIN, piece);
        free(piece);
    }
    put_figure(style, &column, "cgroup limit", machine->cgroup_limit_bytes);
    fputc('\n', style->stream);
}

/* The others cannot be summed up, so the sums above are of these programs alone. */
static void put_neighbours(const struct report *report, const struct report_style *style)
{
    size_t column = 0;
    if (report->neighbour_count == 0)
        return;
    report_flow(style, &column, "", REPORT_YELLOW, "guarded programs of other users are not counted here:");
    for (size_t i = 0; i < REPORT_NEIGHBOUR_ROOM && report->neighbours[i] != NULL; i++) {
        char *name = report_text_printable(report->neighbours[i], style->is_utf8);
        report_text_shorten(name, style->columns - 4);
        report_flow(style, &column, i == 0 ? " " : ", ", REPORT_PLAIN, name);
        free(name);
    }
    if (report->neighbour_count > REPORT_NEIGHBOUR_ROOM) {
        char *rest = report_text_format("%zu more", report->neighbour_count - REPORT_NEIGHBOUR_ROOM);
        report_flow(style, &column, ", ", REPORT_PLAIN, rest);
        free(rest);
    }
    fputc('\n', style->stream);
}

static void put_unaccounted(const struct report_machine *machine, const struct report_style *style)
{
    char size[REPORT_SIZE_TEXT];
    if (machine->unaccounted_bytes == SG_UNKNOWN || machine->unaccounted_bytes == 0)
        return;
    fprintf(style->stream, "unaccounted %s: CUDA contexts and the like, taken without asking\n",
            report_size_text(size, machine->unaccounted_bytes));
}

static void put_devices(const struct report_machine *machine, const struct report_style *style)
{
    for (int i = 0; i < SG_DEVICE_ROOM; i++) {
        char live[REPORT_SIZE_TEXT], total[REPORT_SIZE_TEXT];
        const struct report_device *device = &machine->device[i];
        if (!device->is_known)
            continue;
        char *name = report_text_printable(device->name, style->is_utf8);
        fprintf(style->stream, "device %d %s: %s of %s held by guarded processes\n", i, name,
                report_size_text(live, device->live_bytes), report_size_text(total, device->total_bytes));
        free(name);
    }
}

/* Nothing where the kernel did not say. */
static void put_picture(const struct report_machine *machine, const struct report_style *style)
{
    struct report_part part[REPORT_PART_COUNT];
    if (report_machine_parts(machine, part)) {
        put_bar(machine, part, style);
        put_legend(part, style);
    }
}

void report_render_machine(const struct report *report, const struct report_style *style)
{
    const struct report_machine *machine = &report->machine;
    put_headline(machine, style);
    put_picture(machine, style);
    put_unaccounted(machine, style);
    put_devices(machine, style);
    put_neighbours(report, style);
}
