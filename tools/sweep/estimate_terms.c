/*
 * estimate_terms.c - the memory of full fine-tuning, LoRA, QLoRA and inference, term by term.
 *
 *   weights      parameters * bytes of their dtype: 7B in FP16 are 14 GB, in INT8 7 GB, in NVFP4 3.5 GB; scales come on top
 *   gradients    of the trained parameters, in their dtype
 *   optimizer    two moments of each trained parameter. In the weights' BF16 a full fine-tuning takes 8 bytes a parameter in
 *                all, which is what 12 to 16B parameters in 100 to 128 GB come to
 *   adapters     rank * (rows + columns) of each matrix they are beside, kept in FP32 with their gradients and moments
 *   activations  one tensor of batch * seq * hidden for each layer that gradient checkpointing keeps; without the number of
 *                layers, batch * seq * hidden * 4 as the rough formula for SFT has it
 *   logits       batch * seq * vocab in FP32: the values, their log-softmax, the gradient
 *   KV cache     2 (keys and values) * layers * kv_heads * head_dim * context * batch * bytes of its dtype
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sweep/sweep.h"
#include "sweep/fits/headroom.h"
#include "common/text.h"

enum { DEFAULT_RANK = 16, DEFAULT_CONTEXT = 4096, ADAPTED_MATRICES = 4 };
#define ADAPTER_BYTES 16   /* FP32: value, gradient, two moments */
#define LOGIT_BYTES 12     /* FP32: value, log-softmax, gradient */
#define ADAPTER_SHARE 0.01 /* of the parameters, where hidden and layers are unknown */
#define MOMENTS 2

const char *const sweep_formula_name[SWEEP_FORMULAS] = {
    "SFT", "DPO, 1.8 SFT", "DPO, 1.3 SFT", "GRPO", "full fine-tuning", "LoRA", "QLoRA", "inference"};

double sweep_estimate_value(const struct sweep *sweep, const struct sweep_run *run, const char *word, double given)
{
    for (size_t i = 0; given == 0 && i < sweep->parameter_count; i++)
        if (sweep->parameter[i].is_number && strstr(sweep->parameter[i].name, word) != NULL)
            return sweep->parameter[i].number[run->place[i]];
    return given;
}

static void add_weights(struct fits_need *need, const struct sweep_estimate *given, const struct fits_dtype *dtype)
{
    double parameters = given->parameters * 1e9, embeddings = 2 * given->vocabulary * given->hidden;
    if (dtype->bits < 16 && embeddings > 0 && embeddings < parameters) {
        fits_need_add(need, "embeddings", embeddings * 2, "2 x %g words x %g x 2 bytes: they stay in BF16",
                      given->vocabulary, given->hidden);
        parameters -= embeddings;
    }
    fits_need_add_weights(need, parameters, dtype);
}

static void add_trained(struct fits_need *need, const struct sweep_estimate *given, const struct fits_dtype *dtype)
{
    double parameters = given->parameters * 1e9, each = dtype->bits / 8;
    fits_need_add(need, "gradients", parameters * each, "%.4gB parameters x %g bytes", given->parameters, each);
    double moments = given->optimizer_bytes >= 0 ? given->optimizer_bytes : MOMENTS * each;
    fits_need_add(need, "optimizer", parameters * moments, "%.4gB parameters x %g bytes", given->parameters, moments);
    if (given->optimizer_bytes < 0)
        fits_need_note(need, "assumed: AdamW with both moments in %s; optimizer=adamw32 is for FP32 ones",
                       dtype->title);
}

static void add_adapters(struct fits_need *need, const struct sweep_estimate *given)
{
    double rank = given->rank > 0 ? given->rank : DEFAULT_RANK;
    if (given->hidden > 0 && given->layers > 0) {
        double count = rank * 2 * given->hidden * ADAPTED_MATRICES * given->layers;
        fits_need_add(need, "adapters", count * ADAPTER_BYTES,
                      "rank %g x 2 x %g x %d matrices x %g layers x %d bytes (FP32, gradient, 2 moments)", rank,
                      given->hidden, ADAPTED_MATRICES, given->layers, ADAPTER_BYTES);
        fits_need_note(need, "assumed: adapters beside the %d matrices of attention%s", ADAPTED_MATRICES,
                       given->rank > 0 ? "" : ", of rank 16");
        return;
    }
    fits_need_add(need, "adapters", given->parameters * 1e9 * ADAPTER_SHARE * ADAPTER_BYTES,
                  "%g %% of the parameters x %d bytes (FP32, gradient, 2 moments)", ADAPTER_SHARE * 100, ADAPTER_BYTES);
    fits_need_note(need, "assumed: adapters of 1 %% of the parameters; give hidden=, layers= and rank= for their size");
}

static void add_activations(struct fits_need *need, const struct sweep_estimate *given, double batch, double sequence)
{
    if (batch == 0 || sequence == 0 || given->hidden == 0)
        fits_need_note(need, "without activations: give hidden=, seq= and batch= as well");
    else if (given->layers > 0)
        fits_need_add(need, "activations", batch * sequence * given->hidden * given->layers * 2,
                      "batch %g x %g tokens x %g x %g layers x 2 bytes (gradient checkpointing)", batch, sequence,
                      given->hidden, given->layers);
    else
        fits_need_add(need, "activations", batch * sequence * given->hidden * 4, "batch %g x %g tokens x %g x 4 bytes",
                      batch, sequence, given->hidden);
    if (batch > 0 && sequence > 0 && given->vocabulary > 0)
        fits_need_add(need, "logits", batch * sequence * given->vocabulary * LOGIT_BYTES,
                      "batch %g x %g tokens x %g words x %d bytes (FP32: value, log-softmax, gradient)", batch,
                      sequence, given->vocabulary, LOGIT_BYTES);
    else
        fits_need_note(need, "without logits, which are large: give vocab=, seq= and batch=");
}

static void add_cache(struct fits_need *need, const struct sweep_estimate *given, double batch)
{
    const struct fits_dtype *dtype = given->kv_dtype != NULL ? given->kv_dtype : fits_dtype_named("bf16");
    double context = given->context > 0 ? given->context : DEFAULT_CONTEXT, sequences = batch > 0 ? batch : 1;
    double width = given->kv_heads > 0 && given->head_dim > 0 ? given->kv_heads * given->head_dim : given->hidden;
    if (given->layers == 0 || width == 0) {
        fits_need_note(need, "without KV cache: give layers=, kv_heads=, head_dim=, context= and batch=");
        return;
    }
    double bits = fits_dtype_cache_bits(dtype);
    bool has_heads = given->kv_heads > 0 && given->head_dim > 0;
    char *heads = has_heads ? text_format("%g heads x %g", given->kv_heads, given->head_dim) : text_format("%g", width);
    fits_need_add(need, "KV cache", 2 * given->layers * width * context * sequences * bits / 8,
                  "2 x %g layers x %s x %g tokens x %g sequence%s x %g bits (%s)", given->layers, heads, context,
                  sequences, sequences == 1 ? "" : "s", bits, dtype->title);
    free(heads);
    if (!has_heads)
        fits_need_note(need, "assumed: as many key and value heads as heads; give kv_heads= and head_dim=");
    if (given->context == 0 || batch == 0)
        fits_need_note(need, "assumed: %g tokens of context, %g sequence%s at a time; context= and batch= change it",
                       context, sequences, sequences == 1 ? "" : "s");
}

struct fits_need sweep_estimate_terms(const struct sweep *sweep, const struct sweep_run *run)
{
    const struct sweep_estimate *given = &sweep->estimate;
    struct fits_need need = {0};
    double batch = sweep_estimate_value(sweep, run, "batch", given->batch);
    double sequence = sweep_estimate_value(sweep, run, "seq", given->sequence);
    const struct fits_dtype *dtype = given->dtype;
    if (dtype == NULL)
        dtype = fits_dtype_named(given->detailed == SWEEP_QLORA ? "nf4" : "bf16");
    add_weights(&need, given, dtype);
    if (given->detailed == SWEEP_FULL)
        add_trained(&need, given, dtype);
    else if (given->detailed != SWEEP_INFERENCE)
        add_adapters(&need, given);
    if (given->detailed == SWEEP_INFERENCE)
        add_cache(&need, given, batch);
    else
        add_activations(&need, given, batch, sequence);
    fits_need_note(&need, "not in the sum: %sthe program itself and its CUDA context, which is 2.6 GiB under vLLM",
                   given->detailed == SWEEP_INFERENCE ? "activations, " : "");
    return need;
}

void sweep_render_terms(const struct sweep *sweep, const struct style *style)
{
    const struct fits_headroom headroom = fits_headroom_now();
    for (size_t i = 0; i < sweep->run_count; i++) {
        struct fits_need need = sweep_estimate_terms(sweep, &sweep->run[i]);
        char *title = sweep_run_text(sweep, &sweep->run[i]);
        fprintf(style->stream, "%s%s, %gB parameters%s%s\n\n", i > 0 ? "\n" : "",
                sweep_formula_name[SWEEP_FORMULAS - 4 + (int)sweep->estimate.detailed - (int)SWEEP_FULL],
                sweep->estimate.parameters, title[0] != '\0' ? ", " : "", title);
        fits_need_render(&need, &headroom, style);
        free(title);
        fits_need_free(&need);
    }
}
