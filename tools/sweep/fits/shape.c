/*
 * shape.c - parses a model that is only described: "8B,hidden=4096,layers=32,vocab=128256".
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "sweep/fits/fits.h"

#define NUMBER_MOST 1e12

/* Parses "0.6B", "600M" or "7b" as a number of parameters; 0: it is none. */
static double parameters_of(const char *text)
{
    char *end = NULL;
    double number = text[0] >= '0' && text[0] <= '9' ? strtod(text, &end) : 0;
    if (number <= 0 || end == NULL || strspn(text, "0123456789.") != (size_t)(end - text) || end[0] == '\0' ||
        end[1] != '\0')
        return 0;
    double unit = (end[0] | 0x20) == 'b' ? 1e9 : (end[0] | 0x20) == 'm' ? 1e6 : 0;
    return number * unit <= 1e15 ? number * unit : 0;
}

bool fits_is_shape(const char *text)
{
    char *first = text_copy(text, strcspn(text, ","));
    bool is_shape = parameters_of(first) > 0;
    return is_shape;
}

/* What a description has names for. */
struct named {
    const char *name;
    uint64_t *number;
};

static bool take_number(const struct named *known, size_t count, const char *piece)
{
    size_t length = strcspn(piece, "=");
    for (size_t i = 0; i < count && piece[length] == '='; i++) {
        if (strncmp(piece, known[i].name, length) != 0 || known[i].name[length] != '\0')
            continue;
        char *end;
        double number = strtod(piece + length + 1, &end);
        if (end == piece + length + 1 || *end != '\0' || !(number >= 1) || number > NUMBER_MOST ||
            number != floor(number))
            return false;
        *known[i].number = (uint64_t)number;
        return true;
    }
    return false;
}

static void set_rest(struct fits_model *model, uint64_t heads, uint64_t kv_heads, uint64_t head_dim)
{
    struct fits_shape *shape = &model->shape;
    struct fits_cache *cache = &model->cache;
    uint64_t dim = head_dim > 0 ? head_dim : heads > 0 ? shape->hidden / heads : 0;
    shape->query = heads > 0 && dim > 0 ? fits_product(heads, dim) : shape->hidden;
    shape->key = kv_heads > 0 && dim > 0 ? fits_product(kv_heads, dim) : shape->query;
    shape->inner = shape->inner > 0 ? shape->inner : fits_product(shape->hidden, 4);
    cache->layers = shape->layers;
    cache->kv_heads = kv_heads;
    cache->numbers = fits_product(shape->layers, fits_product(shape->key, 2));
    cache->is_known = cache->numbers > 0 && shape->layers <= FITS_LAYERS;
}

bool fits_read_shape(struct fits_model *model, const char *text)
{
    uint64_t heads = 0, kv_heads = 0, head_dim = 0;
    struct fits_shape *shape = &model->shape;
    const struct named known[] = {{"hidden", &shape->hidden}, {"layers", &shape->layers}, {"vocab", &shape->vocabulary},
                                  {"inner", &shape->inner},   {"heads", &heads},          {"kv_heads", &kv_heads},
                                  {"head_dim", &head_dim}};
    char *copy = text_copy(text, SIZE_MAX), *rest = copy, *piece = strsep(&rest, ",");
    const struct fits_dtype *dtype = fits_dtype_named("bf16");
    *model = (struct fits_model){.format = "description", .basis = FITS_FROM_TEXT};
    model->parameter_count = (uint64_t)parameters_of(piece);
    while (model->wrong == NULL && (piece = strsep(&rest, ",")) != NULL) {
        bool is_dtype = strncmp(piece, "dtype=", 6) == 0;
        if (is_dtype ? (dtype = fits_dtype_named(piece + 6)) == NULL
                     : !take_number(known, sizeof known / sizeof known[0], piece)) {
            char *printable = text_printable(piece, false);
            fits_model_fail(
                model, "%s: hidden=, layers=, vocab=, inner=, heads=, kv_heads= or head_dim=, or dtype=", printable);
        }
    }
    if (model->wrong == NULL && dtype != NULL) {
        double bits = dtype->bits + dtype->scale_bits;
        snprintf(model->dtype, sizeof model->dtype, "%s", dtype->title);
        model->weight_bytes = (uint64_t)((double)model->parameter_count * bits / 8);
        model->float_count[dtype->bits == 32 ? FITS_F32 : FITS_BF16] = dtype->bits >= 16 ? model->parameter_count : 0;
        set_rest(model, heads, kv_heads, head_dim);
    }
    return model->wrong == NULL;
}
