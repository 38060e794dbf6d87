/*
 * loading.c - what loading takes beside the weights themselves. It depends on the program:
 *
 *   map    tensors stay in the mapped files (transformers on a CPU in the stored dtype, llama.cpp). Their pages are page cache,
 *          which the guard does not count and the kernel may take back; but a model runs well only with all of them
 * resident.
 *   copy   tensors are copied out of the mapped files (to a GPU, or to another dtype). While that lasts the pages of the files are
 *          resident too; the kernel takes them back where memory is short.
 *   read   each file is read into a buffer, from which the tensors are made.
 *
 * Experts that have a tensor each are copied in every case: programs merge them into one tensor for each layer. What
 * they free meanwhile stays resident in part: the C library keeps up to twice its largest freed block (mallopt(3)), and
 * such a block is at most the experts of a layer.
 */
#include "common/bytes.h"
#include "sweep/fits/fits.h"

static bool is_converted(const struct fits *fits, const struct fits_model *model)
{
    static const double bits[FITS_FLOATS] = {64, 32, 16, 16};
    static const char *const names[FITS_FLOATS] = {"", "fp32", "fp16", "bf16"};
    for (int i = 0; fits->dtype != NULL && i < FITS_FLOATS; i++)
        if (model->float_count[i] > 0 && (bits[i] != fits->dtype->bits || fits_dtype_named(names[i]) != fits->dtype))
            return true;
    return false;
}

/* Returns the bytes of all weights after the conversion to --dtype: floats change, quantised and whole numbers do
 * not. */
static uint64_t converted_bytes(const struct fits *fits, const struct fits_model *model)
{
    static const uint64_t bytes[FITS_FLOATS] = {8, 4, 2, 2};
    uint64_t sum = model->weight_bytes;
    for (int i = 0; fits->dtype != NULL && i < FITS_FLOATS; i++) {
        sum = bytes_less(sum, fits_product(model->float_count[i], bytes[i]));
        sum = fits_sum(sum, fits_product(model->float_count[i], (uint64_t)fits->dtype->bits / 8));
    }
    return sum;
}

struct fits_loading fits_loading_of(const struct fits *fits, const struct fits_model *model, uint64_t cache_bytes)
{
    struct fits_loading loading = {.weight_bytes = converted_bytes(fits, model)};
    bool is_copied = fits->load == FITS_LOAD_COPY || (fits->load != FITS_LOAD_READ && is_converted(fits, model));
    uint64_t copied = loading.weight_bytes, freed = 0;
    if (fits->load == FITS_LOAD_READ)
        loading.extra_bytes = model->largest_file_bytes > 0 ? model->largest_file_bytes : model->weight_bytes;
    else if (is_copied)
        loading.page_bytes = model->weight_bytes;
    else {
        copied = loading.page_bytes = model->merged_bytes;
        if (model->cache.layers > 0)
            freed = 2 * (model->merged_bytes / model->cache.layers);
    }
    loading.private_bytes = fits_sum(fits_sum(copied, loading.extra_bytes), cache_bytes);
    loading.resident_bytes =
        fits_sum(fits_sum(loading.weight_bytes, loading.extra_bytes), fits_sum(loading.page_bytes, cache_bytes));
    loading.resident_bytes = fits_sum(loading.resident_bytes, freed);
    return loading;
}

static const char *basis_text(const struct fits_model *model)
{
    if (model->basis == FITS_FROM_TEXT)
        return "by the description";
    if (model->basis == FITS_FROM_CONFIG)
        return "about: computed from config.json";
    return model->basis == FITS_FROM_INDEX ? "by the total_size of the index" : "by the headers of the files";
}

void fits_add_weights(struct fits_need *need, const struct fits *fits, const struct fits_model *model,
                      const struct fits_loading *loading)
{
    if (fits->dtype != NULL && loading->weight_bytes != model->weight_bytes)
        fits_need_add(need, "weights", (double)loading->weight_bytes, "converted to %s; %s", fits->dtype->title,
                      basis_text(model));
    else
        fits_need_add(need, "weights", (double)loading->weight_bytes, "%s", basis_text(model));
    if (loading->extra_bytes > 0)
        fits_need_add(need, "loading", (double)loading->extra_bytes, "read: a buffer of the largest file");
    else if (loading->private_bytes >= loading->weight_bytes && loading->page_bytes > 0)
        fits_need_add(need, "loading", 0, "copied out of the mapped files; their pages give way");
    else
        fits_need_add(need, "loading", 0, "mapped: the weights stay in the pages of the files");
}
