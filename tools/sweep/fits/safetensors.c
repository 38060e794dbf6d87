/*
 * safetensors.c - reads the header of a .safetensors file: 8 bytes with its length, then JSON with the dtype, the shape
 * and the place of each tensor. The tensors follow without gaps, so the header tells how long the file must be.
 */
#include <inttypes.h>
#include <string.h>

#include "sweep/fits/fits.h"
#include "common/bytes.h"
#include "common/tool.h"

enum { LENGTH_BYTES = 8, DIMENSIONS = 64 };

static const struct {
    const char *name;
    unsigned bits;
    enum fits_float floats;
} formats[] = {
    {"F64", 64, FITS_F64},       {"F32", 32, FITS_F32},       {"F16", 16, FITS_F16},       {"BF16", 16, FITS_BF16},
    {"F8_E4M3", 8, FITS_FLOATS}, {"F8_E5M2", 8, FITS_FLOATS}, {"F8_E8M0", 8, FITS_FLOATS}, {"F6_E2M3", 6, FITS_FLOATS},
    {"F6_E3M2", 6, FITS_FLOATS}, {"F4", 4, FITS_FLOATS},      {"I64", 64, FITS_FLOATS},    {"I32", 32, FITS_FLOATS},
    {"I16", 16, FITS_FLOATS},    {"I8", 8, FITS_FLOATS},      {"U64", 64, FITS_FLOATS},    {"U32", 32, FITS_FLOATS},
    {"U16", 16, FITS_FLOATS},    {"U8", 8, FITS_FLOATS},      {"BOOL", 8, FITS_FLOATS},    {"C64", 64, FITS_FLOATS},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

/* Takes the number of elements from a shape. Returns false if it is none. */
static bool parse_shape(const json_t *shape, uint64_t *elements)
{
    *elements = 1;
    if (!json_is_array(shape) || json_array_size(shape) > DIMENSIONS)
        return false;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        const json_t *dimension = json_array_get(shape, i);
        if (!json_is_integer(dimension) || json_integer_value(dimension) < 0)
            return false;
        *elements = fits_product(*elements, (uint64_t)json_integer_value(dimension));
    }
    return *elements < FITS_MOST;
}

static bool parse_place(const json_t *offsets, uint64_t *begin, uint64_t *end)
{
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first))
        return false;
    *begin = (uint64_t)json_integer_value(first);
    *end = (uint64_t)json_integer_value(last);
    return *end < FITS_MOST;
}

/* Counts one tensor; *data_end becomes the end of the last one by place, *data_sum the bytes of all. */
static bool add_tensor(struct fits_model *model, struct fits_dtype_sums *sums, const char *name, const json_t *tensor,
                       uint64_t *data_end, uint64_t *data_sum)
{
    const char *format = json_string_value(json_object_get(tensor, "dtype"));
    uint64_t elements, begin, end;
    size_t i = 0;
    if (format == NULL || !parse_shape(json_object_get(tensor, "shape"), &elements) ||
        !parse_place(json_object_get(tensor, "data_offsets"), &begin, &end))
        return fits_model_fail(model, "a tensor of its header has no dtype, shape or place");
    while (i < FORMATS && strcmp(formats[i].name, format) != 0)
        i++;
    if (i < FORMATS && (fits_product(elements, formats[i].bits) + 7) / 8 != end - begin)
        return fits_model_fail(model, "the shape and the bytes of a tensor differ");
    fits_dtype_sums_add(sums, format, end - begin);
    fits_model_count(model, name, i < FORMATS ? formats[i].floats : FITS_FLOATS, elements, end - begin);
    *data_end = bytes_max(*data_end, end);
    *data_sum = fits_sum(*data_sum, end - begin);
    return true;
}

static bool add_header(struct fits_model *model, struct fits_dtype_sums *sums, const json_t *root, uint64_t *data_end)
{
    uint64_t data_sum = 0;
    const char *name;
    json_t *tensor;
    json_object_foreach((json_t *)(uintptr_t)root, name, tensor)
    {
        if (strcmp(name, "__metadata__") != 0 && !add_tensor(model, sums, name, tensor, data_end, &data_sum))
            return false;
    }
    return data_sum == *data_end || fits_model_fail(model, "its tensors overlap or leave gaps");
}

/* Reads the header's text. Returns NULL after fits_model_fail(). */
static char *read_header(struct fits_model *model, const struct fits_source *source, size_t *length)
{
    unsigned char prefix[LENGTH_BYTES];
    if (!fits_source_read(source, 0, prefix, sizeof prefix)) {
        fits_model_fail(model, "too short for a safetensors file");
        return NULL;
    }
    uint64_t declared = fits_little_endian(prefix, sizeof prefix);
    if (declared < 2 || declared > FITS_HEADER_MOST) {
        fits_model_fail(model, "no safetensors file: its header would be of %" PRIu64 " bytes", declared);
        return NULL;
    }
    if (declared > bytes_less(source->size_bytes, LENGTH_BYTES)) {
        fits_model_fail(model, "only %" PRIu64 " bytes of it are there, and its header is of %" PRIu64,
                        source->size_bytes, declared + LENGTH_BYTES);
        return NULL;
    }
    char *text = tool_allocate((size_t)declared + 1, 1);
    *length = (size_t)declared;
    if (fits_source_read(source, LENGTH_BYTES, text, *length))
        return text;
    fits_model_fail(model, "it became shorter while it was read");
    return NULL;
}

bool fits_read_safetensors(struct fits_model *model, struct fits_dtype_sums *sums, const char *path)
{
    struct fits_source *source = tool_allocate(1, sizeof *source);
    uint64_t data_end = 0;
    size_t length = 0;
    char *why = fits_source_open(source, path), *text = NULL;
    json_t *root = NULL;
    if (why != NULL)
        fits_model_fail(model, "%s", why);
    else if ((text = read_header(model, source, &length)) != NULL)
        root = fits_load_json(model, text, length);
    bool is_read = root != NULL && add_header(model, sums, root, &data_end);
    if (is_read) {
        uint64_t there = bytes_less(source->size_bytes, LENGTH_BYTES + length);
        model->file_count++;
        model->largest_file_bytes = bytes_max(model->largest_file_bytes, data_end);
        model->missing_bytes = fits_sum(model->missing_bytes, bytes_less(data_end, there));
    }
    if (source->fd >= 0)
        fits_source_close(source);
    return is_read;
}
