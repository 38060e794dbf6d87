/*
 * estimate_options.c - parses the value of --estimate: the size of the model, the kind of run, and what goes with it.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sweep/sweep.h"

/* Parses "0.6B", "600M" or "7b" in thousand millions. */
static bool read_model_size(const char *text, double *billions)
{
    char digits[24];
    size_t length = strlen(text);
    if (length < 2 || length >= sizeof digits)
        return false;
    char unit = (char)(text[length - 1] | 0x20);
    memcpy(digits, text, length - 1);
    digits[length - 1] = '\0';
    if ((unit != 'b' && unit != 'm') || !sweep_read_number(digits, billions) || *billions <= 0 || *billions > 1e6)
        return false;
    *billions /= unit == 'm' ? 1000 : 1;
    return true;
}

static const struct {
    const char *name;
    enum sweep_kind kind;
} kinds[] = {{"full", SWEEP_FULL}, {"lora", SWEEP_LORA}, {"qlora", SWEEP_QLORA}, {"infer", SWEEP_INFERENCE}};

/* Bytes that an optimizer keeps for each trained parameter, beside the parameter and its gradient. */
static const struct {
    const char *name;
    double bytes;
} optimizers[] = {{"adamw32", 8}, {"adamw16", 4}, {"adamw8", 2}, {"sgd", 0}};

/* Returns the text behind "NAME=", or NULL if the piece has another name. */
static const char *value_of(const char *piece, const char *name)
{
    size_t length = strlen(name);
    return strncmp(piece, name, length) == 0 && piece[length] == '=' ? piece + length + 1 : NULL;
}

static bool take_number(struct sweep_estimate *estimate, const char *piece)
{
    const struct {
        const char *name;
        double *number;
    } known[] = {{"hidden", &estimate->hidden},     {"seq", &estimate->sequence},    {"batch", &estimate->batch},
                 {"gpu", &estimate->gpu},           {"layers", &estimate->layers},   {"kv_heads", &estimate->kv_heads},
                 {"head_dim", &estimate->head_dim}, {"context", &estimate->context}, {"vocab", &estimate->vocabulary},
                 {"rank", &estimate->rank}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const char *value = value_of(piece, known[i].name);
        if (value != NULL)
            return sweep_read_number(value, known[i].number) && *known[i].number > 0;
    }
    return false;
}

/* Takes what is a word: the kind, a dtype, an optimizer. */
static bool take_word(struct sweep_estimate *estimate, const char *piece)
{
    const char *dtype = value_of(piece, "dtype"), *kv = value_of(piece, "kv"),
               *optimizer = value_of(piece, "optimizer");
    if (dtype != NULL)
        return (estimate->dtype = fits_dtype_named(dtype)) != NULL;
    if (kv != NULL)
        return (estimate->kv_dtype = fits_dtype_named(kv)) != NULL;
    for (size_t i = 0; optimizer != NULL && i < sizeof optimizers / sizeof optimizers[0]; i++)
        if (strcmp(optimizer, optimizers[i].name) == 0) {
            estimate->optimizer_bytes = optimizers[i].bytes;
            return true;
        }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(piece, kinds[i].name) == 0) {
            estimate->detailed = kinds[i].kind;
            return true;
        }
    if (strcmp(piece, "sft") != 0 && strcmp(piece, "dpo") != 0 && strcmp(piece, "grpo") != 0)
        return false;
    estimate->kind = piece;
    return true;
}

/* Returns a sentence about what does not go together, or NULL. */
static const char *contradiction(const struct sweep_estimate *estimate)
{
    bool is_rough = estimate->detailed == SWEEP_ROUGH;
    if (estimate->gpu > 1)
        return "gpu is a part of the memory, from 0 to 1";
    if (estimate->parameters <= 0)
        return "how large is the model?";
    if (!is_rough && estimate->kind != NULL)
        return "one kind at a time";
    if (is_rough && (estimate->dtype != NULL || estimate->kv_dtype != NULL || estimate->optimizer_bytes >= 0 ||
                     estimate->context > 0 || estimate->rank > 0 || estimate->kv_heads > 0 || estimate->head_dim > 0 ||
                     estimate->layers > 0 || estimate->vocabulary > 0))
        return "for this, say full, lora, qlora or infer as well";
    return NULL;
}

const char *sweep_take_estimate(struct sweep_estimate *estimate, char *text)
{
    char *piece;
    *estimate = (struct sweep_estimate){.is_wanted = true, .optimizer_bytes = -1};
    while ((piece = strsep(&text, ",")) != NULL) {
        if (value_of(piece, "dtype") != NULL && !take_word(estimate, piece))
            return "dtype is one of fp32, fp16, bf16, fp8, int8, nvfp4, mxfp4, nf4, int4";
        if (value_of(piece, "kv") != NULL && !take_word(estimate, piece))
            return "kv is one of fp32, fp16, bf16, fp8, int8, nvfp4, mxfp4, nf4, int4";
        if (value_of(piece, "optimizer") != NULL && !take_word(estimate, piece))
            return "optimizer is one of adamw32, adamw16, adamw8, sgd";
        if (!take_number(estimate, piece) && !take_word(estimate, piece) &&
            !read_model_size(piece, &estimate->parameters))
            return "not a model size or what goes with it";
    }
    return contradiction(estimate);
}
