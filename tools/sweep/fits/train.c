/*
 * train.c - what training a model takes beside its weights, term by term.
 *
 *   gradients    of the trained parameters, in their dtype
 *   optimizer    two moments of each trained parameter, in FP32 unless --optimizer says otherwise
 *   reference    a second copy of the weights, of DPO and GRPO
 *   adapters     rank * (rows + columns) of the four matrices of attention, in FP32 with gradient and two moments
 *   activations  with checkpointing one tensor of hidden for each layer and token, and what one layer keeps while it is
 *                computed again; without it, what every layer keeps
 *   logits       for each token and word: the values in BF16, in FP32 and shifted, their log-softmax, the gradients of these.
 *                DPO and GRPO keep BF16 ones, and those of the reference
 *   generation   the part of the machine that GRPO's engine takes
 *   program      the program itself and its CUDA context
 *
 * Measured on a Spark, Qwen3-0.6B at 1024 tokens with checkpointing: SFT 21.1, 29.0, 46.8, 80.9 GB at batch 2, 4, 8,
 * 16; DPO
 * 23.8, 27.2, 62.2 GB at batch 2, 4, 8. The sums are 11 to 17 % below, and 17 % above the second of DPO, which the row
 * before it does not explain. The figures were those of the whole machine.
 */
#include <inttypes.h>

#include "common/text.h"
#include "sparkguard_abi.h"
#include "sweep/fits/fits.h"

enum { DEFAULT_RANK = 16, FULL_LOGIT_BYTES = 24, PAIR_LOGIT_BYTES = 16, ADAPTER_BYTES = 16 };
#define PROGRAM_BYTES (2.6 * (1 << 30)) /* measured under vLLM */

static bool is_preference(const struct fits *fits)
{
    return fits->train == FITS_DPO || fits->train == FITS_GRPO;
}

static bool has_adapters(const struct fits *fits)
{
    return fits->train == FITS_LORA || fits->train == FITS_QLORA;
}

static void add_weights(struct fits_need *need, const struct fits *fits, const struct fits_model *model,
                        const struct fits_dtype *dtype)
{
    double parameters = (double)model->parameter_count;
    double embeddings = (double)model->shape.vocabulary * (double)model->shape.hidden * (model->shape.is_tied ? 1 : 2);
    if (fits->train == FITS_QLORA) {
        if (embeddings > 0 && embeddings < parameters) {
            fits_need_add(need, "embeddings", embeddings * 2, "%.4gB parameters x 2 bytes: they stay in BF16",
                          embeddings / 1e9);
            parameters -= embeddings;
        }
        fits_need_add_weights(need, parameters, fits_dtype_named("nf4"));
        return;
    }
    fits_need_add_weights(need, parameters, dtype);
    if (is_preference(fits))
        fits_need_add(need, "reference", parameters * dtype->bits / 8, "the model that the answers are compared with");
}

static void add_trained(struct fits_need *need, const struct fits *fits, const struct fits_model *model,
                        const struct fits_dtype *dtype)
{
    double parameters = (double)model->parameter_count, each = dtype->bits / 8;
    fits_need_add(need, "gradients", parameters * each, "%.4gB parameters x %g bytes", parameters / 1e9, each);
    fits_need_add(need, "optimizer", parameters * fits->optimizer_bytes, "%.4gB parameters x %g bytes (%s)",
                  parameters / 1e9, fits->optimizer_bytes, fits->optimizer);
}

static void add_adapters(struct fits_need *need, const struct fits *fits, const struct fits_model *model)
{
    const struct fits_shape *shape = &model->shape;
    double rank = fits->rank > 0 ? (double)fits->rank : DEFAULT_RANK;
    if (shape->hidden == 0 || shape->layers == 0) {
        fits_need_miss(need, "adapters", "hidden= and layers=");
        return;
    }
    double each = 4.0 * (double)shape->hidden + 2.0 * (double)shape->query + 2.0 * (double)shape->key;
    fits_need_add(need, "adapters", rank * each * (double)shape->layers * ADAPTER_BYTES,
                  "rank %g x %g rows and columns of attention x %" PRIu64
                  " layers x %d bytes (FP32, gradient, 2 moments)",
                  rank, each, shape->layers, ADAPTER_BYTES);
}

static void add_activations(struct fits_need *need, const struct fits *fits, const struct fits_model *model,
                            double tokens)
{
    const struct fits_shape *shape = &model->shape;
    if (tokens == 0) {
        fits_need_miss(need, "activations", "--batch and --seq");
        return;
    }
    if (shape->hidden == 0 || shape->layers == 0) {
        fits_need_miss(need, "activations", "hidden= and layers=");
        return;
    }
    double hidden = (double)shape->hidden, layers = (double)shape->layers;
    double layer = 2 * (8 * hidden + 2 * (double)shape->query + 2 * (double)shape->key + 4 * (double)shape->inner);
    if (fits->is_keeping_all)
        fits_need_add(need, "activations", tokens * layers * layer, "%g tokens x %g layers x %g bytes", tokens, layers,
                      layer);
    else
        fits_need_add(need, "activations", tokens * (layers * hidden * 2 + layer),
                      "%g tokens x (%g layers x %g x 2 bytes kept by checkpointing + %g of the layer at work)", tokens,
                      layers, hidden, layer);
}

static void add_logits(struct fits_need *need, const struct fits *fits, const struct fits_model *model, double tokens)
{
    double each = is_preference(fits) ? PAIR_LOGIT_BYTES : FULL_LOGIT_BYTES, words = (double)model->shape.vocabulary;
    if (words == 0)
        fits_need_miss(need, "logits", "vocab=");
    else if (tokens == 0)
        fits_need_miss(need, "logits", "--batch and --seq");
    else
        fits_need_add(need, "logits", tokens * words * each, "%g tokens x %g words x %g bytes (%s)", tokens, words,
                      each,
                      is_preference(fits) ? "BF16, log-softmax, gradients, the reference's"
                                          : "BF16, FP32, log-softmax, gradients");
}

static void add_generation(struct fits_need *need, const struct fits *fits, uint64_t total_bytes)
{
    if (fits->generation < 0 || total_bytes == SG_UNKNOWN)
        fits_need_miss(need, "generation", "--generation, the part of the memory that GRPO's engine is given");
    else
        fits_need_add(need, "generation", fits->generation * (double)total_bytes,
                      "%g of the machine, for the weights and the KV cache of the engine that answers",
                      fits->generation);
}

static void add_rule(struct fits_need *need, const struct fits *fits, const struct fits_model *model)
{
    double sum = 6 * (double)model->parameter_count +
                 (double)fits->batch * (double)fits->sequence * (double)model->shape.hidden * 4;
    fits_need_note(need,
                   "rule of thumb: 6 x %.4gB + batch x seq x hidden x 4 bytes = %s; where it says 3.6 GB, 21.1 to 80.9 "
                   "GB were measured on a Spark (Qwen3-0.6B, SFT, batch 2 to 16)",
                   (double)model->parameter_count / 1e9,
                   text_size(sum < (double)FITS_MOST ? (uint64_t)sum : FITS_MOST));
}

void fits_add_training(struct fits_need *need, const struct fits *fits, const struct fits_model *model,
                       uint64_t total_bytes)
{
    const struct fits_dtype *dtype = fits->dtype != NULL ? fits->dtype : fits_dtype_named(model->dtype);
    double sequences = (double)fits->batch * (fits->train == FITS_DPO ? 2 : 1);
    double tokens = sequences * (double)fits->sequence;
    if (dtype == NULL)
        dtype = fits_dtype_named("bf16");
    if (model->parameter_count > 0)
        add_weights(need, fits, model, dtype);
    else
        fits_need_miss(need, "weights", "a config.json or files with headers");
    if (has_adapters(fits))
        add_adapters(need, fits, model);
    else if (model->parameter_count > 0)
        add_trained(need, fits, model, dtype);
    add_activations(need, fits, model, tokens);
    add_logits(need, fits, model, tokens);
    if (fits->train == FITS_GRPO)
        add_generation(need, fits, total_bytes);
    fits_need_add(need, "program", PROGRAM_BYTES, "the program and its CUDA context: 2.6 GiB were measured under vLLM");
    if (fits->train == FITS_DPO)
        fits_need_note(need, "assumed: a chosen and a rejected answer for each of the batch");
    if (has_adapters(fits) && fits->rank == 0)
        fits_need_note(need, "assumed: adapters of rank 16 beside the 4 matrices of attention; see --rank");
    add_rule(need, fits, model);
}
