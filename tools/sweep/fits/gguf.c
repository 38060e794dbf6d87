/*
 * gguf.c - reads the header of a GGUF file (versions 2 and 3, little-endian): metadata, then the name, shape and type
 * of each tensor. The data is not read, so a file of which only the beginning was downloaded will do.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "sweep/fits/fits.h"
#include "common/bytes.h"
#include "common/tool.h"

enum { KEY_CAPACITY = 128, DIMENSIONS = 8, NESTING = 4, ALIGNMENT = 32 };

/* Types of metadata, in the order of their numbers. */
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, VALUE_TYPES };
static const unsigned char value_bytes[VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* Types of tensors by number: a block of so many weights takes so many bytes. */
static const struct {
    const char *name;
    unsigned weights, bytes;
} types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},      [3] = {"Q4_1", 32, 20},
    [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},      [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 40},
    [10] = {"Q2_K", 256, 84},    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66}, [17] = {"IQ2_XS", 256, 74},
    [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},   [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},
    [22] = {"IQ2_S", 256, 82},   [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},        [29] = {"IQ1_M", 256, 56},
    [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},   [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
    [40] = {"NVFP4", 64, 36},    [41] = {"Q1_0", 128, 18},
};
enum { TYPES = sizeof types / sizeof types[0] };

/* What the metadata says. Numbers are 0 where they are not there. */
struct facts {
    uint64_t layers, context, embedding, heads, kv_heads_sum, kv_heads_most, kv_layers;
    uint64_t key_length, value_length, split_count, alignment;
};

struct reader {
    struct fits_source source;
    struct fits_model *model;
    struct facts facts;
};

static bool read_number(struct reader *reader, size_t length, uint64_t *number)
{
    unsigned char bytes[8];
    if (!fits_source_take(&reader->source, bytes, length))
        return false;
    *number = fits_little_endian(bytes, length);
    return true;
}

/* Takes a string; a longer one is cut to `capacity`. */
static bool read_string(struct reader *reader, char *text, size_t capacity)
{
    uint64_t length;
    if (!read_number(reader, 8, &length))
        return false;
    size_t kept = (size_t)bytes_min(length, capacity - 1);
    if (!fits_source_take(&reader->source, text, kept) || !fits_source_skip(&reader->source, length - kept))
        return false;
    text[kept] = '\0';
    return true;
}

/* Notes the heads of one layer: models may have another number in each. */
static void note_heads(struct facts *facts, uint64_t heads)
{
    facts->kv_heads_sum = fits_sum(facts->kv_heads_sum, heads);
    facts->kv_heads_most = bytes_max(facts->kv_heads_most, heads);
    facts->kv_layers++;
}

static void note_number(struct facts *facts, const char *key, uint64_t number)
{
    const struct {
        const char *key;
        uint64_t *number;
    } wanted[] = {{"block_count", &facts->layers},
                  {"context_length", &facts->context},
                  {"embedding_length", &facts->embedding},
                  {"attention.head_count", &facts->heads},
                  {"attention.key_length", &facts->key_length},
                  {"attention.value_length", &facts->value_length}};
    const char *rest = strchr(key, '.');
    if (strcmp(key, "split.count") == 0)
        facts->split_count = number;
    else if (strcmp(key, "general.alignment") == 0)
        facts->alignment = number;
    for (size_t i = 0; rest != NULL && i < sizeof wanted / sizeof wanted[0]; i++)
        if (strcmp(rest + 1, wanted[i].key) == 0)
            *wanted[i].number = bytes_min(number, FITS_MOST);
    if (rest != NULL && strcmp(rest + 1, "attention.head_count_kv") == 0)
        note_heads(facts, number);
}

static bool read_value(struct reader *reader, const char *key, uint64_t type, unsigned depth);

static bool read_array(struct reader *reader, const char *key, unsigned depth)
{
    uint64_t type, count;
    if (depth == NESTING || !read_number(reader, 4, &type) || !read_number(reader, 8, &count) || type >= VALUE_TYPES)
        return false;
    bool is_wanted = strstr(key, ".attention.head_count") != NULL && count <= FITS_LAYERS;
    if (value_bytes[type] > 0 && !is_wanted)
        return count <= FITS_GGUF_HEADER_MOST && fits_source_skip(&reader->source, count * value_bytes[type]);
    for (uint64_t i = 0; i < count; i++)
        if (!read_value(reader, is_wanted ? key : "", type, depth + 1))
            return false;
    return true;
}

static bool read_value(struct reader *reader, const char *key, uint64_t type, unsigned depth)
{
    char text[FITS_NAME_CAPACITY];
    uint64_t number;
    if (type == STRING) {
        if (!read_string(reader, text, sizeof text))
            return false;
        if (strcmp(key, "general.architecture") == 0)
            snprintf(reader->model->family, sizeof reader->model->family, "%s", text);
        return true;
    }
    if (type == ARRAY)
        return read_array(reader, key, depth);
    if (type >= VALUE_TYPES || !read_number(reader, value_bytes[type], &number))
        return false;
    if (type != F32 && type != F64)
        note_number(&reader->facts, key, number);
    return true;
}

static bool read_tensor(struct reader *reader, struct fits_dtype_sums *sums, uint64_t *data_bytes)
{
    char name[KEY_CAPACITY];
    uint64_t dimensions, type, offset, elements = 1, row = 1, size;
    if (!read_string(reader, name, sizeof name) || !read_number(reader, 4, &dimensions) || dimensions > DIMENSIONS)
        return false;
    for (uint64_t i = 0; i < dimensions; i++) {
        if (!read_number(reader, 8, &size))
            return false;
        row = i == 0 ? size : row;
        elements = fits_product(elements, size);
    }
    if (!read_number(reader, 4, &type) || !read_number(reader, 8, &offset))
        return false;
    if (type >= TYPES || types[type].weights == 0)
        return fits_model_fail(reader->model, "a tensor is of type %" PRIu64 ", which is not known here", type);
    if (elements >= FITS_MOST || row % types[type].weights != 0)
        return fits_model_fail(reader->model, "the shape of a tensor does not go with its type %s", types[type].name);
    uint64_t bytes = fits_product(elements / types[type].weights, types[type].bytes);
    uint64_t alignment = reader->facts.alignment;
    *data_bytes = fits_sum(*data_bytes, fits_product((bytes + alignment - 1) / alignment, alignment));
    fits_dtype_sums_add(sums, types[type].name, bytes);
    fits_model_count(reader->model, name, FITS_FLOATS, elements, bytes);
    return true;
}

/* The cache that the metadata describes. llama.cpp keeps all tokens of each layer, also where a model has a window. */
static void set_cache(struct fits_model *model, const struct facts *facts)
{
    uint64_t head = facts->heads > 0 ? facts->embedding / facts->heads : 0;
    uint64_t key = facts->key_length > 0 ? facts->key_length : head;
    uint64_t value = facts->value_length > 0 ? facts->value_length : head;
    uint64_t all_heads = facts->kv_heads_sum;
    if (facts->kv_layers == 0) /* as many as heads */
        all_heads = fits_product(facts->heads, facts->layers);
    else if (facts->kv_layers == 1)
        all_heads = fits_product(facts->kv_heads_sum, facts->layers);
    model->context_most = facts->context;
    model->cache = (struct fits_cache){.is_known = facts->layers > 0 && fits_sum(key, value) > 0 && all_heads > 0,
                                       .layers = facts->layers,
                                       .kv_heads = facts->kv_layers > 0 ? facts->kv_heads_most : facts->heads,
                                       .numbers = fits_product(all_heads, fits_sum(key, value)),
                                       .key_dim = key,
                                       .value_dim = value};
    model->cache.has_none = strstr(model->family, "bert") != NULL;
}

static bool read_metadata(struct reader *reader, uint64_t count)
{
    char key[KEY_CAPACITY];
    uint64_t type;
    for (uint64_t i = 0; i < count; i++)
        if (!read_string(reader, key, sizeof key) || !read_number(reader, 4, &type) ||
            !read_value(reader, key, type, 0))
            return false;
    return true;
}

/* Reads the whole header. Returns false, perhaps without a reason: then it ended early or is none. */
static bool read_header(struct reader *reader, struct fits_dtype_sums *sums, uint64_t *data_bytes)
{
    uint64_t magic, version, tensors, values;
    if (!read_number(reader, 4, &magic) || magic != UINT64_C(0x46554747) || !read_number(reader, 4, &version))
        return fits_model_fail(reader->model, "no GGUF file");
    if (version != 2 && version != 3)
        return fits_model_fail(reader->model,
                               "a GGUF file of version %" PRIu64 "; 2 and 3 can be read, in little-endian", version);
    if (!read_number(reader, 8, &tensors) || !read_number(reader, 8, &values) || !read_metadata(reader, values))
        return false;
    uint64_t alignment = reader->facts.alignment;
    if (alignment == 0 || alignment > FITS_HEADER_MOST)
        reader->facts.alignment = ALIGNMENT;
    for (uint64_t i = 0; i < tensors; i++)
        if (!read_tensor(reader, sums, data_bytes))
            return false;
    return true;
}

bool fits_read_gguf(struct fits_model *model, struct fits_dtype_sums *sums, const char *path, uint64_t *split_count)
{
    struct reader *reader = tool_allocate(1, sizeof *reader);
    uint64_t data_bytes = 0;
    char *why = fits_source_open(&reader->source, path);
    bool is_read = false;
    reader->model = model;
    if (why != NULL)
        fits_model_fail(model, "%s", why);
    else {
        reader->source.end = bytes_min(reader->source.size_bytes, FITS_GGUF_HEADER_MOST);
        is_read = read_header(reader, sums, &data_bytes);
        if (!is_read)
            fits_model_fail(model, "its GGUF header is cut off or damaged");
        else if (model->file_count++ == 0)
            set_cache(model, &reader->facts);
        model->largest_file_bytes = bytes_max(model->largest_file_bytes, data_bytes);
        /* The end of the last tensor need not be padded. */
        uint64_t there = bytes_less(reader->source.size_bytes, reader->source.at) + reader->facts.alignment;
        model->missing_bytes = fits_sum(model->missing_bytes, bytes_less(data_bytes, there));
        fits_source_close(&reader->source);
    }
    *split_count = reader->facts.split_count;
    return is_read;
}
