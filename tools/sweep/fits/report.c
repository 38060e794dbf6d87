/*
 * report.c - the report of --fits: the model, the terms, what this machine measured of it, the verdict.
 */
#include "sweep/fits/fits.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/style.h"
#include "common/text.h"
#include "common/tool.h"
#include "model/model.h"

enum { MEASURED_MOST = 3, NAME_LEAST = 4 };

/* The latest processes on record whose command names the model. */
struct measured {
    struct {
        char *command;
        uint32_t pid;
        int64_t time_ns;
        uint64_t peak_bytes, resident_bytes;
    } run[MEASURED_MOST];
    size_t count;
};

/* Returns whether a command has the name as a word, or as the end of a path in it. */
static bool names_model(const char *command, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = command; length >= NAME_LEAST && (at = strstr(at, name)) != NULL; at++) {
        bool begins = at == command || strchr(" =/\"'", at[-1]) != NULL;
        if (begins && (at[length] == '\0' || strchr(" /\"',", at[length]) != NULL))
            return true;
    }
    return false;
}

/* Keeps a process if it is among the latest. */
static void keep(struct measured *measured, const struct model_process *process)
{
    size_t at = measured->count;
    while (at > 0 && measured->run[at - 1].time_ns < process->started_ns)
        at--;
    if (at == MEASURED_MOST)
        return;
    if (measured->count == MEASURED_MOST)
        measured->count--;
    memmove(&measured->run[at + 1], &measured->run[at], (measured->count - at) * sizeof measured->run[0]);
    measured->count++;
    measured->run[at].command = text_copy(process->command, SIZE_MAX);
    measured->run[at].pid = process->pid;
    measured->run[at].time_ns = process->started_ns;
    measured->run[at].peak_bytes = process->peak_bytes;
    measured->run[at].resident_bytes =
        process->max_resident_mib > 0 ? (uint64_t)process->max_resident_mib << 20 : SG_UNKNOWN;
}

/* Returns the name by which commands know a model: that of its folder, or of its file if that is not one of the usual
 * ones. A folder of Hugging Face's cache, models--ORG--NAME/snapshots/HASH, is known as ORG/NAME. */
static char *name_in_commands(const char *path)
{
    char *full = tool_adopt(realpath(path, NULL)), *text = full != NULL ? full : text_copy(path, SIZE_MAX);
    char *cached = strstr(text, "/models--"), *slash = strrchr(text, '/');
    if (cached != NULL && strstr(cached, "/snapshots/") != NULL) {
        *strstr(cached, "/snapshots/") = '\0';
        char *name = cached + strlen("/models--"), *dashes = strstr(name, "--");
        return dashes != NULL ? text_format("%.*s/%s", (int)(dashes - name), name, dashes + 2)
                              : text_copy(name, SIZE_MAX);
    }
    if (slash != NULL && slash > text && (strncmp(slash, "/model", 6) == 0 || strcmp(slash, "/config.json") == 0)) {
        *slash = '\0';
        slash = strrchr(text, '/');
    }
    return text_copy(slash != NULL ? slash + 1 : text, SIZE_MAX);
}

/* Looks for processes that were given the model. */
static struct measured find_measured(const char *path)
{
    const struct model_scope scope = {.is_all = true, .wants_history = true};
    struct measured measured = {.count = 0};
    char *name = name_in_commands(path);
    struct model *model = model_build(&scope);
    const struct model_job *job;
    const struct model_process *process;
    DL_FOREACH (model->jobs, job) {
        DL_FOREACH (job->processes, process)
            if (process->command != NULL && names_model(process->command, name))
                keep(&measured, process);
    }
    return measured;
}

static void add_notes(struct fits_need *need, const struct fits_model *model, const struct fits_loading *loading)
{
    if (loading->page_bytes > 0)
        fits_need_note(
            need, "while it loads up to %s are resident; %s of these are pages of files, which the kernel takes back",
            text_size(loading->resident_bytes), text_size(loading->page_bytes));
    if (model->missing_count > 0)
        fits_need_note(need, "%" PRIu64 " of the model's %" PRIu64 " files are not there yet", model->missing_count,
                       model->file_count);
    else if (model->missing_bytes > 0)
        fits_need_note(need, "%s of the files are not there yet", text_size(model->missing_bytes));
    fits_need_note(need,
                   "not in the sum: activations, the program itself and its CUDA context, which is 2.6 GiB under vLLM");
}

static void put_title(const char *path, const struct fits_model *model, const struct style *style)
{
    char *printable = text_printable(path, style->is_utf8);
    char *tensors =
        model->tensor_count > 0 ? text_format(", %" PRIu64 " tensors", model->tensor_count) : text_copy("", 0);
    char *parameters = model->parameter_count > 0
                           ? text_format(", %.4gB parameters", (double)model->parameter_count / 1e9)
                           : text_copy("", 0);
    char *files = model->file_count > 1 ? text_format(", %" PRIu64 " files", model->file_count) : text_copy("", 0);
    char *family = text_printable(model->family, false);
    char *line = text_format("%s: %s%s%s%s%s%s%s%s%s%s", printable, model->format, family[0] != '\0' ? ", " : "",
                             family, files, tensors, parameters, model->dtype[0] != '\0' ? ", " : "", model->dtype,
                             model->quantization[0] != '\0' ? ", quantised: " : "", model->quantization);
    style_words(style, 0, STYLE_PLAIN, line);
    fputc('\n', style->stream);
}

static void add_measured(struct fits_need *need, const struct measured *measured, bool is_utf8)
{
    for (size_t i = 0; i < measured->count; i++) {
        char *command = text_printable(measured->run[i].command, is_utf8);
        text_shorten(command, 60);
        fits_need_note(need, "measured %s: peak %s, resident %s, by %s", text_time_local(measured->run[i].time_ns),
                       text_size(measured->run[i].peak_bytes), text_size(measured->run[i].resident_bytes), command);
    }
}

static void put_json(const struct fits *fits, const struct fits_model *model, const struct fits_need *need,
                     const struct fits_loading *loading, const struct fits_headroom *headroom,
                     const struct measured *measured)
{
    static const char *const bases[] = {[FITS_NOTHING] = "nothing",
                                        [FITS_FROM_TEXT] = "description",
                                        [FITS_FROM_CONFIG] = "config",
                                        [FITS_FROM_INDEX] = "index",
                                        [FITS_FROM_HEADERS] = "headers"};
    json_t *object = json_object(), *runs = json_array();
    json_object_set_new(object, "schema", json_integer(1));
    json_object_set_new(object, "path", json_of_text(fits->path));
    json_object_set_new(object, "format", json_of_text(model->format));
    json_object_set_new(object, "family", json_of_text(model->family[0] != '\0' ? model->family : NULL));
    json_object_set_new(object, "dtype", json_of_text(model->dtype[0] != '\0' ? model->dtype : NULL));
    json_object_set_new(object, "quantization",
                        json_of_text(model->quantization[0] != '\0' ? model->quantization : NULL));
    json_object_set_new(object, "basis", json_of_text(bases[model->basis]));
    json_object_set_new(object, "weight_bytes", json_of_number(model->weight_bytes));
    json_object_set_new(object, "parameter_count",
                        json_of_number(model->parameter_count > 0 ? model->parameter_count : SG_UNKNOWN));
    json_object_set_new(object, "tensor_count",
                        json_of_number(model->tensor_count > 0 ? model->tensor_count : SG_UNKNOWN));
    json_object_set_new(object, "file_count", json_of_number(model->file_count));
    json_object_set_new(object, "missing_count", json_of_number(model->missing_count));
    json_object_set_new(object, "missing_bytes", json_of_number(model->missing_bytes));
    json_object_set_new(object, "context", json_of_number(fits_context(fits, model)));
    json_object_set_new(object, "batch", json_of_number(fits->batch > 0 ? fits->batch : 1));
    json_object_set_new(object, "train", json_of_text(fits_train_name[fits->train]));
    fits_need_set_json(need, object);
    json_object_set_new(object, "peak_resident_bytes", json_of_number(loading->resident_bytes));
    json_object_set_new(object, "peak_private_bytes", json_of_number(loading->private_bytes));
    for (size_t i = 0; i < measured->count; i++) {
        json_t *run = json_object();
        json_object_set_new(run, "pid", json_of_number(measured->run[i].pid));
        json_object_set_new(run, "command", json_of_text(measured->run[i].command));
        json_object_set_new(run, "started", json_of_time(measured->run[i].time_ns));
        json_object_set_new(run, "peak_bytes", json_of_number(measured->run[i].peak_bytes));
        json_object_set_new(run, "resident_bytes", json_of_number(measured->run[i].resident_bytes));
        json_array_append_new(runs, run);
    }
    json_object_set_new(object, "measured", runs);
    fits_headroom_set_json(need, headroom, object);
    json_print(object, stdout);
}

static int say_wrong(const struct fits *fits, const struct fits_model *model)
{
    fprintf(stderr, "sparkguard-sweep: %s: %s\n", text_printable(fits->path, true), model->wrong);
    return FITS_CANNOT_TELL;
}

static void put_text(const struct fits *fits, const struct fits_model *model, struct fits_need *need,
                     const struct fits_loading *loading, const struct fits_headroom *headroom,
                     const struct measured *measured)
{
    const struct style style = style_of(stdout);
    put_title(fits->path, model, &style);
    if (fits->train == FITS_NO_TRAINING)
        add_notes(need, model, loading);
    add_measured(need, measured, style.is_utf8);
    fits_need_render(need, headroom, &style);
}

int fits_run(const struct fits *fits, bool is_json)
{
    struct fits_model model;
    int status = FITS_CANNOT_TELL;
    if (!fits_model_read(&model, fits->path))
        status = say_wrong(fits, &model);
    else {
        struct fits_need cache = {0}, need = {0};
        const struct fits_headroom headroom = fits_headroom_now();
        struct measured measured = find_measured(fits->path);
        fits_add_cache(&cache, fits, &model);
        const struct fits_loading loading = fits_loading_of(fits, &model, fits_need_sum(&cache));
        if (fits->train != FITS_NO_TRAINING) {
            fits_add_training(&need, fits, &model, headroom.total_bytes);
        } else {
            fits_add_weights(&need, fits, &model, &loading);
            fits_add_cache(&need, fits, &model);
        }
        if (is_json)
            put_json(fits, &model, &need, &loading, &headroom, &measured);
        else
            put_text(fits, &model, &need, &loading, &headroom, &measured);
        status = (int)fits_need_judge(&need, &headroom);
    }
    return status;
}
