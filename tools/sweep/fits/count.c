/*
 * count.c - what the readers of headers share: sums that cannot wrap around, counts of tensors, the first reason for a
 * failure.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/bytes.h"
#include "common/text.h"
#include "sweep/fits/fits.h"

bool fits_model_fail(struct fits_model *model, const char *format, ...)
{
    va_list arguments;
    if (model->wrong != NULL)
        return false;
    va_start(arguments, format);
    model->wrong = text_formatv(format, arguments);
    va_end(arguments);
    return false;
}

uint64_t fits_sum(uint64_t a, uint64_t b)
{
    return bytes_min(bytes_add(a, b), FITS_MOST);
}

uint64_t fits_product(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? FITS_MOST : bytes_min(product, FITS_MOST);
}

/* Returns whether a tensor is one expert's: "...experts.7.w1.weight". */
static bool is_of_one_expert(const char *name)
{
    const char *experts = strstr(name, ".experts.");
    return experts != NULL && experts[9] >= '0' && experts[9] <= '9';
}

void fits_model_count(struct fits_model *model, const char *name, enum fits_float floats, uint64_t elements,
                      uint64_t bytes)
{
    model->tensor_count++;
    model->parameter_count = fits_sum(model->parameter_count, elements);
    model->weight_bytes = fits_sum(model->weight_bytes, bytes);
    if (floats != FITS_FLOATS)
        model->float_count[floats] = fits_sum(model->float_count[floats], elements);
    if (is_of_one_expert(name))
        model->merged_bytes = fits_sum(model->merged_bytes, bytes);
}

void fits_dtype_sums_add(struct fits_dtype_sums *sums, const char *name, uint64_t bytes)
{
    size_t i = 0;
    while (i < sums->count && strcmp(sums->dtype[i].name, name) != 0)
        i++;
    if (i == sizeof sums->dtype / sizeof sums->dtype[0])
        return;
    if (i == sums->count)
        snprintf(sums->dtype[sums->count++].name, sizeof sums->dtype[0].name, "%s", name);
    sums->dtype[i].bytes = fits_sum(sums->dtype[i].bytes, bytes);
}

void fits_dtype_sums_end(const struct fits_dtype_sums *sums, struct fits_model *model)
{
    uint64_t most = 0;
    for (size_t i = 0; i < sums->count; i++)
        if (sums->dtype[i].bytes > most) {
            char *printable = text_printable(sums->dtype[i].name, false);
            most = sums->dtype[i].bytes;
            snprintf(model->dtype, sizeof model->dtype, "%s", printable);
        }
}

json_t *fits_load_json(struct fits_model *model, const char *text, size_t length)
{
    json_error_t error;
    json_t *root = json_loadb(text, length, 0, &error);
    if (json_is_object(root))
        return root;
    fits_model_fail(model, "its JSON cannot be read: %s",
                    text_printable(root != NULL ? "not an object" : error.text, false));
    return NULL;
}

json_t *fits_read_json(struct fits_model *model, const char *path, size_t most)
{
    char *text;
    size_t length;
    const char *why = fits_source_text(path, most, &text, &length);
    if (why == NULL)
        return fits_load_json(model, text, length);
    fits_model_fail(model, "%s", why);
    return NULL;
}
