/*
 * fits.h - sparkguard-sweep --fits: says whether a model will fit before it is downloaded or started.
 *
 * Files may come from anybody: every count is checked before it is used, every read is bounded. Sums saturate at 2^62.
 * Single-threaded.
 */
#ifndef SG_TOOLS_SWEEP_FITS_FITS_H
#define SG_TOOLS_SWEEP_FITS_FITS_H

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sweep/fits/dtype.h"
#include "sweep/fits/need.h"
#include "sweep/fits/source.h"

/* ---- what is known of a model on disk, from the headers of its weights and from its config.json ---- */

enum { FITS_NAME_CAPACITY = 64, FITS_LAYERS = 4096 };

/* Bounds of what is read. The longest headers known are of 15 MiB (safetensors, 140,000 tensors in an index). */
#define FITS_HEADER_MOST (UINT64_C(32) << 20)
#define FITS_GGUF_HEADER_MOST (UINT64_C(256) << 20)
#define FITS_MOST (UINT64_C(1) << 62)

/* Where the size of the weights is from, the best last. */
enum fits_basis { FITS_NOTHING, FITS_FROM_TEXT, FITS_FROM_CONFIG, FITS_FROM_INDEX, FITS_FROM_HEADERS };

/* Floating-point formats that a program converts when it loads a model in another one. */
enum fits_float { FITS_F64, FITS_F32, FITS_F16, FITS_BF16, FITS_FLOATS };

/* The numbers that a KV cache keeps for each token of a sequence. */
struct fits_cache {
    bool is_known;
    bool has_none;     /* an encoder: it generates nothing */
    uint64_t layers;   /* that have a cache */
    uint64_t kv_heads; /* of a layer, the most if they differ */
    uint64_t numbers;  /* for each token, all layers without a window together */
    uint64_t windowed; /* the same of layers that keep only `window` tokens */
    uint64_t window;
    uint64_t key_dim, value_dim;
    bool is_twice;   /* a decoder that also keeps keys and values of the encoder */
    bool has_states; /* some layers are recurrent and keep states instead, which are not counted */
    bool is_latent;  /* compressed keys and values (MLA) */
};

/* The sizes by which training grows. Numbers are 0 where they are unknown. */
struct fits_shape {
    uint64_t hidden, layers, vocabulary;
    uint64_t inner;      /* of the feed-forward part */
    uint64_t query, key; /* columns of attention's matrices: heads * size of a head */
    bool is_tied;        /* one matrix is the embeddings and the last layer */
};

struct fits_model {
    const char *format;              /* "safetensors", "GGUF", "config.json", "description" */
    char family[FITS_NAME_CAPACITY]; /* "llama"; "" unknown */
    char dtype[FITS_NAME_CAPACITY];  /* in which most bytes are, "BF16"; "" unknown */
    char quantization[FITS_NAME_CAPACITY];
    enum fits_basis basis;
    uint64_t weight_bytes;
    uint64_t parameter_count;
    uint64_t tensor_count;
    uint64_t file_count, missing_count;
    uint64_t largest_file_bytes;
    uint64_t missing_bytes; /* declared by headers and not there yet */
    uint64_t float_count[FITS_FLOATS];
    uint64_t merged_bytes; /* of experts that have a tensor each, which programs merge into one */
    uint64_t context_most; /* 0 unknown */
    uint64_t context;      /* tokens that a description names; 0: none */
    struct fits_cache cache;
    struct fits_shape shape;
    char *wrong; /* why the model cannot be read, NULL: it can */
};

/* find.c: reads a folder or a file. Returns false if nothing can be told; model->wrong says why. */
bool fits_model_read(struct fits_model *model, const char *path);

/* ---- parts of fits_model_read(); count.c has those without a file's name ---- */

/* Sets model->wrong if it is not set. Returns false. */
bool fits_model_fail(struct fits_model *model, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Counts one tensor. `dtype` is its format's name, `floats` which float it is, FITS_FLOATS: none. */
void fits_model_count(struct fits_model *model, const char *name, enum fits_float floats, uint64_t elements,
                      uint64_t bytes);
/* Sums up bytes by dtype while headers are read; model->dtype becomes the one with most bytes. */
struct fits_dtype_sums {
    struct {
        char name[16];
        uint64_t bytes;
    } dtype[48];
    size_t count;
};
void fits_dtype_sums_add(struct fits_dtype_sums *sums, const char *name, uint64_t bytes);
void fits_dtype_sums_end(const struct fits_dtype_sums *sums, struct fits_model *model);

/* safetensors.c, gguf.c: read one file, and add it to the model. Return false after fits_model_fail(). */
bool fits_read_safetensors(struct fits_model *model, struct fits_dtype_sums *sums, const char *path);
bool fits_read_gguf(struct fits_model *model, struct fits_dtype_sums *sums, const char *path, uint64_t *split_count);
/* config.c: reads the shape of the cache, and what the weights come to if no header was read. */
bool fits_read_config(struct fits_model *model, const char *path);
/* shape.c: whether a text describes a model, as "8B,hidden=4096" does; reads one. Returns false after
 * fits_model_fail(). */
bool fits_is_shape(const char *text);
bool fits_read_shape(struct fits_model *model, const char *text);
/* Parses a number from 1 on: "8192", or "8K", which is 8 * 1024. */
bool fits_parse_number(const char *text, uint64_t *number);
/* Return the root object of a JSON text, of a file of at most `most` bytes; NULL after fits_model_fail(). */
json_t *fits_load_json(struct fits_model *model, const char *text, size_t length);
json_t *fits_read_json(struct fits_model *model, const char *path, size_t most);
/* Returns a + b, a * b, at most FITS_MOST. */
uint64_t fits_sum(uint64_t a, uint64_t b);
uint64_t fits_product(uint64_t a, uint64_t b);

/* ---- what a program will make of it ---- */

/* What a program does with the bytes of the files. */
enum fits_load {
    FITS_LOAD_UNSAID,
    FITS_LOAD_MAP,  /* it uses them where they are mapped */
    FITS_LOAD_COPY, /* it copies them out of the mapped files, to a GPU or to another dtype */
    FITS_LOAD_READ, /* it reads each file into a buffer first */
};

enum fits_train { FITS_NO_TRAINING, FITS_SFT, FITS_DPO, FITS_GRPO, FITS_LORA, FITS_QLORA };

struct fits {
    const char *path;   /* or a description; NULL: --fits was not given */
    const char *option; /* the first of the other options, as it was typed; NULL: none */
    uint64_t context;   /* tokens; 0: not given */
    uint64_t batch;     /* sequences at a time; 0: not given */
    const struct fits_dtype *kv_dtype, *dtype;
    enum fits_load load;
    enum fits_train train;
    uint64_t sequence;   /* tokens of a sequence in training; 0: not given */
    uint64_t rank;       /* of adapters; 0: not given */
    bool is_keeping_all; /* no checkpointing of activations */
    const char *optimizer;
    double optimizer_bytes; /* for each trained parameter */
    double generation;      /* the part of the machine that GRPO's engine takes; -1: not given */
};

extern const char *const fits_train_name[]; /* "sft"; NULL for FITS_NO_TRAINING */
/* options.c: the options of --fits, a child of the tool's parser; its input is a struct fits. */
extern const struct argp fits_options;

/* What loading a model takes, in bytes. */
struct fits_loading {
    uint64_t weight_bytes;   /* as they are kept; without pages of files for FITS_LOAD_COPY */
    uint64_t extra_bytes;    /* of its own, while it loads: the buffer of a file, merged experts */
    uint64_t page_bytes;     /* mapped pages of the files that are resident at the peak, beyond weight_bytes */
    uint64_t resident_bytes; /* the peak of the process's resident memory */
    uint64_t private_bytes;  /* the part of it that is not pages of files, which is what the guard counts */
};

/* cache.c */
uint64_t fits_context(const struct fits *fits, const struct fits_model *model);
void fits_add_cache(struct fits_need *need, const struct fits *fits, const struct fits_model *model);
/* train.c: adds all terms of training. total_bytes: of the machine, SG_UNKNOWN if unknown. */
void fits_add_training(struct fits_need *need, const struct fits *fits, const struct fits_model *model,
                       uint64_t total_bytes);
/* loading.c */
struct fits_loading fits_loading_of(const struct fits *fits, const struct fits_model *model, uint64_t cache_bytes);
void fits_add_weights(struct fits_need *need, const struct fits *fits, const struct fits_model *model,
                      const struct fits_loading *loading);

/* report.c: reads the model, prints the estimate and the verdict. Returns one of the exit codes. */
int fits_run(const struct fits *fits, bool is_json);

#endif
