/*
 * options.c - the options of sparkguard-sweep --fits.
 */
#include <stdlib.h>

#include "common/bad_value.h"
#include "sparkguard_options.h"
#include "sweep/fits/fits.h"

/* The words of an option, in the order of enum fits_train, of the optimizers in set_optimizer(), of enum fits_load. */
#define TRAINS "sft|dpo|grpo|lora|qlora"
#define OPTIMIZERS "adamw32|adamw16|adamw8|sgd"
#define LOADS "map|copy|read"

enum {
    KEY_FITS = 512,
    KEY_CONTEXT,
    KEY_BATCH,
    KEY_KV,
    KEY_DTYPE,
    KEY_LOAD,
    KEY_TRAIN,
    KEY_SEQ,
    KEY_RANK,
    KEY_ALL,
    KEY_OPTIMIZER,
    KEY_GENERATION,
    USAGE = 2
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Whether a model fits, before it is downloaded or started:", 20},
    {"fits", KEY_FITS, "MODEL", 0,
     "folder or file of a model: safetensors, GGUF, their index or config.json; or "
     "8B,hidden=4096,layers=32,vocab=128256",
     20},
    {"train", KEY_TRAIN, TRAINS, 0, "to train it, with --batch and --seq", 20},
    {"seq", KEY_SEQ, "TOKENS", 0, "with --train: tokens of a sequence", 20},
    {"rank", KEY_RANK, "NUMBER", 0, "with --train: of LoRA's adapters (16)", 20},
    {"optimizer", KEY_OPTIMIZER, OPTIMIZERS, 0, "with --train: what it keeps (adamw32)", 20},
    {"no-checkpointing", KEY_ALL, NULL, 0, "with --train: all layers keep their activations", 20},
    {"generation", KEY_GENERATION, "PART", 0,
     "with --train=grpo: of the memory, from 0 to 1, for the engine that answers", 20},
    {"context", KEY_CONTEXT, "TOKENS", 0, "tokens of a sequence (the model's, at most 4096)", 20},
    {"batch", KEY_BATCH, "NUMBER", 0, "sequences at a time (1)", 20},
    {"kv-dtype", KEY_KV, "DTYPE", 0, "of the KV cache: bf16, fp8, ... (16 bits)", 20},
    {"dtype", KEY_DTYPE, "DTYPE", 0, "to which the program converts the weights: fp32, fp16 or bf16 (as stored)", 20},
    {"load", KEY_LOAD, LOADS, 0,
     "whether the program uses the mapped files (map), copies out of them, as to a GPU, or reads them into buffers",
     20},
    {0},
};

__attribute__((noreturn)) static void refuse_fits_value(const char *option, const char *text, const char *fault,
                                                        const char *example)
{
    bad_value_say("sparkguard-sweep", option, text, fault, example, "nothing is run");
    exit(USAGE);
}

static uint64_t take_number(const char *option, const char *text)
{
    uint64_t number;
    if (!fits_parse_number(text, &number))
        refuse_fits_value(option, text, "not a number from 1 on", "8192");
    return number;
}

static const struct fits_dtype *take_dtype(const char *option, const char *text, bool is_float)
{
    const struct fits_dtype *dtype = fits_dtype_named(text);
    if (dtype == NULL || (is_float && dtype->bits < 16))
        refuse_fits_value(option, text, "no such dtype", is_float ? "fp32|fp16|bf16" : "fp8");
    return dtype;
}

/* Returns the place of a word among those of the table of options. */
static int take_word(const char *option, const char *text, const char *words)
{
    int place = sg_parse_choice(text, words);
    if (place < 0)
        refuse_fits_value(option, text, "unknown value", words);
    return place;
}

const char *const fits_train_name[] = {NULL, "sft", "dpo", "grpo", "lora", "qlora"};

/* `place`: among the words of --optimizer. */
static void set_optimizer(struct fits *fits, int place)
{
    static const char *const titles[] = {"AdamW, two moments in FP32", "AdamW, two moments in BF16",
                                         "AdamW, two moments in 8 bits", "SGD"};
    static const double bytes[] = {8, 4, 2, 0};
    fits->optimizer = titles[place];
    fits->optimizer_bytes = bytes[place];
}

static double take_part(const char *option, const char *text)
{
    char *end = NULL;
    double part = text[0] >= '0' && text[0] <= '9' ? strtod(text, &end) : -1;
    if (part < 0 || part > 1 || end == NULL || *end != '\0')
        refuse_fits_value(option, text, "not a part of the memory, from 0 to 1", "0.3");
    return part;
}

/* Refuses what goes with training alone. */
static void check(const struct fits *fits)
{
    if (fits->train == FITS_NO_TRAINING && (fits->sequence > 0 || fits->rank > 0 || fits->is_keeping_all ||
                                            fits->optimizer != NULL || fits->generation >= 0)) {
        fputs("sparkguard-sweep: --seq, --rank, --optimizer, --no-checkpointing and --generation go with --train\n",
              stderr);
        exit(USAGE);
    }
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct fits *fits = state->input;
    switch (key) {
    case KEY_FITS:
        fits->path = argument;
        return 0;
    case KEY_TRAIN:
        fits->train = FITS_SFT + (enum fits_train)take_word(fits->option = "--train", argument, TRAINS);
        return 0;
    case KEY_SEQ:
        fits->sequence = take_number(fits->option = "--seq", argument);
        return 0;
    case KEY_RANK:
        fits->rank = take_number(fits->option = "--rank", argument);
        return 0;
    case KEY_ALL:
        fits->option = "--no-checkpointing";
        fits->is_keeping_all = true;
        return 0;
    case KEY_OPTIMIZER:
        set_optimizer(fits, take_word(fits->option = "--optimizer", argument, OPTIMIZERS));
        return 0;
    case KEY_GENERATION:
        fits->generation = take_part(fits->option = "--generation", argument);
        return 0;
    case ARGP_KEY_INIT:
        fits->generation = -1;
        return 0;
    case ARGP_KEY_END:
        check(fits);
        if (fits->optimizer == NULL)
            set_optimizer(fits, 0);
        return 0;
    case KEY_CONTEXT:
        fits->context = take_number(fits->option = "--context", argument);
        return 0;
    case KEY_BATCH:
        fits->batch = take_number(fits->option = "--batch", argument);
        return 0;
    case KEY_KV:
        fits->kv_dtype = take_dtype(fits->option = "--kv-dtype", argument, false);
        return 0;
    case KEY_DTYPE:
        fits->dtype = take_dtype(fits->option = "--dtype", argument, true);
        return 0;
    case KEY_LOAD:
        fits->load = FITS_LOAD_MAP + (enum fits_load)take_word(fits->option = "--load", argument, LOADS);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp fits_options = {.options = options, .parser = parse_option};
