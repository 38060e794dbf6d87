/*
 * options.c - the options of sparkguard-sweep --fits.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "common/bad_value.h"
#include "sweep/fits/fits.h"

enum { KEY_FITS = 512, KEY_CONTEXT, KEY_BATCH, KEY_KV, KEY_DTYPE, KEY_LOAD, USAGE = 2 };
#define NUMBER_MOST (UINT64_C(1) << 40)

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Whether a model fits, before it is downloaded or started:", 20},
    {"fits", KEY_FITS, "FILE", 0, "folder or file of a model: safetensors, GGUF, their index or config.json", 20},
    {"context", KEY_CONTEXT, "TOKENS", 0, "tokens of a sequence (the model's, at most 4096)", 20},
    {"batch", KEY_BATCH, "NUMBER", 0, "sequences at a time (1)", 20},
    {"kv-dtype", KEY_KV, "DTYPE", 0, "of the KV cache: bf16, fp8, ... (16 bits)", 20},
    {"dtype", KEY_DTYPE, "DTYPE", 0, "to which the program converts the weights: fp32, fp16 or bf16 (as stored)", 20},
    {"load", KEY_LOAD, "map|copy|read", 0,
     "whether the program uses the mapped files (map), copies out of them, as to a GPU, or reads them into buffers",
     20},
    {0},
};

__attribute__((noreturn)) static void refuse(const char *option, const char *text, const char *fault,
                                             const char *example)
{
    bad_value_say("sparkguard-sweep", option, text, fault, example, "nothing is run");
    exit(USAGE);
}

/* Takes "8192" or "8K", which is 8 * 1024. */
static uint64_t take_number(const char *option, const char *text)
{
    char *end;
    uint64_t number = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    if (number == 0 || number > NUMBER_MOST)
        refuse(option, text, "not a number from 1 on", "8192");
    if ((*end == 'K' || *end == 'k') && end[1] == '\0')
        return number * 1024;
    if (*end != '\0')
        refuse(option, text, "not a number from 1 on", "8192");
    return number;
}

static const struct fits_dtype *take_dtype(const char *option, const char *text, bool is_float)
{
    const struct fits_dtype *dtype = fits_dtype_named(text);
    if (dtype == NULL || (is_float && dtype->bits < 16))
        refuse(option, text, "no such dtype", is_float ? "fp32|fp16|bf16" : "fp8");
    return dtype;
}

static enum fits_load take_load(const char *text)
{
    static const char *const words[] = {[FITS_LOAD_MAP] = "map", [FITS_LOAD_COPY] = "copy", [FITS_LOAD_READ] = "read"};
    for (int load = FITS_LOAD_MAP; load <= FITS_LOAD_READ; load++)
        if (strcmp(text, words[load]) == 0)
            return (enum fits_load)load;
    refuse("--load", text, "no such word", "map|copy|read");
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct fits *fits = state->input;
    switch (key) {
    case KEY_FITS:
        fits->path = argument;
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
        fits->load = take_load(argument);
        fits->option = "--load";
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp fits_options = {.options = options, .parser = parse_option};
