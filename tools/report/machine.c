/*
 * machine.c - prints the machine as a bar with a legend.
 *
 *   [guarded][other use][promised][room][reserve, with the floor at its end]      room: what admission would grant now
 */
#include <inttypes.h>

#include "report/report.h"
#include "sparkguard_options.h"
#include "common/bytes.h"
#include "common/text.h"

/* How a part of the bar is drawn. */
static const struct appearance {
    const char *glyph; /* one column */
    const char *ascii_glyph;
    enum style_colour colour;
} appearances[] = {
    [MODEL_PART_GUARDED] = {"█", "#", STYLE_GREEN},   [MODEL_PART_OTHER] = {"▓", "%", STYLE_CYAN},
    [MODEL_PART_PROMISED] = {"▒", "+", STYLE_YELLOW}, [MODEL_PART_CLAIMED] = {"░", "-", STYLE_YELLOW},
    [MODEL_PART_CAPACITY] = {"·", ".", STYLE_PLAIN},  [MODEL_PART_RESERVE] = {"╱", "/", STYLE_DIM},
    [MODEL_PART_FLOOR] = {"╳", "x", STYLE_RED},
};

static size_t cells_of(uint64_t bytes, uint64_t total, size_t width)
{
    return total == 0 ? 0 : (size_t)((double)bytes / (double)total * (double)width + 0.5);
}

static void put_machine_bar(const struct model_machine *machine, const struct model_part part[MODEL_PART_COUNT],
                            const struct style *style)
{
    size_t width = bytes_min(style->columns, 120) - 2, cell = 0;
    uint64_t bytes = 0;
    fputc('[', style->stream);
    for (int i = 0; i < MODEL_PART_COUNT; i++) {
        if (i == MODEL_PART_RESERVE) { /* drawn at the right end */
            bytes = machine->total_bytes - part[MODEL_PART_RESERVE].shown_bytes - part[MODEL_PART_FLOOR].shown_bytes;
            for (size_t end = cells_of(bytes, machine->total_bytes, width); cell < end; cell++)
                fputc(' ', style->stream);
        }
        bytes += part[i].shown_bytes;
        fputs(style_colour_on(style, appearances[i].colour), style->stream);
        for (size_t end = cells_of(bytes, machine->total_bytes, width); cell < end && cell < width; cell++)
            fputs(style->is_utf8 ? appearances[i].glyph : appearances[i].ascii_glyph, style->stream);
        fputs(style_colour_off(style, appearances[i].colour), style->stream);
    }
    fputs("]\n", style->stream);
}

static void put_legend(const struct model_part part[MODEL_PART_COUNT], const struct style *style)
{
    size_t column = 0;
    for (int i = 0; i < MODEL_PART_COUNT; i++) {
        if (part[i].bytes == 0 && (i == MODEL_PART_PROMISED || i == MODEL_PART_CLAIMED || i == MODEL_PART_FLOOR))
            continue;
        char *piece = text_format("%s %s %s", style->is_utf8 ? appearances[i].glyph : appearances[i].ascii_glyph,
                                  model_part_name[i], text_size(part[i].bytes));
        bool is_full = i == MODEL_PART_CAPACITY && part[i].bytes == 0;
        style_flow(style, &column, "  ", is_full ? STYLE_RED : appearances[i].colour, piece);
    }
    fputc('\n', style->stream);
}

/* Prints one piece of a line, in words and bytes; nothing if the bytes are unknown. */
static void put_figure(const struct style *style, size_t *column, const char *word, uint64_t bytes)
{
    if (bytes == SG_UNKNOWN)
        return;
    style_flow(style, column, ", ", STYLE_PLAIN, text_format("%s %s", word, text_size(bytes)));
}

static void put_headline(const struct model_machine *machine, const struct style *style)
{
    size_t column = 0;
    char *piece = text_format("machine %s", text_size(machine->total_bytes));
    style_flow(style, &column, "", STYLE_BOLD, piece);
    if (machine->unified == 1)
        style_flow(style, &column, ", ", STYLE_PLAIN, "unified memory");
    put_figure(style, &column, "usable", machine->usable_bytes);
    if (machine->swap_total_bytes == 0)
        style_flow(style, &column, ", ", STYLE_PLAIN, "no swap");
    else if (machine->swap_total_bytes != SG_UNKNOWN) {
        piece = text_format("swap %s of %s", text_size(machine->swap_used_bytes), text_size(machine->swap_total_bytes));
        style_flow(style, &column, ", ", STYLE_PLAIN, piece);
    }
    put_figure(style, &column, "cgroup limit", machine->cgroup_limit_bytes);
    fputc('\n', style->stream);
}

/* The figures of other directories are unknown, so the sums above exclude them. */
static void put_other_directories(const struct model *model, const struct style *style)
{
    size_t column = 0;
    if (model->own_directory != NULL)
        fprintf(style->stream, "%syour own guarded programs are not counted here:%s %s\n",
                style_colour_on(style, STYLE_YELLOW), style_colour_off(style, STYLE_YELLOW), model->own_directory);
    if (model->other_directory_count == 0)
        return;
    style_flow(style, &column, "", STYLE_YELLOW, "guarded programs of other users are not counted here:");
    for (size_t i = 0; i < MODEL_OTHER_DIRECTORY_CAPACITY && model->other_directories[i] != NULL; i++) {
        char *name = text_printable(model->other_directories[i], style->is_utf8);
        bool is_last = i + 1 == model->other_directory_count;
        text_shorten(name, style->columns - 5);
        style_flow(style, &column, " ", STYLE_PLAIN, text_format("%s%s", name, is_last ? "" : ","));
    }
    if (model->other_directory_count > MODEL_OTHER_DIRECTORY_CAPACITY) {
        char *rest = text_format("%zu more", model->other_directory_count - MODEL_OTHER_DIRECTORY_CAPACITY);
        style_flow(style, &column, " ", STYLE_PLAIN, rest);
    }
    fputc('\n', style->stream);
}

static void put_unaccounted(const struct model_machine *machine, const struct style *style)
{
    if (machine->unaccounted_bytes == SG_UNKNOWN || machine->unaccounted_bytes == 0)
        return;
    fprintf(style->stream, "unaccounted %s: CUDA contexts and the like, taken without a request\n",
            text_size(machine->unaccounted_bytes));
}

static void put_device_lines(const struct model_machine *machine, const struct style *style)
{
    for (int i = 0; i < SG_DEVICE_CAPACITY; i++) {
        const struct model_device *device = &machine->device[i];
        if (!device->is_known)
            continue;
        char *name = text_printable(device->name, style->is_utf8);
        fprintf(style->stream, "device %d %s: %s of %s held by guarded processes\n", i, name,
                text_size(device->live_bytes), text_size(device->total_bytes));
    }
}

/* Returns how a claim is named: by its job; without a name of the job by the command, or by its process's number.
 * Behind the job of a claim that waits the command is told, since that does not run yet. */
static char *name_of_claim(const struct model_claim *claim, const char *size, const struct style *style)
{
    char *job = claim->job != NULL ? text_printable(claim->job, style->is_utf8) : NULL;
    char *command = claim->command != NULL ? text_printable(claim->command, style->is_utf8) : NULL;
    if (job != NULL)
        text_shorten(job, style->columns / 2);
    if (command != NULL)
        text_shorten(command, style->columns / 2);
    if (job != NULL && command != NULL && claim->is_queued)
        return text_format("%s %s (%s)", job, size, command);
    if (job == NULL && command == NULL)
        return text_format("of process %" PRIu32 " %s", claim->pid, size);
    return text_format("%s %s", job != NULL ? job : command, size);
}

/* Prints one line with the granted claims and the queue in its order, the first of each. */
static void put_claims(const struct model *model, const struct style *style)
{
    enum { SHOWN = 6 };
    size_t column = 0, shown[2] = {0}, hidden = 0;
    for (size_t i = 0; i < model->claims.count; i++) {
        const struct model_claim *claim = &model->claims.at[i];
        if (shown[claim->is_queued]++ >= SHOWN) {
            hidden++;
            continue;
        }
        if (shown[claim->is_queued] == 1)
            style_flow(style, &column, column == 0 ? "" : "; ", STYLE_BOLD, claim->is_queued ? "queue:" : "claims:");
        style_flow(style, &column, shown[claim->is_queued] == 1 ? " " : ", ",
                   claim->is_queued ? STYLE_YELLOW : STYLE_PLAIN, name_of_claim(claim, text_size(claim->bytes), style));
    }
    if (hidden > 0)
        style_flow(style, &column, ", ", STYLE_PLAIN, text_format("and %zu more", hidden));
    if (column > 0)
        fputc('\n', style->stream);
}

/* Prints a line for each of the first containers whose promises count: what they say of themselves. */
static void put_told(const struct model *model, const struct style *style)
{
    enum { SHOWN = 6 };
    size_t shown = 0;
    for (size_t i = 0; i < model->told_count && i < MODEL_TOLD_CAPACITY; i++) {
        const struct model_told *told = &model->told[i];
        if (told->promised_bytes == 0 || shown++ >= SHOWN)
            continue;
        char *name = text_printable(told->name, style->is_utf8);
        text_shorten(name, style->columns / 3);
        bool has_limit = told->limit_bytes != SG_UNKNOWN;
        fprintf(style->stream, "container %s: %s promised, holds %s%s%s\n", name, text_size(told->promised_bytes),
                text_size(told->live_bytes), has_limit ? ", limit " : "",
                has_limit ? text_size(told->limit_bytes) : "");
    }
    if (shown > SHOWN)
        fprintf(style->stream, "and %zu more containers with promises\n", shown - SHOWN);
}

/* Prints nothing if the kernel's figures are unknown. */
static void put_picture(const struct model_machine *machine, const struct style *style)
{
    struct model_part part[MODEL_PART_COUNT];
    if (model_machine_parts(machine, part)) {
        put_machine_bar(machine, part, style);
        put_legend(part, style);
    }
}

void report_render_machine(const struct model *model, const struct style *style)
{
    const struct model_machine *machine = &model->machine;
    put_headline(machine, style);
    put_picture(machine, style);
    put_claims(model, style);
    put_told(model, style);
    put_unaccounted(machine, style);
    put_device_lines(machine, style);
    put_other_directories(model, style);
}
