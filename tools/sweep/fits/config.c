/*
 * config.c - reads a config.json of Hugging Face: the shape of the KV cache, and, if there is nothing better, how many
 * parameters the model will have. Families name the same number differently, and models for pictures or sound keep
 * those of their language model in an object of its own.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "sweep/fits/dtype.h"
#include "sweep/fits/fits.h"
#include "common/text.h"

enum { CONFIG_MOST = 8 << 20 };
#define NUMBER_MOST ((json_int_t)1 << 40)

static const char *const nested[] = {"text_config", "llm_config", "language_config", "language_model", "decoder", NULL};
static const char *const layer_names[] = {
    "num_decoder_layers", "decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers", NULL};
static const char *const head_names[] = {
    "decoder_attention_heads", "num_attention_heads", "n_head", "n_heads", "num_heads", NULL};
static const char *const kv_head_names[] = {"num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num",
                                            NULL};
static const char *const hidden_names[] = {"hidden_size", "d_model", "n_embd", "dim", NULL};
static const char *const head_dim_names[] = {"head_dim", "d_kv", "kv_channels", NULL};
static const char *const context_names[] = {
    "max_position_embeddings", "n_positions", "n_ctx", "max_target_positions", "seq_length", "max_seq_len", NULL};
static const char *const inner_names[] = {
    "intermediate_size", "d_ff", "decoder_ffn_dim", "ffn_dim", "n_inner", "ffn_hidden_size", "hidden_dim", NULL};
static const char *const expert_names[] = {"num_local_experts", "num_experts", "n_routed_experts", NULL};

/* Encoders, which keep no cache, if config.json does not say for what the model is. */
static const char encoders[] = "bert|roberta|xlm-roberta|distilbert|electra|albert|deberta|deberta-v2|camembert|mpnet|"
                               "modernbert|vit|clip|siglip|dinov2|wav2vec2|hubert";

/* Returns the first of the names that is a number from 1 on, or 0. */
static uint64_t number_of(const json_t *config, const char *const *names)
{
    for (; *names != NULL; names++) {
        const json_t *value = json_object_get(config, *names);
        if (json_is_integer(value) && json_integer_value(value) > 0 && json_integer_value(value) < NUMBER_MOST)
            return (uint64_t)json_integer_value(value);
    }
    return 0;
}

static uint64_t one_number(const json_t *config, const char *name)
{
    const char *const names[] = {name, NULL};
    return number_of(config, names);
}

static void copy_text(char text[FITS_NAME_CAPACITY], const json_t *value)
{
    if (!json_is_string(value))
        return;
    snprintf(text, FITS_NAME_CAPACITY, "%s", text_printable(json_string_value(value), false));
}

/* Returns whether the model generates nothing: a model with a head for something else, or a known encoder. */
static bool is_encoder(const json_t *config, const char *family)
{
    const json_t *architectures = json_object_get(config, "architectures"),
                 *decoder = json_object_get(config, "is_decoder");
    const char *name = json_string_value(json_array_get(architectures, 0));
    if (json_is_true(decoder))
        return false;
    if (name != NULL && (strstr(name, "ForCausalLM") != NULL || strstr(name, "LMHead") != NULL ||
                         strstr(name, "ConditionalGeneration") != NULL))
        return false;
    if (name != NULL && (strstr(name, "ForMaskedLM") != NULL || strstr(name, "Classification") != NULL ||
                         strstr(name, "QuestionAnswering") != NULL || strstr(name, "EncoderModel") != NULL))
        return true;
    return text_is_one_of(family, encoders);
}

/* Returns the heads of keys and values of a layer. */
static uint64_t kv_heads_of(const json_t *config, uint64_t heads)
{
    uint64_t kv_heads = number_of(config, kv_head_names);
    /* The first Falcon models say so in a word, and the later ones say both. */
    if (json_is_true(json_object_get(config, "multi_query")) &&
        !json_is_true(json_object_get(config, "new_decoder_architecture")))
        return 1;
    return kv_heads > 0 ? kv_heads : heads;
}

/* Whether all layers of the family have the window, if the configuration has no list of their kinds. Others mix layers
 * with a window and full ones (Gemma 2 and 3), so theirs count in full. */
static bool is_windowed_throughout(const json_t *config)
{
    const char *family = json_string_value(json_object_get(config, "model_type"));
    return (family != NULL && text_is_one_of(family, "mistral|mixtral|phi3|starcoder2")) ||
           json_is_true(json_object_get(config, "use_sliding_window"));
}

/* Sorts layers by what they keep. Without a list of their kinds all are alike. */
static void count_layers(struct fits_cache *cache, const json_t *config, uint64_t each)
{
    const json_t *kinds = json_object_get(config, "layer_types"), *use = json_object_get(config, "use_sliding_window");
    uint64_t full = 0, windowed = 0;
    cache->window = one_number(config, "sliding_window");
    if (json_is_array(kinds) && json_array_size(kinds) == cache->layers) {
        for (size_t i = 0; i < json_array_size(kinds); i++) {
            const char *kind = json_string_value(json_array_get(kinds, i));
            bool is_sliding = kind != NULL && (strstr(kind, "sliding") != NULL || strstr(kind, "chunked") != NULL);
            bool has_states = kind != NULL && (strstr(kind, "linear") != NULL || strstr(kind, "mamba") != NULL ||
                                               strstr(kind, "recurrent") != NULL || strstr(kind, "conv") != NULL);
            windowed += is_sliding && cache->window > 0;
            full += !has_states && !(is_sliding && cache->window > 0);
            cache->has_states = cache->has_states || has_states;
        }
    } else if (cache->window > 0 && !json_is_false(use) && is_windowed_throughout(config))
        windowed = cache->layers;
    else
        full = cache->layers;
    cache->layers = full + windowed;
    cache->numbers = fits_product(full, each);
    cache->windowed = fits_product(windowed, each);
}

static void set_cache(struct fits_model *model, const json_t *config)
{
    struct fits_cache *cache = &model->cache;
    uint64_t heads = number_of(config, head_names), hidden = number_of(config, hidden_names);
    uint64_t latent = one_number(config, "kv_lora_rank"), dim = number_of(config, head_dim_names);
    *cache = (struct fits_cache){.layers = number_of(config, layer_names), .kv_heads = kv_heads_of(config, heads)};
    cache->key_dim = cache->value_dim = dim > 0 ? dim : heads > 0 ? hidden / heads : 0;
    uint64_t each = fits_product(cache->kv_heads, fits_sum(cache->key_dim, cache->value_dim));
    if (latent > 0) {
        cache->is_latent = true;
        each = latent + one_number(config, "qk_rope_head_dim");
    }
    cache->is_known = cache->layers > 0 && cache->layers <= FITS_LAYERS && each > 0;
    cache->is_twice = json_is_true(json_object_get(config, "is_encoder_decoder"));
    if (cache->is_known)
        count_layers(cache, config, cache->is_twice ? fits_product(each, 2) : each);
}

static void set_shape(struct fits_model *model, const json_t *config)
{
    struct fits_shape *shape = &model->shape;
    uint64_t heads = number_of(config, head_names), kv_heads = kv_heads_of(config, heads);
    uint64_t dim = number_of(config, head_dim_names);
    *shape = (struct fits_shape){.hidden = number_of(config, hidden_names),
                                 .layers = number_of(config, layer_names),
                                 .vocabulary = one_number(config, "vocab_size"),
                                 .inner = number_of(config, inner_names),
                                 .is_tied = json_is_true(json_object_get(config, "tie_word_embeddings"))};
    dim = dim > 0 ? dim : heads > 0 ? shape->hidden / heads : 0;
    shape->query = heads > 0 ? fits_product(heads, dim) : shape->hidden;
    shape->key = heads > 0 ? fits_product(kv_heads, dim) : shape->hidden;
    shape->inner = shape->inner > 0 ? shape->inner : fits_product(shape->hidden, 4);
}

/* Estimates the parameters of a decoder: embeddings, attention, and two or three matrices of each feed-forward part. */
static uint64_t estimate_parameters(const json_t *config)
{
    uint64_t hidden = number_of(config, hidden_names), layers = number_of(config, layer_names);
    uint64_t heads = number_of(config, head_names), kv_heads = kv_heads_of(config, heads);
    uint64_t dim = number_of(config, head_dim_names), words = one_number(config, "vocab_size");
    uint64_t inner = number_of(config, inner_names), experts = number_of(config, expert_names);
    uint64_t expert_inner = one_number(config, "moe_intermediate_size");
    const char *act = json_string_value(json_object_get(config, "hidden_act"));
    if (hidden == 0 || layers == 0 || layers > FITS_LAYERS || heads == 0 || words == 0)
        return 0;
    dim = dim > 0 ? dim : hidden / heads;
    inner = experts > 0 && expert_inner > 0 ? expert_inner : inner > 0 ? inner : fits_product(hidden, 4);
    bool is_gated = experts > 0 || (act != NULL && strcmp(act, "silu") == 0) || number_of(config, kv_head_names) > 0;
    uint64_t attention =
        fits_product(fits_product(hidden, dim), fits_sum(fits_product(heads, 2), fits_product(kv_heads, 2)));
    uint64_t forward = fits_product(fits_product(hidden, inner), is_gated ? 3 : 2);
    if (experts > 0)
        forward = fits_sum(fits_product(forward, experts), fits_product(hidden, experts));
    bool is_tied = json_is_true(json_object_get(config, "tie_word_embeddings"));
    return fits_sum(fits_product(layers, fits_sum(attention, forward)),
                    fits_product(fits_product(words, hidden), is_tied ? 1 : 2));
}

/* Returns the bits of a weight by what quantization_config says, 0 if it says nothing. */
static uint64_t quantized_bits(struct fits_model *model, const json_t *config)
{
    const json_t *quantization = json_object_get(config, "quantization_config");
    copy_text(model->quantization, json_object_get(quantization, "quant_method"));
    if (json_is_true(json_object_get(quantization, "load_in_4bit")) || strcasestr(model->quantization, "fp4") != NULL)
        return 4;
    if (json_is_true(json_object_get(quantization, "load_in_8bit")) || strcasecmp(model->quantization, "fp8") == 0)
        return 8;
    uint64_t bits = one_number(quantization, "bits");
    return bits <= 16 ? bits : 0;
}

static void estimate_weights(struct fits_model *model, const json_t *config)
{
    uint64_t parameters = estimate_parameters(config), bits = quantized_bits(model, config);
    const struct fits_dtype *dtype = model->dtype[0] != '\0' ? fits_dtype_named(model->dtype) : NULL;
    if (bits == 0)
        bits = dtype != NULL ? (uint64_t)dtype->bits : 16;
    if (model->basis != FITS_NOTHING || parameters == 0)
        return;
    model->basis = FITS_FROM_CONFIG;
    model->parameter_count = parameters;
    model->weight_bytes = fits_product(parameters, bits) / 8;
    model->float_count[bits == 32 ? FITS_F32 : FITS_BF16] = bits >= 16 ? parameters : 0;
}

bool fits_read_config(struct fits_model *model, const char *path)
{
    const json_t *root = fits_read_json(model, path, CONFIG_MOST), *config = root;
    if (root == NULL)
        return false;
    copy_text(model->family, json_object_get(root, "model_type"));
    for (const char *const *name = nested; *name != NULL && config == root; name++)
        if (json_is_object(json_object_get(root, *name)))
            config = json_object_get(root, *name);
    const json_t *dtype = json_object_get(config, "dtype");
    dtype = dtype != NULL ? dtype : json_object_get(config, "torch_dtype");
    dtype = dtype != NULL ? dtype : json_object_get(root, "dtype");
    dtype = dtype != NULL ? dtype : json_object_get(root, "torch_dtype");
    if (model->basis == FITS_NOTHING)
        copy_text(model->dtype, dtype);
    set_cache(model, config);
    set_shape(model, config);
    model->cache.has_none = is_encoder(root, model->family);
    model->context_most = number_of(config, context_names);
    (void)quantized_bits(model, root);
    estimate_weights(model, config);
    return true;
}
