/*
 * shape.c - parses a model that is only described: "8B,hidden=4096,layers=32,vocab=128256".
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/suggest.h"
#include "common/text.h"
#include "sweep/fits/fits.h"

#define NUMBER_MOST (UINT64_C(1) << 40)

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
    return parameters_of(text_copy(text, strcspn(text, ","))) > 0;
}

bool fits_parse_number(const char *text, uint64_t *number)
{
    char *end = NULL;
    errno = 0;
    *number = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    if (*number == 0 || *number > NUMBER_MOST || errno != 0)
        return false;
    bool is_kilo = (*end == 'K' || *end == 'k') && end[1] == '\0';
    *number *= is_kilo ? 1024 : 1;
    return is_kilo || *end == '\0';
}

/* What a description has names for. */
struct named {
    const char *name;
    uint64_t *number; /* NULL: a dtype */
};
enum { NAMED_MOST = 16 };

/* Returns what is wrong with a name that is not known. */
static char *no_such_name(const struct named *known, size_t count, const char *name)
{
    const char *names[NAMED_MOST];
    char *all = text_copy("", SIZE_MAX);
    for (size_t i = 0; i < count; i++) {
        names[i] = known[i].name;
        all = text_format("%s%s%s", all, i == 0 ? "" : "|", names[i]);
    }
    const char *near = suggest_word(name, names, count);
    return near != NULL ? text_format("no such name; did you mean %s?", near)
                        : text_format("no such name; use one of %s", all);
}

/* Takes "hidden=4096". Returns NULL, or what is wrong with it. */
static char *take_piece(const struct named *known, size_t count, const struct fits_dtype **dtype, const char *piece)
{
    size_t length = strcspn(piece, "="), i = 0;
    char *name = text_copy(piece, length);
    const char *value = piece + length + (piece[length] == '=');
    while (i < count && strcmp(name, known[i].name) != 0)
        i++;
    if (i == count)
        return no_such_name(known, count, name);
    if (known[i].number != NULL)
        return fits_parse_number(value, known[i].number)
                   ? NULL
                   : text_format("not a number from 1 on; for example %s=4096", name);
    *dtype = fits_dtype_named(value);
    return *dtype != NULL ? NULL : text_format("no such dtype; for example dtype=bf16");
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
    const struct named known[] = {{"hidden", &shape->hidden},
                                  {"layers", &shape->layers},
                                  {"vocab", &shape->vocabulary},
                                  {"inner", &shape->inner},
                                  {"heads", &heads},
                                  {"kv_heads", &kv_heads},
                                  {"head_dim", &head_dim},
                                  {"context", &model->context},
                                  {"dtype", NULL}};
    char *copy = text_copy(text, SIZE_MAX), *rest = copy, *piece = strsep(&rest, ",");
    const struct fits_dtype *dtype = fits_dtype_named("bf16");
    *model = (struct fits_model){.format = "description", .basis = FITS_FROM_TEXT};
    model->parameter_count = (uint64_t)parameters_of(piece);
    while (model->wrong == NULL && (piece = strsep(&rest, ",")) != NULL) {
        const char *fault = take_piece(known, sizeof known / sizeof known[0], &dtype, piece);
        if (fault != NULL)
            fits_model_fail(model, "%s: %s", text_printable(piece, false), fault);
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
