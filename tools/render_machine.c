/*
 * render_machine.c - the machine as a bar and its legend.
 *
 *   [guarded][other use][promised][room][kept: reserve, of which floor]      room = what admission would grant now
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "render.h"
#include "text.h"

struct part {
    const char *word;
    const char *glyph; /* one column */
    const char *ascii_glyph;
    enum report_colour colour;
    uint64_t bytes;
    uint64_t cells_bytes; /* what the bar shows of it, and of nothing else */
};

enum { PART_GUARDED, PART_OTHER, PART_PROMISED, PART_ROOM, PART_RESERVE, PART_FLOOR, PART_COUNT };

static uint64_t known(uint64_t bytes)
{
    return bytes == SG_UNKNOWN ? 0 : bytes;
}

/* What the kernel calls used is guarded as far as guarded bytes are there already, and other people's beyond that. */
static void fill_parts(const struct report_machine *machine, struct part part[PART_COUNT])
{
    uint64_t used = report_less(machine->total_bytes, machine->available_bytes);
    uint64_t arrived = report_less(machine->guarded_bytes, machine->promised_bytes);
    uint64_t reserve = known(machine->reserve_bytes);
    part[PART_GUARDED].bytes = report_min(arrived, used);
    part[PART_OTHER].bytes = used - part[PART_GUARDED].bytes;
    part[PART_PROMISED].bytes = machine->promised_bytes;
    part[PART_ROOM].bytes = report_less(machine->usable_bytes, reserve);
    part[PART_RESERVE].bytes = reserve;
    part[PART_FLOOR].bytes = known(machine->floor_bytes);
    /* The bar is the machine's: what a cgroup withholds stays blank, and a reserve already eaten into is shown short. */
    uint64_t left = machine->total_bytes;
    static const int order[] = {PART_GUARDED, PART_OTHER, PART_PROMISED, PART_FLOOR, PART_RESERVE, PART_ROOM};
    for (size_t i = 0; i < PART_COUNT; i++) {
        uint64_t inside = order[i] == PART_RESERVE ? part[PART_FLOOR].bytes : 0;
        part[order[i]].cells_bytes = report_min(report_less(part[order[i]].bytes, inside), left);
        left -= part[order[i]].cells_bytes;
    }
}

static size_t cells_of(uint64_t bytes, uint64_t total, size_t width)
{
    return total == 0 ? 0 : (size_t)((double)bytes / (double)total * (double)width + 0.5);
}

static void put_bar(const struct report_machine *machine, const struct part part[PART_COUNT],
                    const struct report_style *style)
{
    size_t width = report_min(style->columns, 120) - 2, cell = 0;
    uint64_t bytes = 0;
    fputc('[', style->stream);
    for (int i = 0; i < PART_COUNT; i++) {
        if (i == PART_RESERVE) { /* at the right end */
            bytes = machine->total_bytes - part[PART_RESERVE].cells_bytes - part[PART_FLOOR].cells_bytes;
            for (size_t end = cells_of(bytes, machine->total_bytes, width); cell < end; cell++)
                fputc(' ', style->stream);
        }
        bytes += part[i].cells_bytes;
        fputs(report_colour_on(style, part[i].colour), style->stream);
        for (size_t end = cells_of(bytes, machine->total_bytes, width); cell < end && cell < width; cell++)
            fputs(style->is_utf8 ? part[i].glyph : part[i].ascii_glyph, style->stream);
        fputs(report_colour_off(style, part[i].colour), style->stream);
    }
    fputs("]\n", style->stream);
}

static void put_legend(const struct part part[PART_COUNT], const struct report_style *style)
{
    size_t column = 0;
    for (int i = 0; i < PART_COUNT; i++) {
        char size[REPORT_SIZE_TEXT];
        if (part[i].bytes == 0 && (i == PART_PROMISED || i == PART_FLOOR))
            continue;
        char *piece = report_text_format("%s %s %s", style->is_utf8 ? part[i].glyph : part[i].ascii_glyph, part[i].word,
                                         report_size_text(size, part[i].bytes));
        bool is_full = i == PART_ROOM && part[i].bytes == 0;
        report_flow(style, &column, "  ", is_full ? REPORT_RED : part[i].colour, piece);
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
    struct part part[PART_COUNT] = {
        [PART_GUARDED] = {"guarded", "█", "#", REPORT_GREEN, 0, 0},
        [PART_OTHER] = {"other", "▓", "%", REPORT_CYAN, 0, 0},
        [PART_PROMISED] = {"promised", "▒", "+", REPORT_YELLOW, 0, 0},
        [PART_ROOM] = {"room", "·", ".", REPORT_PLAIN, 0, 0},
        [PART_RESERVE] = {"reserve", "╱", "/", REPORT_DIM, 0, 0},
        [PART_FLOOR] = {"floor", "╳", "x", REPORT_RED, 0, 0},
    };
    if (machine->total_bytes == SG_UNKNOWN || machine->available_bytes == SG_UNKNOWN || machine->total_bytes == 0)
        return;
    fill_parts(machine, part);
    put_bar(machine, part, style);
    put_legend(part, style);
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
