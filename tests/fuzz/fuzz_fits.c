/* Files of models, each kind by the reader that its name or its first bytes choose: safetensors, GGUF, an index,
 * config.json. */
#include "fuzz.h"

#include "common/tool.h"
#include "sweep/fits/fits.h"

FUZZ_CAPACITY(1 << 16); /* the buffer of tools/sweep/fits/source.h */

static void read_one(const char *path)
{
    const struct fits fits = {.path = path, .context = 1000, .batch = 2, .dtype = fits_dtype_named("fp32")};
    struct fits_need need = {0};
    struct fits_model model;
    size_t mark = tool_arena_mark();
    if (fits_model_read(&model, path)) {
        fits_add_cache(&need, &fits, &model);
        const struct fits_loading loading = fits_loading_of(&fits, &model, fits_need_sum(&need));
        fits_add_weights(&need, &fits, &model, &loading);
        for (int train = FITS_SFT; train <= FITS_QLORA; train++) {
            struct fits trained = fits;
            struct fits_need more = {0};
            trained.train = (enum fits_train)train;
            trained.sequence = 1000;
            trained.optimizer = "x";
            fits_add_training(&more, &trained, &model, UINT64_C(1) << 37);
            fuzz_need(fits_need_sum(&more) <= FITS_MOST, "sums of training");
        }
        fuzz_need(fits_need_sum(&need) <= FITS_MOST && loading.resident_bytes <= FITS_MOST, "sums");
    } else
        fuzz_need(model.wrong != NULL, "a reason");
    tool_arena_release(mark); /* each block once: nobody has freed one by hand */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"model.safetensors", "m.gguf", "model.safetensors.index.json", "config.json"};
    uint8_t start = size > 0 ? data[0] : 0;
    fuzz_put("any", data, size);
    read_one(fuzz_path("any"));
    /* As the only file of a folder: the name chooses the reader. */
    const char *name = start == 'G' ? names[1] : start == '{' ? names[2 + size % 2] : names[0];
    char path[512];
    (void)snprintf(path, sizeof path, "folder/%s", name);
    fuzz_put(path, data, size);
    (void)snprintf(path, sizeof path, "%s/folder", fuzz_folder());
    read_one(path);
    (void)snprintf(path, sizeof path, "folder/%s", name);
    (void)unlink(fuzz_path(path));
    return 0;
}
