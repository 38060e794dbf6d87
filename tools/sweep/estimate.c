/*
 * estimate.c - common formulas for the memory of a training run, compared with the measurements. They are computed in
 * the units of the formulas: GB of 10^9 bytes, parameters in thousand millions, a machine of 119 GB. Output is in GiB as elsewhere.
 *
 *   SFT    6 * parameters + batch * seq * hidden * 4 / 10^9   (weights, optimizer and gradients; activations)
 *   DPO    1.8 * SFT in one published formula, 1.3 * SFT in another
 *   GRPO   SFT + vllm_gpu_memory_utilization * 119
 *
 * The kinds with terms of their own (full, lora, qlora, infer) are in estimate_terms.c; here they are one more line.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sweep/sweep.h"
#include "common/table.h"
#include "common/text.h"

#define MACHINE_GB 119
#define MOST_GB 9e9 /* larger numbers of bytes do not fit 64 bits */

enum { SFT, DPO_METHODOLOGY, DPO_SETUP, GRPO, DETAILED };

static const char *const kind_of[DETAILED] = {"sft", "dpo", "dpo", "grpo"};

static double activations_gb(const struct sweep *sweep, const struct sweep_run *run)
{
    double batch = sweep_estimate_value(sweep, run, "batch", sweep->estimate.batch);
    double sequence = sweep_estimate_value(sweep, run, "seq", sweep->estimate.sequence);
    return batch * sequence * sweep->estimate.hidden * 4 / 1e9;
}

bool sweep_estimate(const struct sweep *sweep, const struct sweep_run *run, int formula, double *gb)
{
    if (sweep->estimate.detailed != SWEEP_ROUGH) {
        if (formula != DETAILED + (int)sweep->estimate.detailed - (int)SWEEP_FULL)
            return false;
        struct fits_need need = sweep_estimate_terms(sweep, run);
        *gb = (double)fits_need_sum(&need) / 1e9;
        fits_need_free(&need);
        return true;
    }
    if (formula >= DETAILED)
        return false;
    double sft = 6 * sweep->estimate.parameters + activations_gb(sweep, run);
    double gpu = sweep_estimate_value(sweep, run, "util", sweep->estimate.gpu);
    double estimate[DETAILED] = {sft, 1.8 * sft, 1.3 * sft, sft + gpu * MACHINE_GB};
    if ((sweep->estimate.kind != NULL && strcmp(sweep->estimate.kind, kind_of[formula]) != 0) ||
        (formula == GRPO && gpu == 0))
        return false;
    *gb = estimate[formula];
    return true;
}

/* Formats how far an estimate is above or below the measurement. */
static const char *off_text(char text[32], double gb, const struct sweep_run *run)
{
    double measured = (double)run->peak_bytes / 1e9;
    if (run->status != SWEEP_OK || run->peak_bytes == SG_UNKNOWN || run->peak_bytes == 0)
        return "-";
    snprintf(text, 32, "%+.0f %%", (gb - measured) / measured * 100);
    return text;
}

static void put_lines(struct table *table, const struct sweep *sweep, const struct sweep_run *run)
{
    char size[TEXT_SIZE_CAPACITY], off[32];
    double gb;
    bool is_first = true, is_measured = run->status == SWEEP_OK && run->peak_bytes != SG_UNKNOWN;
    char *title = sweep_run_text(sweep, run);
    for (int formula = 0; formula < SWEEP_FORMULAS; formula++) {
        if (!sweep_estimate(sweep, run, formula, &gb))
            continue;
        table_line(table, NULL);
        table_cell(table, is_first ? title : "", STYLE_PLAIN);
        is_first = false;
        table_cell(table, sweep_formula_name[formula], STYLE_PLAIN);
        table_cell(table, text_size(size, gb < MOST_GB ? (uint64_t)(gb * 1e9 + 0.5) : UINT64_MAX - 1), STYLE_PLAIN);
        table_cell(table, is_measured ? text_size(size, run->peak_bytes) : "-", STYLE_PLAIN);
        table_cell(table, off_text(off, gb, run), STYLE_PLAIN);
    }
    free(title);
}

void sweep_render_estimate(const struct sweep *sweep, const struct style *style)
{
    static const struct table_column columns[] = {{"CONFIGURATION", TABLE_WORDS},
                                                  {"FORMULA", TABLE_WORDS},
                                                  {"ESTIMATE", TABLE_NUMBERS},
                                                  {"MEASURED", TABLE_NUMBERS},
                                                  {"OFF", TABLE_NUMBERS}};
    struct table table;
    table_begin(&table, style, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < sweep->run_count; i++)
        put_lines(&table, sweep, &sweep->run[i]);
    table_end(&table);
    fputc('\n', style->stream);
    if (sweep->estimate.detailed == SWEEP_ROUGH && activations_gb(sweep, &sweep->run[0]) == 0)
        style_words(style, 0, STYLE_PLAIN,
                    "without activations: give hidden=, seq= and batch= as well, or sweep over seq and batch");
    style_words(style, 0, STYLE_PLAIN, "off: how far the estimates are above or below the measurement");
}
