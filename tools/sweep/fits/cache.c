/*
 * cache.c - the KV cache of a model: numbers for each token * tokens * sequences * bytes. Layers with a sliding window
 * keep no more than the window.
 */
#include <inttypes.h>
#include <string.h>

#include "common/bytes.h"
#include "sweep/fits/fits.h"

enum { DEFAULT_CONTEXT = 4096 };

uint64_t fits_context(const struct fits *fits, const struct fits_model *model)
{
    if (fits->context > 0 || model->context > 0)
        return fits->context > 0 ? fits->context : model->context;
    return model->context_most > 0 ? bytes_min(model->context_most, DEFAULT_CONTEXT) : DEFAULT_CONTEXT;
}

static void add_notes(struct fits_need *need, const struct fits *fits, const struct fits_model *model)
{
    uint64_t context = fits_context(fits, model), batch = fits->batch > 0 ? fits->batch : 1;
    if ((fits->context == 0 && model->context == 0) || fits->batch == 0)
        fits_need_note(need, "assumed: %" PRIu64 " tokens of context, %" PRIu64 " sequence%s at a time", context, batch,
                       batch == 1 ? "" : "s");
    if (model->context_most > context && fits->context == 0)
        fits_need_note(need,
                       "the model takes up to %" PRIu64 " tokens, and some servers make room for all: see --context",
                       model->context_most);
    if (model->cache.has_states)
        fits_need_note(need, "the states of recurrent layers, which do not grow with the context, are not counted");
    if (model->cache.is_latent)
        fits_need_note(need, "assumed: compressed keys and values (MLA), as servers keep them");
}

void fits_add_cache(struct fits_need *need, const struct fits *fits, const struct fits_model *model)
{
    const struct fits_cache *cache = &model->cache;
    const struct fits_dtype *dtype = fits->kv_dtype != NULL ? fits->kv_dtype : fits->dtype;
    uint64_t context = fits_context(fits, model), batch = fits->batch > 0 ? fits->batch : 1;
    if (cache->has_none) {
        fits_need_add(need, "KV cache", 0, "none: the model is an encoder");
        return;
    }
    if (!cache->is_known) {
        fits_need_miss(need, "KV cache", "a config.json with the layers and heads of the model");
        return;
    }
    if (dtype == NULL) {
        /* llama.cpp keeps 16 bits whatever the weights are. */
        const struct fits_dtype *own = strcmp(model->format, "GGUF") != 0 ? fits_dtype_named(model->dtype) : NULL;
        dtype = own != NULL && own->bits == 32 ? own : fits_dtype_named("bf16");
    }
    double tokens =
        (double)cache->numbers * (double)context + (double)cache->windowed * (double)bytes_min(context, cache->window);
    double bits = fits_dtype_cache_bits(dtype);
    fits_need_add(need, "KV cache", tokens * (double)batch * bits / 8,
                  "%" PRIu64 " layers, %.6g numbers a token x %" PRIu64 " tokens x %" PRIu64 " x %g bits%s",
                  cache->layers, (double)(cache->numbers + cache->windowed), context, batch, bits,
                  cache->windowed > 0 && cache->window < context ? " (sliding window)"
                  : cache->is_twice                              ? " (decoder and encoder)"
                                                                 : "");
    add_notes(need, fits, model);
}
