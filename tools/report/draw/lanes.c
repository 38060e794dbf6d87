/*
 * lanes.c - draws the processes of a job below each other: a row for each band, with its life as a bar that has the
 * fill of the band, its phases inside the bar, and its refusals as marks on it. The rows are the legend of the bands.
 */
#include <inttypes.h>

#include "report/draw/draw.h"
#include "report/draw/svg.h"
#include "common/text.h"

enum { ROW_HEIGHT = 35, BAR_HEIGHT = 13, SWATCH = 14 };

/* Halo around texts that stand on a fill. */
static const char on_fill[] = "font-size=\"10\" paint-order=\"stroke\" stroke=\"#fff\" stroke-width=\"2.5\"";

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Returns the name of a single process as far as it fits: its peak stays whole, and then its end if the command keeps
 * enough space. */
static char *process_name(const struct bands_band *band, double width)
{
    enum { COMMAND_LEAST = 90 };
    const struct model_process *process = band->process;
    char end[MODEL_END_TEXT];
    const char *outcome = process->state == SG_STATE_RUNNING ? "" : model_end_text(process, end);
    char *peak = text_format(", peak %s", text_size(process->peak_bytes));
    char *more = text_format("%s%s%s", outcome[0] ? ", " : "", outcome, band->has_timeline ? "" : "; no time line");
    char *pid = text_format("%" PRIu32 " ", model_process_number(process));
    double left = width - svg_width(pid) - svg_width(peak);
    bool has_space = left - svg_width(more) >= COMMAND_LEAST;
    char *command =
        svg_fit(process->command[0] ? text_command(process->command) : "-", has_space ? left - svg_width(more) : left);
    return text_format("%s%s%s%s", pid, command, peak, has_space ? more : "");
}

static char *band_name(const struct bands_band *band, double width)
{
    if (band->process_count == 1)
        return process_name(band, width);
    char *whole = text_format(band->has_timeline ? "%zu other processes, peaks up to %s"
                                                 : "%zu without a time line, by their peaks, up to %s",
                              band->process_count, text_size(band->process->peak_bytes));
    return svg_fit(whole, width);
}

static void put_name(const struct draw_field *field, const struct bands *bands, size_t band, double top)
{
    fprintf(field->stream, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"10\" stroke=\"#555\" ", field->left,
            top + 2, SWATCH);
    draw_bands_fill(field->stream, field->name, bands, band,
                    bands->band[band].has_timeline ? BANDS_RECORDED : BANDS_NOT_RECORDED);
    fputs("/>\n", field->stream);
    char *name = band_name(&bands->band[band], field->right - field->left - SWATCH - 6);
    svg_text(field->stream, field->left + SWATCH + 6, top + 11, "", name);
}

/* ---- bars -------------------------------------------------------------------------------------------------------- */

static void put_bar_title(FILE *stream, const struct bands_band *band, enum bands_record record)
{
    svg_title(stream, text_format("from %s to %s%s", text_time_local(band->begin_ns), text_time_local(band->end_ns),
                                  record == BANDS_RECORDED ? "" : "; not recorded here"));
}

static void put_lane_bar(const struct draw_field *field, const struct bands *bands, size_t band, double top)
{
    for (size_t s = 0; s < bands->span_count; s++) {
        const struct bands_span *span = &bands->span[s];
        for (size_t k = 0, count; k < span->count; k += count) {
            enum bands_record record = bands->band[band].cell[span->first + k].record;
            count = draw_bands_alike(&bands->band[band], span, k);
            if (record == BANDS_ABSENT)
                continue;
            double x = draw_bands_x(field, bands, s, k);
            fprintf(field->stream, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" stroke=\"#777\" ", x, top,
                    draw_bands_x(field, bands, s, k + count) - x, BAR_HEIGHT);
            draw_bands_fill(field->stream, field->name, bands, band, record);
            fputc('>', field->stream);
            put_bar_title(field->stream, &bands->band[band], record);
            fputs("</rect>\n", field->stream);
        }
    }
}

static bool is_drawn(const struct bands *bands, int64_t time_ns)
{
    return time_ns >= bands->span[0].begin_ns;
}

static void put_lane_phases(const struct draw_field *field, const struct bands *bands, const struct bands_band *band,
                            double top)
{
    const struct model_process *process = band->process;
    for (size_t i = 0; i < process->phase_count; i++) {
        const struct model_phase *phase = &process->phases[i];
        int64_t end_ns = i + 1 < process->phase_count ? phase[1].time_ns : band->end_ns;
        double x = draw_x(field, phase->time_ns), width = draw_x(field, end_ns) - x;
        if (!is_drawn(bands, end_ns))
            continue;
        fprintf(field->stream, "<path d=\"M%.1f %.1fv%d\" stroke=\"#333\" stroke-width=\"1.5\">", x, top, BAR_HEIGHT);
        svg_title(field->stream, text_format("phase %s, from %s: %s at most", phase->name,
                                             text_time_local(phase->time_ns), text_size(phase->peak_bytes)));
        fputs("</path>\n", field->stream);
        char *name = svg_fit(phase->name, width - 6);
        if (name[0] != '\0')
            svg_text(field->stream, x + 4, top + BAR_HEIGHT - 3, on_fill, name);
    }
}

static void put_lane_refusals(const struct draw_field *field, const struct bands *bands,
                              const struct model_process *process, double top)
{
    for (size_t i = 0; i < process->refusal_count; i++) {
        const struct model_refusal *refusal = &process->refusals[i];
        if (!is_drawn(bands, refusal->time_ns))
            continue;
        fprintf(field->stream, "<path d=\"M%.1f %.1fl-4 -7h8z\" fill=\"#b00\" stroke=\"#fff\" stroke-width=\"0.5\">",
                draw_x(field, refusal->time_ns), top + 1);
        svg_title(field->stream, text_format("%s of %s %s at %s: %s", refusal->call, text_size(refusal->size_bytes),
                                             process->is_observing ? "would be refused" : "refused",
                                             text_time_local(refusal->time_ns), model_reason_name[refusal->reason]));
        fputs("</path>\n", field->stream);
    }
}

double draw_bands_lanes(const struct draw_field *field, const struct bands *bands, double top)
{
    for (size_t i = 0; i < bands->band_count; i++, top += ROW_HEIGHT) {
        const struct bands_band *band = &bands->band[i];
        put_name(field, bands, i, top);
        put_lane_bar(field, bands, i, top + 16);
        if (band->process_count == 1) {
            put_lane_phases(field, bands, band, top + 16);
            put_lane_refusals(field, bands, band->process, top + 16);
        }
    }
    return top;
}
